"""Certified widths in plans, over networks and data."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from quantize_nets import images, mixed_net, net, noise, plan_of
from random_nets import configs, images_of, networks

import compiler
import quantize
from compiler.errors import ConfigError
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import IRModule
from compiler.symbolic import Var
from compiler.transform.certificates import certificates
from compiler.types.dtypes import Array
from quantize import Plan, QConfig


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", ["mlp", "dwsep", "resnet8"])
def test_networks_at_the_certified_widths_have_the_same_bits(name: str) -> None:
    usual, x = plan_of(name), images()[1][:20]
    plan = plan_of(name, QConfig(accumulate="certified"))
    found = {c.node: c for c in quantize.certify(net(name), usual, [x])}
    widths = {k: n.accumulate for k, n in plan.nodes.items() if n.accumulate != "sequential"}
    assert widths == {k: c.accumulate for k, c in found.items() if k in plan.weights}
    assert set(widths) == set(plan.weights)
    assert all(2 <= c.data_bits <= c.bits <= c.step_bits for c in found.values() if c.data_bits)
    assert min(c.bits for c in found.values()) < 24
    assert all(c.data_bits for c in found.values())  # averages included
    certified = quantize.realize(net(name), plan)
    want = compiler.build(quantize.realize(net(name), usual))(x)
    np.testing.assert_array_equal(compiler.build(certified)(x), want)
    assert Plan.from_json(plan.to_json()) == plan


@pytest.mark.thorough
def test_the_width_that_data_need_loses_nothing_on_them_and_one_bit_less_does() -> None:
    plan, x = plan_of("mlp"), images()[0][:50]
    found = {c.node: c for c in quantize.certify(net("mlp"), plan, [x[:25], x[25:]])}

    def run(less: int) -> Array:
        modes = {k: f"int{c.data_bits - less}_wrap" for k, c in found.items()}
        nodes = {
            k: replace(n, accumulate=modes.get(k, n.accumulate)) for k, n in plan.nodes.items()
        }
        narrow = quantize.realize(net("mlp"), replace(plan, nodes=nodes))
        return np.asarray(compiler.build(narrow)(x))

    want = compiler.build(quantize.realize(net("mlp"), plan))(x)
    np.testing.assert_array_equal(run(0), want)
    assert (run(1) != want).any()


def test_no_data_need_no_width() -> None:
    for batches in ([], [images()[0][:0]]):
        found = quantize.certify(net("mlp"), plan_of("mlp"), batches)
        assert [c.data_bits for c in found] == [0] * len(found)


def test_patterns_and_overrides_choose_what_is_certified() -> None:
    config = QConfig(
        accumulate={"conv_1": "certified"}, overrides={"c3": {"accumulate": "certified"}}
    )
    plan = quantize.calibrate(mixed_net(), [noise(8)], config)
    widths = {k: n.accumulate for k, n in plan.nodes.items() if n.accumulate != "sequential"}
    assert set(widths) == {"c1", "c3"}
    assert QConfig.from_dict(plan.config.to_dict()) == config


def test_products_of_16_bits_keep_their_accumulators() -> None:
    config = QConfig(accumulate="certified", overrides={"c1": {"activation_bits": 16}})
    plan = quantize.calibrate(mixed_net(), [noise(8)], config)
    kept = {k for k in plan.weights if plan.nodes[k].accumulate == "sequential"}
    assert kept
    assert kept != set(plan.weights)
    quantize.realize(mixed_net(), plan)


@pytest.mark.thorough
@given(networks(), configs(), st.integers(0, 999))
@settings(max_examples=5, deadline=None)
def test_no_data_leave_the_certified_widths(mod: IRModule, config: QConfig, seed: int) -> None:
    """Random networks and schemes, and data far beyond what they were calibrated on."""
    usual = quantize.calibrate(mod, [images_of(seed)], replace(config, accumulate="sequential"))
    plan = quantize.calibrate(mod, [images_of(seed)], replace(config, accumulate="certified"))
    x = (images_of(seed + 1) * 50).astype(np.float32)
    found = quantize.certify(mod, usual, [x])
    assert all(c.data_bits <= c.bits for c in found if not c.reason)
    assert {c.node for c in found} >= set(usual.weights)
    got = compiler.build(quantize.realize(mod, plan))(x)
    np.testing.assert_array_equal(got, compiler.build(quantize.realize(mod, usual))(x))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"weight_dtype": "posit8_es1", "compute": "native"}, "'certified' is for integers"),
        ({"activation_dtype": "float32"}, "leave out accumulate"),
    ],
)
def test_formats_and_weights_alone_have_nothing_to_certify(
    fields: dict[str, Any], message: str
) -> None:
    if "weight_dtype" in fields:
        fields = {**fields, "activation_dtype": fields["weight_dtype"]}
    with pytest.raises(ConfigError, match=message):
        QConfig(accumulate="certified", **fields)


def test_open_sizes_are_said_where_they_decide() -> None:
    b = FunctionBuilder()
    n = Var("n")
    x, y = b.param("x", (3, n), "int8"), b.param("y", (n, 3), "int8")
    z = b.call("nn.matmul", x, y, out_dtype="int32")
    (c,) = certificates(IRModule({"main": b.finish(z)}))
    assert c.bits == 0
    assert "a row has elements (n), which is open" in c.reason
