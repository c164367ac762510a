"""The integer graph against the independent reference: bit for bit at every node."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from quantize_nets import NETS, images, mixed_net, net, noise, plan_of
from random_nets import configs, images_of, networks
from reference_checks import check_plan

import compiler
import quantize
from compiler.errors import ConfigError
from compiler.ir.expr import IRModule
from compiler.op.library import all_ops
from compiler.op.qnn.requantize import ROUNDINGS
from quantize import QConfig
from quantize.plan.call_facts import Form, form_of

VIT = Path(__file__).parents[2].parent / "shared" / "data" / "mnist_vit.onnx"


def test_no_code_is_shared_with_what_it_checks() -> None:
    folder = Path(quantize.__file__).parent
    files = sorted((folder / "reference").glob("*.py"))
    assert {f.stem for f in files} >= {"trace", "rules", "integers"}
    for file in files:
        for room in ("realization", "annotation", "calibration"):
            assert f"quantize.{room}" not in file.read_text()


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "requantize"),
    [
        pytest.param(n, r, marks=[pytest.mark.slow] * (n == "dwsep" and r in ROUNDINGS[3:]))
        for n in NETS
        for r in ROUNDINGS
    ],
)
def test_shipped_nets_are_bit_equal_at_every_node(name: str, requantize: str) -> None:
    plan = plan_of(name, QConfig(requantize=requantize))
    counts = check_plan(net(name), plan, images()[1][:1])
    assert counts.get("float", 0) == 0
    assert sum(counts.values()) >= {"mlp": 2, "resnet8": 12, "dwsep": 10}[name]


@pytest.mark.sampled(6)
@pytest.mark.parametrize("how", ["wrap", "saturate"])
@pytest.mark.parametrize("bits", [16, 20, 24])
def test_accumulators_are_bit_equal_at_every_node(bits: int, how: str) -> None:
    config = QConfig(accumulate=f"int{bits}_{how}")
    check_plan(net("mlp"), plan_of("mlp", config), images()[1][:2])


def test_every_form_of_the_mixed_graph_is_bit_equal() -> None:
    plan = quantize.calibrate(mixed_net(), [noise(8)])
    counts = check_plan(mixed_net(), plan, noise(3, 5))
    assert counts["integer"] >= 8
    assert counts["float"] == 2


@pytest.mark.slow
@pytest.mark.parametrize("requantize", ROUNDINGS)
def test_the_transformer_is_bit_equal_at_every_node(requantize: str) -> None:
    mod = compiler.from_onnx(VIT)
    x = images()[0]
    plan = quantize.calibrate(mod, [x[:50]], QConfig(requantize=requantize))
    counts = check_plan(mod, plan, images()[1][:1])
    assert counts["integer"] + counts["accumulator"] >= 20


@pytest.mark.thorough
@pytest.mark.parametrize(
    "count",
    [4, pytest.param(15, marks=pytest.mark.thorough), pytest.param(200, marks=pytest.mark.slow)],
)
def test_random_nets_of_random_schemes_are_bit_equal_at_every_node(count: int) -> None:
    seen: set[str] = set()
    integer: set[str] = set()

    @settings(max_examples=count, deadline=None, suppress_health_check=list(HealthCheck))
    @given(networks(), configs(), st.integers(0, 2**16))
    def check(mod: IRModule, config: QConfig, seed: int) -> None:
        plan = quantize.calibrate(mod, [images_of(seed)], config)
        seen.update(check_plan(mod, plan, images_of(seed + 1)))
        integer.update(n.op for n in plan.nodes.values() if n.decision == "integer")

    check()
    assert seen == {"integer", "accumulator", "float"}
    if count == 200:
        moved = (Form.NONE, Form.MOVE)
        assert integer >= {n for n, op in all_ops().items() if form_of(op) not in moved}


def test_what_float_nodes_give_can_be_given() -> None:
    plan = quantize.calibrate(mixed_net(), [noise(8)])
    own = quantize.trace_plan(mixed_net(), plan, noise(3))
    shifted = {"soft": own["soft"].values[:, ::-1].copy()}
    other = quantize.trace_plan(mixed_net(), plan, noise(3), given=shifted)
    assert (other["d2"].values != own["d2"].values).any()
    np.testing.assert_array_equal(other["d1"].values, own["d1"].values)


def test_a_plan_that_lacks_parameters_is_refused() -> None:
    plan = plan_of("resnet8")
    name = next(iter(plan.values))
    rest = {k: v for k, v in plan.values.items() if k != name}
    lacking = replace(plan, values=rest)
    with pytest.raises(ConfigError, match=f"no parameters for {name!r}: calibrate again"):
        quantize.trace_plan(net("resnet8"), lacking, images()[1][:1])
