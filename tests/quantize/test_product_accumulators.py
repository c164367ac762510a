"""Accumulators of products of two activations in plans: by pattern, by override, certified."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from reference_checks import check_plan
from test_attention import attention, batches

import compiler
import quantize
from compiler.errors import ConfigError
from compiler.interpret.graph import trace
from compiler.ir.expr import Call, IRModule
from compiler.op.accumulator_width import Width
from quantize import Plan, QConfig


def modes(mod: IRModule) -> dict[str, str]:
    """Name of an integer matmul -> its accumulation."""
    return {
        b.var.name: b.value.attrs.accumulate
        for b in mod.main.bindings
        if isinstance(b.value, Call) and str(b.value.op) == "nn.matmul"
    }


def products_of(plan: Plan) -> list[str]:
    return [name for name, node in plan.nodes.items() if node.op == "nn.matmul"]


@pytest.mark.parametrize(
    ("mode", "compiled"),
    [
        ("int12_saturate", False),
        *(
            pytest.param(mode, True, marks=pytest.mark.thorough)
            for mode in ("int13_wrap", "int12_saturate")
        ),
    ],
)
def test_a_pattern_gives_products_an_accumulator(mode: str, compiled: bool) -> None:
    mod = attention()
    data = batches(mod, 2)
    plan = quantize.calibrate(mod, data, QConfig(accumulate={"*": mode}))
    assert {plan.nodes[name].accumulate for name in products_of(plan)} == {mode}
    q = quantize.realize(mod, plan)
    assert set(modes(q).values()) == {mode}
    assert check_plan(mod, plan, data[0], compiled=compiled)["integer"] > 3  # as in numpy
    usual = quantize.realize(mod, replace(plan, config=QConfig()).sequential)
    assert (compiler.evaluate(q, data[0]) != compiler.evaluate(usual, data[0])).any()
    simulated = {b.var.name: v for b, v in trace(quantize.simulate(mod, plan), data[0])}
    integer = {b.var.name: v for b, v in trace(q, data[0])}
    first = f"{products_of(plan)[0]}_acc"
    np.testing.assert_array_equal(simulated[first], integer[first])
    assert Plan.from_json(plan.to_json()) == plan


def test_one_name_for_all_nodes_is_for_those_with_weights() -> None:
    mod = attention()
    plan = quantize.calibrate(mod, batches(mod, 1), QConfig(accumulate="int20_wrap"))
    kept = {name: plan.nodes[name].accumulate for name in products_of(plan)}
    assert set(kept.values()) == {"sequential"}
    assert {plan.nodes[name].accumulate for name in plan.weights} == {"int20_wrap"}
    first = products_of(plan)[0]
    config = QConfig(overrides={first: {"accumulate": "int16_wrap"}})
    own = quantize.calibrate(mod, batches(mod, 1), config)
    assert {n: p.accumulate for n, p in own.nodes.items() if p.accumulate != "sequential"} == {
        first: "int16_wrap"
    }


@pytest.mark.thorough
@pytest.mark.parametrize("tokens", [5, pytest.param(9, marks=pytest.mark.thorough)])
def test_certified_products_have_the_same_bits_and_one_bit_less_has_not(tokens: int) -> None:
    mod = attention(tokens)
    data = batches(mod, 3)
    usual = quantize.calibrate(mod, data)
    plan = quantize.calibrate(mod, data, QConfig(accumulate="certified"))
    found = {c.node: c for c in quantize.certify(mod, usual, data)}
    for name in products_of(plan):
        c = found[name]
        assert plan.nodes[name].accumulate == c.accumulate != "sequential"
        assert 2 <= c.data_bits <= c.bits < 32
        # The ends of both grids in every term: the bound is reached, and leaves one bit less.
        ends = c.low, c.high
        narrow = Width(c.bits - 1, False)
        assert any(int(narrow.limited(np.asarray(end))) != end for end in ends)
    got, want = (compiler.build(quantize.realize(mod, p))(data[0] * 50) for p in (plan, usual))
    np.testing.assert_array_equal(got, want)


def test_products_of_16_bits_have_no_narrow_accumulator() -> None:
    mod = attention()
    wide = QConfig(activation_bits=16, accumulate="certified")
    plan = quantize.calibrate(mod, batches(mod, 1), wide)
    assert {n.accumulate for n in plan.nodes.values()} == {"sequential"}
    name = products_of(plan)[0]
    edited = replace(plan.nodes[name], accumulate="int20_wrap")
    with pytest.raises(ConfigError, match=rf"node '{name}' has more than 8 bits"):
        quantize.realize(mod, replace(plan, nodes={**plan.nodes, name: edited}))
