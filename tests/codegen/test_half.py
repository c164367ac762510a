"""float16 on processors with and without instructions for it."""

from __future__ import annotations

import numpy as np
import pytest

import compiler
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import IRModule
from compiler.symbolic import Var
from compiler.types.dtypes import Array

TARGETS = ("llvm", "llvm -mcpu=x86-64-v2")


def converted(x: Array, dtype: str, target: str) -> Array:
    b = FunctionBuilder()
    y = b.call("cast", b.param("x", x.shape, str(x.dtype)), dtype=dtype)
    return np.asarray(compiler.build(IRModule({"main": b.finish(y)}), target=target)(x))


def same_bits(got: Array, want: Array) -> None:
    nan = np.isnan(want)
    np.testing.assert_array_equal(np.isnan(got), nan)
    unsigned = f"u{got.dtype.itemsize}"
    np.testing.assert_array_equal(got.view(unsigned)[~nan], want.view(unsigned)[~nan])


def around_ties(dtype: type[np.floating]) -> Array:
    """Every float16, every midpoint, their neighbours, and numbers beyond the range."""
    h = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float64)
    ties = (h[1:] + h[:-1]) / 2
    near = ties.astype(dtype)
    most = dtype(np.inf)
    parts = [h.astype(dtype), near, np.nextafter(near, most), np.nextafter(near, -most)]
    more = np.array([65519.0, 65519.99, 65520, 65521, 1e5, 1e38, 1e-30, np.inf, np.nan], dtype)
    x = np.concatenate([*parts, more])
    return np.concatenate([x, -x])


@pytest.mark.parametrize("target", TARGETS)
def test_every_float16_becomes_its_float32(target: str) -> None:
    x = np.arange(1 << 16, dtype=np.uint32).astype(np.uint16).view(np.float16)
    same_bits(converted(x, "float32", target), x.astype(np.float32))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.filterwarnings("ignore:overflow encountered in cast")
def test_rounding_to_float16_is_to_nearest_even(dtype: type[np.floating], target: str) -> None:
    x = around_ties(dtype)
    same_bits(converted(x, "float16", target), x.astype(np.float16))


@pytest.mark.parametrize("target", TARGETS)
def test_matrix_products_of_float16(target: str) -> None:
    rng = np.random.default_rng(0)
    a, w = (rng.standard_normal(s).astype(np.float16) for s in ((5, 33), (33, 18)))
    b = FunctionBuilder()
    y = b.call("nn.matmul", *(b.param(n, x.shape, "float16") for n, x in (("a", a), ("w", w))))
    got = compiler.build(IRModule({"main": b.finish(y)}), target=target)(a, w)
    np.testing.assert_allclose(
        np.asarray(got, np.float32), a.astype("f4") @ w, rtol=0.02, atol=0.05
    )


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("batch", [2, Var("n")])
def test_convolutions_of_float16(target: str, batch: int | Var) -> None:
    """Sums are in registers, and no register of most processors holds a half."""
    rng = np.random.default_rng(0)
    w, bias = (rng.standard_normal(s).astype(np.float16) for s in ((3, 4, 2, 2), (3,)))
    b = FunctionBuilder()
    x = b.param("x", (batch, 4, 10, 14), "float16")
    kinds = {"padding": (1, 1, 1, 1), "dilation": (1, 2)}
    mod = IRModule({"main": b.finish(b.call("nn.conv2d", x, b.const(w), b.const(bias), **kinds))})
    given = rng.standard_normal((2, 4, 10, 14)).astype(np.float16)
    np.testing.assert_array_equal(
        compiler.build(mod, target=target)(given), compiler.evaluate(mod, given)
    )
