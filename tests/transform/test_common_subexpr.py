"""EliminateCommonSubexpr: what is the same, and what only looks like it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

import compiler
import datatypes
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import Constant, IRModule
from compiler.ir.function_calls import call_dps_packed, call_packed
from compiler.transform import EliminateCommonSubexpr, FoldConstant, Sequential
from compiler.transform.eliminate_common import eliminate_common
from compiler.types.tensor_types import TensorType
from datatypes.formats import add, catalogue, get


def count(b: FunctionBuilder, *results: compiler.Var) -> int:
    """Bindings that are left."""
    return len(eliminate_common(b.finish(*results)).bindings)


def test_constants_are_the_same_where_all_bits_are() -> None:
    long = np.arange(1000, dtype=np.float32)
    other = long.copy()
    other[-1] = 5
    for first, second, left in [
        (long, long.copy(), 2), (long, other, 3), (np.float32(0), np.float32(-0.0), 3),
        (np.float32(np.nan), np.float32(np.nan), 2), (np.int32(1), np.int64(1), 3),
    ]:  # fmt: skip
        b = FunctionBuilder()
        x, y = (b.call("negative", Constant.of(c)) for c in (first, second))
        assert count(b, b.tuple(x, y)) == left, (first, second)


def test_attributes_are_the_same_where_they_print_the_same() -> None:
    for first, second, left in [(0.0, 0.0, 2), (0.0, -0.0, 3), (0.0, 0, 3)]:
        b = FunctionBuilder()
        x = b.param("x", (3,))
        pair = [b.call("clip", x, a_min=low, a_max=1.0) for low in (first, second)]
        assert count(b, b.tuple(*pair)) == left


def test_calls_with_effects_are_never_merged() -> None:
    b = FunctionBuilder()
    x = b.param("x", (3,))
    t = TensorType.of((3,), "float32")
    pure = [b.bind(call_dps_packed("env.f", [x], t)) for _ in range(2)]
    for _ in range(2):
        b.bind(call_packed("env.log", [x]))
    assert count(b, b.tuple(*pure)) == 4


@pytest.fixture
def random_format() -> Iterator[str]:
    """The name of a format that rounds stochastically."""
    name = "bfloat16_of_this_test"
    add(replace(get("bfloat16"), name=name, rounding="stochastic", seed=0))
    yield name
    del catalogue._known[name]


def test_values_that_round_stochastically_differ(random_format: str) -> None:
    b = FunctionBuilder()
    x = b.param("x", (3,))
    mod = IRModule({"main": b.finish(b.call("exp", x), b.call("negative", b.call("exp", x)))})
    for name, left in (("bfloat16", 1), (random_format, 2)):
        retyped = datatypes.change_dtype(mod, "float32", name, boundary=False)
        f = eliminate_common(retyped.main)
        assert [str(getattr(x.value, "op", "")) for x in f.bindings].count("exp") == left


def test_results_that_are_the_same_stay_apart() -> None:
    b = FunctionBuilder()
    x = b.param("x", (3,))
    first, second = (b.call("exp", x, name=n, origins=[n]) for n in ("a", "b"))
    third = b.call("exp", x, name="c", origins=["c"])
    f = eliminate_common(b.finish(second, third, b.call("negative", first)))
    assert [x.var.name for x in f.bindings] == ["b", "c", "0"] or [x.var.name for x in f.bindings][
        :2
    ] == ["b", "c"]
    assert set(f.bindings[0].origins) == {"a", "b"}


def test_a_folded_scalar_stays_a_scalar() -> None:
    b = FunctionBuilder()
    x = b.param("x", (3,))
    two = b.call("add", b.const(np.float32(1)), b.const(np.float32(1)))
    y = b.call("multiply", x, b.call("exp", two))
    out = Sequential([FoldConstant(), EliminateCommonSubexpr()])(IRModule({"main": b.finish(y)}))
    (binding,) = out.main.bindings
    assert isinstance(binding.value, compiler.Call)
    assert isinstance(binding.value.args[1], Constant)
    assert binding.value.args[1].data.shape == ()
