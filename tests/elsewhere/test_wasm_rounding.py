"""WebAssembly: floats that are clipped are rounded by an addition, several vectors at once."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from machines_here import WASM_MACHINES

import compiler
from compiler.build import compile_program
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import IRModule
from compiler.ir.function_calls import call_tir
from compiler.target.registry import Target
from compiler.tensor.builder import PrimBuilder
from compiler.tensor.expr import Expr, call, const, maximum, minimum, select
from compiler.types.dtypes import FLOAT32, INT32, Array
from compiler.types.tensor_types import TensorType

EDGE = 1 << 22
Form = Callable[[Expr, int, int, int], Expr]
"""(float32, low, high, k) -> int32."""


def clipped_before(v: Expr, low: int, high: int, k: int) -> Expr:
    """As data is quantized."""
    v = select(v > float(low), v, const(float(low)))
    v = select(v < float(high), v, const(float(high)))
    return call("rint_i32", v, dtype=INT32) + k


def clipped_after(v: Expr, low: int, high: int, k: int) -> Expr:
    """As integer kernels end."""
    return minimum(maximum(call("rint_i32", v, dtype=INT32) + k, low + k), high + k)


def module(form: Form, n: int, low: int, high: int, k: int) -> IRModule:
    """One of these of n float32."""
    p = PrimBuilder("f")
    x = p.input("x", (n,), FLOAT32)
    out = p.compute("y", (n,), INT32, lambda i: form(x[i], low, high, k))
    b = FunctionBuilder()
    y = b.bind(call_tir("f", [b.param("x", (n,), "float32")], TensorType.of((n,), INT32)))
    return IRModule({"main": b.finish(y), "f": p.finish([out])})


def numbers(rng: np.random.Generator, n: int, low: int, high: int) -> Array:
    """Halves, what is next to them, the bounds, and what is far beyond; no NaN."""
    halves = rng.integers(low - 3, high + 4, n) + rng.choice([0.0, 0.5, 0.25], n)
    x = halves.astype(np.float32)
    x = np.where(rng.random(n) < 0.3, np.nextafter(x, np.float32(rng.choice([-1e9, 1e9]))), x)
    far = rng.choice(np.array([2e9, -2e9, 1e-40, -0.0, EDGE + 0.5, low, high], np.float32), n)
    return np.where(rng.random(n) < 0.2, far, x).astype(np.float32)


@pytest.mark.parametrize("form", [clipped_before, clipped_after])
@pytest.mark.parametrize("target", WASM_MACHINES)
def test_clipped_floats(target: str, form: Form) -> None:
    """The bits of rounding by the instruction, at any bounds and of any number of elements."""

    @settings(max_examples=12, deadline=None)
    @given(st.data())
    def check(data: st.DataObject) -> None:
        edge = st.sampled_from([-EDGE - 1, -EDGE, -128, -1, 0, 127, 255, EDGE, EDGE + 1])
        low, high = sorted(data.draw(st.tuples(edge, edge)))
        n, k = data.draw(st.integers(1, 70)), data.draw(st.integers(-200, 200))
        x = numbers(np.random.default_rng(data.draw(st.integers(0, 999))), n, low, high)
        want = np.clip(np.rint(np.float64(x)), low, high).astype(np.int64) + k
        exe = compiler.build(module(form, n, low, high, k), target=target)
        np.testing.assert_array_equal(exe(x), want)

    check()


@pytest.mark.parametrize("form", [clipped_before, clipped_after])
def test_small_ones_need_no_conversion(form: Form) -> None:
    target = Target.anywhere("wasm32")
    for bound, converts in ((EDGE, False), (EDGE + 1, True)):
        (kernel,) = compile_program(module(form, 40, -128, bound, 3), target).kernels
        assert ("llvm.fptosi.sat" in kernel.source) == converts
        assert re.search(r"vector for y_s.i0oi in 4:\s+vector for y_s.i0i in 4:", kernel.as_text())


@pytest.mark.parametrize("target", WASM_MACHINES)
def test_not_a_number_becomes_one_of_them(target: str) -> None:
    for form in (clipped_before, clipped_after):
        exe = compiler.build(module(form, 5, -7, 9, 1), target=target)
        found = exe(np.full(5, np.nan, np.float32))
        assert ((found >= -6) & (found <= 10)).all()
