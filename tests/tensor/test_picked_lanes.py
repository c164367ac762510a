"""Elements that are picked out of the data, lane by lane: the elements are numpy's, and lanes are
used."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import compiler
import compiler.transform
from compiler.ir.expr import Function, IRModule, Var
from compiler.lowering.legalize import legalize
from compiler.scheduling.default import schedule_default
from compiler.target.registry import Target
from compiler.tensor.stmt import For, walk_stmts

TARGETS = ["llvm", "llvm -mcpu=haswell", "llvm -mcpu=x86-64"]


def network(x: Var, y: Any) -> IRModule:
    return IRModule({"main": compiler.function([x], y)})


def vectors(mod: IRModule, target: str = "llvm -mcpu=cascadelake") -> int:
    """Loops whose iterations are lanes."""
    main = compiler.transform.InferType()(mod).main
    f = legalize(Function(main.params, main.bindings, main.results, {"primitive": True})).func
    schedule_default(f, Target.anywhere(target))
    return sum(isinstance(s, For) and s.kind == "vector" for s, _, _ in walk_stmts(f.body))


@pytest.mark.thorough
@settings(max_examples=25, deadline=None)
@given(st.data(), st.sampled_from(["float32", "int8", "int64"]), st.sampled_from(TARGETS))
def test_slices_with_strides(data: st.DataObject, dtype: str, target: str) -> None:
    shape = data.draw(st.lists(st.integers(1, 40), min_size=1, max_size=3))
    steps = [data.draw(st.sampled_from([-3, -1, 1, 2, 3])) for _ in shape]
    begin = [data.draw(st.integers(0, n - 1)) for n in shape]
    end = [n if s > 0 else -n - 1 for n, s in zip(shape, steps, strict=True)]
    x = np.random.default_rng(0).integers(-99, 99, shape).astype(dtype)
    v = compiler.var("x", tuple(shape), dtype)
    y = compiler.call("strided_slice", v, begin=begin, end=end, strides=steps)
    cut = tuple(
        slice(b, None if e == -n - 1 else e, s)
        for b, e, s, n in zip(begin, end, steps, shape, strict=True)
    )
    np.testing.assert_array_equal(compiler.build(network(v, y), target)(x), x[cut])


@settings(max_examples=5, deadline=None)
@given(st.data(), st.sampled_from(TARGETS), st.booleans())
def test_rows_and_columns_that_are_taken(data: st.DataObject, target: str, threads: bool) -> None:
    shape = tuple(data.draw(st.lists(st.integers(1, 40), min_size=1, max_size=3)))
    axis = data.draw(st.integers(0, len(shape) - 1))
    n = shape[axis]
    some = data.draw(st.lists(st.integers(-n, n - 1), min_size=1, max_size=40))
    x = np.random.default_rng(0).standard_normal(shape).astype("float32")
    v = compiler.var("x", shape, "float32")
    y = compiler.call("take", v, compiler.const(np.array(some, np.int64)), axis=axis)
    run = compiler.build(network(v, y), target, threads=1 + threads)
    np.testing.assert_array_equal(run(x), np.take(x, some, axis))


@settings(max_examples=5, deadline=None)
@given(st.data(), st.sampled_from(["argmax", "argmin"]), st.sampled_from(TARGETS))
def test_positions_of_the_greatest(data: st.DataObject, op: str, target: str) -> None:
    """NaN is greater, and less, than all others; the first of equal ones counts."""
    shape = tuple(data.draw(st.lists(st.integers(1, 20), min_size=1, max_size=3)))
    axis = data.draw(st.integers(0, len(shape) - 1))
    x = np.random.default_rng(0).integers(-3, 3, shape).astype("float32")
    if data.draw(st.booleans()):
        x.flat[x.size // 2] = np.nan
    v = compiler.var("x", shape, "float32")
    y = compiler.call(op, v, axis=axis, keepdims=False)
    want = getattr(np, op)(x, axis=axis)
    np.testing.assert_array_equal(compiler.build(network(v, y), target)(x), want)


def test_what_is_picked_goes_in_lanes() -> None:
    x = compiler.var("x", (1, 12, 33, 33), "float32")
    every_third = compiler.call(
        "strided_slice", x, begin=[0, 0, 0, 0], end=[1, 12, 33, 33], strides=[1, 1, 1, 3]
    )
    assert vectors(network(x, every_third))
    table = compiler.var("x", (100, 1000), "float32")
    picked = compiler.const(np.arange(0, 1000, 20))
    taken = compiler.call("take", table, picked, axis=1)
    assert vectors(network(table, taken))
    assert not vectors(network(table, taken), "llvm -mcpu=x86-64")  # short vectors: one by one


def test_positions_along_another_axis_go_in_lanes() -> None:
    x = compiler.var("x", (1, 21, 64, 64), "float32")
    y = compiler.call("argmax", x, axis=1, keepdims=False)
    main = compiler.transform.InferType()(network(x, y)).main
    f = legalize(Function(main.params, main.bindings, main.results, {"primitive": True})).func
    schedule_default(f, Target.anywhere("llvm -mcpu=cascadelake"))
    found = [
        s.kind == "vector"
        for s, _, _ in walk_stmts(f.body)
        if isinstance(s, For) and s.var.name.startswith("argmax_s")
    ]
    assert any(found)
