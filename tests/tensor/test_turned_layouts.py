"""Channels into blocks and out of them: the elements are the reference's, read and written in
squares; and what two loops that became one go along is one line."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import compiler
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import Call, Function, IRModule
from compiler.lowering.legalize import legalize
from compiler.runtime.kernels import compile_kernel
from compiler.scheduling.user_schedules import conventional
from compiler.symbolic import Index, Var
from compiler.tensor.expr import Buffer
from compiler.tensor.stmt import For, PrimFunc, Store, walk_stmts
from compiler.types.dtypes import FLOAT32

HOST = compiler.Target.parse("llvm")


def moved(shape: tuple[int, ...], dtype: str, **attrs: object) -> IRModule:
    b = FunctionBuilder()
    x = b.param("x", shape, dtype)
    return IRModule({"main": b.finish(b.call("layout_transform", x, **attrs))})


@pytest.mark.thorough
@settings(max_examples=40, deadline=None)
@given(
    groups=st.sampled_from([1, 1, 2, 3]), per=st.integers(1, 40), block=st.sampled_from([4, 8, 16]),
    size=st.tuples(st.integers(1, 20), st.integers(1, 20)), out=st.booleans(),
    dtype=st.sampled_from(["float32", "uint8"]),
)  # fmt: skip
def test_any_layout(
    groups: int, per: int, block: int, size: tuple[int, int], out: bool, dtype: str
) -> None:
    channels, layout = groups * per, f"NCHW{block}c"
    if out:
        blocks = groups * -(-per // block)
        shape: tuple[int, ...] = (2, blocks, *size, block)
        mod = moved(shape, dtype, src_layout=layout, channels=channels, src_groups=groups)
    else:
        shape = (2, channels, *size)
        mod = moved(shape, dtype, dst_layout=layout, dst_groups=groups)
    x = np.random.default_rng(0).integers(0, 200, shape).astype(dtype)
    np.testing.assert_array_equal(compiler.build(mod)(x), compiler.evaluate(mod, x))


@pytest.mark.parametrize("size", [(14, 14), (7, 7), (1, 50), (28, 28)])
@pytest.mark.parametrize("out", [False, True])
def test_most_is_copied_in_squares(size: tuple[int, int], out: bool) -> None:
    """Also of images whose rows are shorter than a square: all of an image is one line."""
    side = min(16, HOST.vector_bytes // 4)
    if out:
        mod = moved((1, 2, *size, 16), "float32", src_layout="NCHW16c", channels=32)
    else:
        mod = moved((1, 32, *size), "float32", dst_layout="NCHW16c")
    call = compiler.optimize(mod).main.bindings[-1].value
    assert isinstance(call, Call)
    assert isinstance(call.op, Function)
    squares = 0
    for s, path, _ in walk_stmts(compile_kernel(legalize(call.op), HOST).func.body):
        if isinstance(s, Store) and [f.kind for f in path[-2:]] == ["vector", "vector"]:
            extents = [f.extent.constant() or 0 for f in path]
            if extents[-2:] == [side, side]:
                squares += int(np.prod(extents))
    assert squares >= 32 * (size[0] * size[1] // side) * side


@pytest.mark.parametrize("out", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "uint8"])
def test_maps_of_one_place_are_copied_as_they_lie(dtype: str, out: bool) -> None:
    """After a pooling, say: every statement is of lanes, and none picks them."""
    if out:
        mod = moved((1, 2, 1, 1, 16), dtype, src_layout="NCHW16c", channels=32)
    else:
        mod = moved((1, 32, 1, 1), dtype, dst_layout="NCHW16c")
    call = compiler.optimize(mod).main.bindings[-1].value
    assert isinstance(call, Call)
    assert isinstance(call.op, Function)
    stores = [
        (s, path)
        for s, path, _ in walk_stmts(compile_kernel(legalize(call.op), HOST).func.body)
        if isinstance(s, Store)
    ]
    assert stores
    for s, path in stores:
        lanes = [f for f in path if f.kind == "vector"]
        assert math.prod(f.extent.const for f in lanes) in (8, 16, 32)
        assert s.buffer.flat(s.idx).terms[lanes[-1].var] == 1


@given(st.integers(1, 9), st.integers(1, 9), st.integers(0, 5), st.integers(1, 7))
def test_addresses_of_fused_loops_are_one_line(n: int, m: int, start: int, times: int) -> None:
    v, w = Var("v", Index.of(n * m)), Var("w", Index.of(3))
    i = (v // n) * (n * times) + (v % n) * times + w * 5 + start
    joined = i.joined()
    assert joined == v * times + w * 5 + start
    assert all(joined.value({v: k, w: 2}) == i.value({v: k, w: 2}) for k in range(n * m))
    if n > 1 and m > 1:
        assert ((v // n) * (n + 1) + v % n).joined() != Index.of(v)  # lines that lie apart


@pytest.mark.parametrize(
    ("step", "extent", "known"),
    [(16, 16, True), (16, 15, True), (20, 16, True), (15, 16, False), (1, 16, False)],
)
def test_indices_of_digits_are_elements_of_their_own(step: int, extent: int, known: bool) -> None:
    """Default schedules rearrange only what stores every element once."""
    c, lane = Var("c", Index.of(4)), Var("lane", Index.of(extent))
    data, out = (Buffer(n, (Index.of(99),), FLOAT32) for n in ("x", "y"))
    position = c * step + lane
    store = Store("s", out, (position,), data[position])
    f = PrimFunc("f", [data, out], 1, [For(c, [For(lane, [store])])])
    seen = [position.value({c: i, lane: k}) for i in range(4) for k in range(extent)]
    assert conventional(f) == known
    assert known <= (len(set(seen)) == len(seen))
