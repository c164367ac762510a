"""What WebAssembly has no instruction for, in a few: fused multiply-add, rounding to integers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from machines_here import WASM_MACHINES

import compiler
from compiler.arithmetic.fused_multiply_add import multiply_add32
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import IRModule
from compiler.ir.function_calls import call_tir
from compiler.runtime.executable import Executable
from compiler.tensor.builder import PrimBuilder
from compiler.tensor.expr import call
from compiler.types.dtypes import FLOAT32, INT32, Array
from compiler.types.tensor_types import TensorType

SIZE = 1 << 14
ENDS = [0, 1, 0x7FFFFF, 0x800000, 0x3F800000, 0x3F800001, 0x7F7FFFFF, 0x7F800000, 0x7FC00000,
        0x4B000001, 0x4F000000, 0x3EFFFFFF, 0x33800000]  # fmt: skip
"""Float32 numbers by their bits, signs aside: of all kinds, and near halves."""


def program(fn: str, count: int, target: str) -> Executable:
    """A function of float32 arrays alone."""
    p, dtype = PrimBuilder("f"), INT32 if fn == "rint_i32" else FLOAT32
    xs = [p.input(f"x{k}", (SIZE,), FLOAT32) for k in range(count)]
    out = p.compute("y", (SIZE,), dtype, lambda i: call(fn, *(x[i] for x in xs), dtype=dtype))
    b = FunctionBuilder()
    params = [b.param(f"x{k}", (SIZE,), "float32") for k in range(count)]
    y = b.bind(call_tir("f", params, TensorType.of((SIZE,), dtype)))
    return compiler.build(IRModule({"main": b.finish(y), "f": p.finish([out])}), target=target)


def bits(rng: np.random.Generator) -> Array:
    """Any float32 numbers, those at the ends more often than others."""
    plain = rng.integers(0, 1 << 32, SIZE, np.uint32)
    ends = rng.choice(np.array(ENDS, np.uint32), SIZE) | rng.choice(
        np.array([0, 1 << 31], np.uint32), SIZE
    )
    return np.where(rng.random(SIZE) < 0.5, plain, ends).view(np.float32)


@pytest.mark.parametrize("target", WASM_MACHINES)
def test_fused_multiply_add(target: str) -> None:
    exe = program("fma", 3, target)

    @settings(max_examples=20, deadline=None)
    @given(st.integers(0, 1 << 32), st.integers(-60, 60))
    def check(seed: int, apart: int) -> None:
        rng = np.random.default_rng(seed)
        a, b, c = bits(rng), bits(rng), bits(rng)
        near = rng.random(SIZE) < 0.5  # addends about as large as products, and halves of them
        with np.errstate(all="ignore"):
            product = np.float64(a) * b
            scaled = (product * np.ldexp(1.0, apart)).astype(np.float32)
            c = np.where(near, -scaled, c)
        got, want = exe(a, b, c), multiply_add32(a, b, c)
        same = (got.view(np.uint32) == want.view(np.uint32)) | (np.isnan(got) & np.isnan(want))
        assert same.all(), [x[~same][:3] for x in (a, b, c, got, want)]

    check()


@pytest.mark.parametrize("target", WASM_MACHINES)
def test_rounding_to_integers(target: str) -> None:
    """Halves to even; numbers beyond saturate, and NaN is 0."""
    exe, rng = program("rint_i32", 1, target), np.random.default_rng(0)
    values = np.where(
        rng.random(SIZE) < 0.5, bits(rng), rng.integers(-100, 100, SIZE) / np.float32(2)
    ).astype(np.float32)
    want = np.nan_to_num(np.clip(np.rint(np.float64(values)), -(2.0**31), 2.0**31 - 1))
    np.testing.assert_array_equal(exe(values), want.astype(np.int64))
