"""Accumulators of a width in quantized networks: every layer, or layers by pattern."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from quantize_nets import images, mixed_net, net, noise, plan_of

import compiler
import quantize
from compiler.errors import ConfigError
from compiler.interpret.graph import trace
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import Call, IRModule
from compiler.types.dtypes import Array
from quantize import Plan, QConfig

MODES = [f"int{bits}_{how}" for bits in (16, 20, 24) for how in ("wrap", "saturate")]


def accumulators(mod: IRModule) -> dict[str, str]:
    """Name of the ONNX node -> accumulation, for conv2d and dense."""
    calls = [(b.origins[0], b.value) for b in mod.main.bindings if b.origins]
    return {
        name: value.attrs.accumulate
        for name, value in calls
        if isinstance(value, Call) and str(value.op) in ("nn.conv2d", "nn.dense")
    }


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("name", "mode", "count"),
    [
        ("mlp", "int16_saturate", 100),
        ("dwsep", "int16_wrap", 5),
        ("resnet8", "int20_saturate", 2),
        *(
            pytest.param(name, mode, 30, marks=pytest.mark.slow)
            for name in ("mlp", "resnet8", "dwsep") for mode in MODES
        ),
    ],
)  # fmt: skip
def test_networks_of_a_width_are_compiled_to_the_bits_of_the_interpreter(
    name: str, mode: str, count: int
) -> None:
    q = quantize.realize(net(name), plan_of(name, QConfig(accumulate=mode)))
    assert set(accumulators(q).values()) == {mode}
    x = images()[1][:count]
    np.testing.assert_array_equal(compiler.build(q)(x), compiler.evaluate(q, x))


@pytest.mark.thorough
def test_24_bits_hold_every_sum_and_10_bits_cost_accuracy() -> None:
    _, x, labels = images()

    def accuracy(config: QConfig) -> tuple[float, Array]:
        y = compiler.build(quantize.realize(net("mlp"), plan_of("mlp", config)))(x)
        return float((y.argmax(1) == labels).mean()), y

    usual, want = accuracy(QConfig())
    for mode in ("int24_wrap", "int24_saturate"):
        np.testing.assert_array_equal(accuracy(QConfig(accumulate=mode))[1], want)
    wrapped, _ = accuracy(QConfig(accumulate="int12_wrap"))
    clipped, _ = accuracy(QConfig(accumulate="int12_saturate"))
    assert wrapped < usual - 0.2
    assert clipped < usual - 0.02


@pytest.mark.thorough
def test_the_first_pattern_that_matches_decides_a_layer() -> None:
    config = QConfig(accumulate={"conv_1": "int12_saturate", "conv*": "int14_wrap"})
    mod = mixed_net()
    plan = quantize.calibrate(mod, [noise(8)], config)
    widths = {n: p.accumulate for n, p in plan.nodes.items() if p.accumulate != "sequential"}
    assert widths == {"c1": "int12_saturate", "c2": "int14_wrap"}
    q = quantize.realize(mod, plan)
    assert accumulators(q) == {"conv_1": "int12_saturate", "conv_2": "int14_wrap"}
    assert 'accumulate="int12_saturate"' in q.astext()
    x = noise(5, 9)
    for got, want in zip(compiler.build(q)(x), compiler.evaluate(q, x), strict=True):
        np.testing.assert_allclose(got, want, atol=1e-6)  # softmax is a float operator


def test_plans_keep_and_show_accumulators_and_can_be_edited(tmp_path: Path) -> None:
    config = QConfig(accumulate=(("c1", "int12_wrap"),))
    plan = quantize.calibrate(mixed_net(), [noise(8)], config)
    assert Plan.from_json(plan.to_json()) == plan
    assert "accumulator int12_wrap" in plan.summary()
    data = json.loads(plan.to_json())
    assert "accumulate" not in data["nodes"]["c2"]
    data["nodes"]["c2"]["accumulate"] = "int9_saturate"
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(data))
    edited = quantize.realize(mixed_net(), Plan.from_json(path))
    assert accumulators(edited)["conv_2"] == "int9_saturate"
    data["nodes"]["p"]["accumulate"] = "int9_saturate"
    with pytest.raises(
        ConfigError, match=r"node 'p' \(nn.max_pool2d, integer\) has no accumulator"
    ):
        quantize.realize(mixed_net(), Plan.from_dict(data))
    data["nodes"]["p"]["accumulate"] = "int9"
    with pytest.raises(ConfigError, match=r"accumulate must be sequential.*not 'int9'"):
        Plan.from_dict(data)


@pytest.mark.parametrize("mode", ["int12_wrap", "int12_saturate"])
def test_simulation_has_the_accumulators_of_the_integer_graph(mode: str) -> None:
    plan = plan_of("mlp", QConfig(accumulate=mode))
    x = images()[1][:8]
    simulated = {b.var.name: v for b, v in trace(quantize.simulate(net("mlp"), plan), x)}
    integer = {b.var.name: v for b, v in trace(quantize.realize(net("mlp"), plan), x)}
    sums = [name for name in integer if name.endswith("_acc")]
    assert len(sums) == 2
    for name in sums:
        np.testing.assert_array_equal(simulated[name], integer[name])


def test_exported_models_leave_accumulators_to_the_runtime(tmp_path: Path) -> None:
    config = QConfig(accumulate="int12_wrap")
    narrow, usual = tmp_path / "narrow.onnx", tmp_path / "usual.onnx"
    quantize.export_onnx(net("mlp"), plan_of("mlp", config), narrow)
    quantize.export_onnx(net("mlp"), replace(plan_of("mlp"), config=QConfig()), usual)
    assert narrow.read_bytes() == usual.read_bytes()


@pytest.mark.parametrize(
    ("accumulate", "message"),
    [
        ("int16", "accumulate must be sequential, int<N>_wrap or int<N>_saturate"),
        ("int33_wrap", "not 'int33_wrap'"),
        ("exact", "not 'exact'"),
        (16, "a mapping from patterns"),
        ({}, "a mapping from patterns"),
        ({"c1": "int16"}, "not 'int16'"),
        ({"c1": 16}, "not 16"),
    ],
)
def test_names_that_are_no_accumulators(accumulate: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        QConfig(accumulate=accumulate)


@pytest.mark.parametrize("pattern", ["conv_9", "soft*", "c[1"])
def test_a_pattern_that_decides_no_accumulator_is_an_error(pattern: str) -> None:
    config = QConfig(accumulate=(("c1", "int16_wrap"), (pattern, "int16_wrap")))
    with pytest.raises(ConfigError, match="accumulate: unknown node"):
        quantize.calibrate(mixed_net(), [noise(4)], config)


@pytest.mark.parametrize("size", [(3, 3), (3, 2), (1, 2)])
def test_padded_columns_of_saturating_depthwise_convolutions_count_as_the_zero_point(
    size: tuple[int, int],
) -> None:
    rng = np.random.default_rng(0)
    b = FunctionBuilder()
    x = b.param("x", (1, 3, 8, 9), "uint8")
    w = b.const(rng.integers(-128, 128, (3, 1, *size)).astype(np.int8))
    y = b.call(
        "nn.conv2d", x, w, padding=(1, 1, 1, 1), groups=3, out_dtype="int32", input_zero_point=77,
        accumulate="int20_saturate",
    )  # fmt: skip
    mod = IRModule({"main": b.finish(y)})
    data = rng.integers(0, 256, (1, 3, 8, 9)).astype(np.uint8)
    np.testing.assert_array_equal(compiler.build(mod)(data), compiler.evaluate(mod, data))
