"""Elementwise stages computed where their operand is gathered, in the same bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import compiler
from compiler.errors import ScheduleError
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import IRModule
from compiler.lowering.legalize import legalize
from compiler.scheduling import Schedule
from compiler.scheduling.choices import Sketch
from compiler.scheduling.default import untiled
from compiler.target.registry import Target
from compiler.tensor.stmt import PrimFunc

RNG = np.random.default_rng(0)


def module(shape: tuple[int, ...], depth: int, rows: tuple[int, ...], tail: str) -> IRModule:
    """What is gathered from x, masked and scaled; `tail`: what else reads it or is read."""
    b = FunctionBuilder()
    x = b.param("x", shape)
    at = b.param("at", (*rows, depth), compiler.types.dtypes.INT64)
    got = b.call("gather_nd", x, at)
    rank = len(rows) + len(shape) - depth
    thin = (*rows, *[1] * (rank - len(rows)))
    mask = b.param("mask", thin, compiler.types.dtypes.BOOL)
    y = b.call("where", mask, got, b.const(np.float32(0)))
    y = b.call("multiply", y, b.param("scale", thin))
    if tail == "twice":
        y = b.call("add", y, b.call("multiply", got, got))
    if tail == "sum":
        y = b.call("sum", y, axis=(rank - 1,), keepdims=True)
    return IRModule({"main": b.finish(y)})


def inputs(mod: IRModule) -> dict[str, Any]:
    found = {}
    for p in mod.main.params:
        shape = tuple(map(int, p.type.shape))
        kind = str(p.type.dtype)
        values = RNG.normal(size=shape).astype(np.float32)
        # positions outside, too: these are clamped
        found[p.name] = {"int64": RNG.integers(-6, 6, shape), "bool": values > 0}.get(kind, values)
    return found


def check(mod: IRModule) -> None:
    given = inputs(mod)
    got = compiler.build(mod)(**given)
    assert got.tobytes() == np.asarray(compiler.evaluate(mod, **given)).tobytes()


@pytest.mark.thorough
@settings(max_examples=60, deadline=None)
@given(
    shape=st.lists(st.integers(1, 20), min_size=2, max_size=4).map(tuple),
    rows=st.lists(st.integers(1, 9), min_size=1, max_size=2).map(tuple),
    tail=st.sampled_from(["", "twice", "sum"]),
    data=st.data(),
)
def test_bits(shape: tuple[int, ...], rows: tuple[int, ...], tail: str, data: Any) -> None:
    check(module(shape, data.draw(st.integers(1, len(shape) - 1)), rows, tail))


def nests(mod: IRModule) -> PrimFunc:
    fused = compiler.optimize(mod, Target.parse("llvm"))
    (func,) = (
        f
        for b in fused.main.bindings
        if "gather" in (f := legalize(b.value.op).func).name  # type: ignore[union-attr]
    )
    return func


def test_no_memory_holds_what_is_gathered() -> None:
    mod = module((5, 4, 32), 2, (9,), "")
    f = nests(mod)
    assert [b.name for b in f.temps] == ["gather_nd", "where"]
    untiled(f)
    assert f.temps == []
    assert len(f.body) == 1
    check(mod)


def test_what_is_to_stay_apart_does() -> None:
    f = nests(module((5, 4, 32), 2, (9,), ""))
    untiled(f, whole=Sketch(apart=("gather_nd_slice",)))
    assert [b.name for b in f.temps] == ["gather_nd"]


def test_picked_copies_are_not_inlined() -> None:
    """Their positions would be lost."""
    s = Schedule(nests(module((5, 4, 32), 2, (9,), "")))
    with pytest.raises(ScheduleError, match="picked positions"):
        s.compute_inline("gather_nd_slice")
