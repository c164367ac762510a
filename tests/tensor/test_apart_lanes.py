"""Lanes that lie apart: the stretches that are loaded for them; positions put together again."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import compiler
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import Call, Function, IRModule
from compiler.lowering.legalize import legalize
from compiler.runtime.kernels import compile_kernel
from compiler.scheduling.choices import Sketch
from compiler.symbolic import Index, Var
from compiler.target.registry import Target
from compiler.tensor.lanes import windows
from compiler.tuning.measure import KernelRun, random_arrays

HOST = Target.parse("llvm")


@given(st.lists(st.integers(-40, 40), min_size=2, max_size=32))
def test_windows_hold_every_lane_and_nothing_outside(offsets: list[int]) -> None:
    width, starts = windows(tuple(offsets))
    assert 2 * len(starts) <= len(offsets)
    if starts:
        held = {o for s in starts for o in range(s, s + width)}
        assert {*offsets} <= held
        assert (min(held), max(held)) >= (min(offsets), min(offsets))
        assert max(held) <= max(offsets)


def test_windows_of_strides() -> None:
    assert windows(tuple(range(0, 32, 2))) == (16, (0, 15))
    assert windows(tuple(range(0, 1600, 100)))[1] == ()


@given(st.integers(1, 9), st.integers(1, 9), st.integers(2, 7), st.integers(2, 7))
def test_joined_positions_are_the_same(a: int, b: int, n: int, m: int) -> None:
    v, w = Var("v", 64), Var("w", 8)
    for x in (Index.of(v), v * a + w * b, v + w * 3 + 2):
        inner = x % (n * m)
        flat = (x // (n * m)) * (n * m) + (inner // m) * m + inner % m
        assert flat.joined() == x.joined()
        assert (x % n * 3 + w).joined() == x % n * 3 + w
        for i in (0, 7, 63):
            env = {v: i, w: i % 8}
            assert flat.joined().value(env) == flat.value(env)


@pytest.mark.parametrize("stride", [2, 3, 9])
@pytest.mark.parametrize("lanes", [8, 16])
def test_strided_reads_as_lanes(stride: int, lanes: int) -> None:
    b = FunctionBuilder()
    n = lanes * stride * 2
    x = b.param("x", (3, n))
    y = b.call("strided_slice", x, begin=(0, 1), end=(3, n), strides=(1, stride))
    mod = compiler.optimize(IRModule({"main": b.finish(y)}), HOST)
    (f,) = [
        x.value.op
        for x in mod.main.bindings
        if isinstance(x.value, Call) and isinstance(x.value.op, Function)
    ]
    inputs = random_arrays(legalize(f), 0)
    kernel = compile_kernel(legalize(f), HOST, {"slice_s": Sketch(lanes=((1, lanes),))})
    found = np.frombuffer(KernelRun(kernel, HOST, inputs).result(), np.float32)
    np.testing.assert_array_equal(found, inputs[0][:, 1::stride].ravel())
    loads = [line for line in kernel.llvm_text().splitlines() if " = load " in line]
    assert all("<" in line for line in loads) == (stride < 9 or lanes == 16)
