"""Functions of floats: compiled code gives the reference's bits on every instruction set, and
generated code carries no leave to contract or approximate."""

from __future__ import annotations

import re
from fractions import Fraction

import numpy as np
import pytest

import compiler
from compiler.arithmetic.arrays import arithmetic
from compiler.arithmetic.scalar_functions import UNARY
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import IRModule
from compiler.types.dtypes import FLOAT32, Array, DType

TARGETS = ["llvm", "llvm -mcpu=haswell", "llvm -mcpu=x86-64"]
OTHERS = [
    "nn.gelu", "nn.hard_swish", "nn.hard_sigmoid", "nn.leaky_relu", "nn.softmax", "nn.log_softmax",
]  # fmt: skip
TWO = ["power", "divide", "mod", "fmod"]
LOOSE = re.compile(r"\b(fast|contract|reassoc|arcp|afn|nnan|ninf|nsz)\b|fmuladd")


def values(dtype: str, seed: int) -> Array:
    """Every magnitude, and what is special."""
    rng = np.random.default_rng(seed)
    ordinary = rng.normal(size=900) * 10.0 ** rng.uniform(-3, 2, 900)
    wide = rng.choice([1, -1], 300) * 2.0 ** rng.uniform(-150, 130, 300)
    ends = [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 0.35, 88.7, -88.7, -103.9, 5e-324]
    with np.errstate(all="ignore"):
        return np.concatenate([ordinary, wide, ends]).astype(dtype)


def bits(a: Array) -> Array:
    """All bits, but for those of a NaN."""
    return np.where(np.isnan(a), -1, a.view(f"int{8 * a.dtype.itemsize}").astype(np.int64))


@pytest.mark.sampled(15)
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("name", [*UNARY, *OTHERS, *TWO])
def test_kernels_equal_references(name: str, dtype: str) -> None:
    b = FunctionBuilder()
    data = [values(dtype, k) for k in range(1 + (name in TWO))]
    y = b.call(name, *(b.param(f"x{k}", x.shape, dtype) for k, x in enumerate(data)))
    mod = IRModule({"main": b.finish(y)})
    want = bits(compiler.evaluate(mod, *data))
    for target in TARGETS:
        exe = compiler.build(mod, target=target)
        assert not LOOSE.search(exe.llvm_text())
        np.testing.assert_array_equal(bits(exe(*data)), want, target)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", [f.name for f in UNARY.values() if f.enclose is not None])
def test_functions_of_float16_are_correctly_rounded(name: str, target: str) -> None:
    """Every number, against float64."""
    x = np.arange(1 << 16).astype(np.uint16).view(np.float16)
    b = FunctionBuilder()
    mod = IRModule({"main": b.finish(b.call(name, b.param("x", x.shape, "float16")))})
    with np.errstate(all="ignore"):
        want = np.asarray(UNARY[name].numpy(x.astype(np.float64))).astype(np.float16)
    np.testing.assert_array_equal(bits(compiler.build(mod, target=target)(x)), bits(want))


@pytest.mark.parametrize(
    ("name", "most"), [("exp", 4), ("log", 4), ("tanh", 6), ("sigmoid", 4), ("rsqrt", 2)]
)
def test_functions_of_float32_are_near(name: str, most: int) -> None:
    """Within a few units in the last place of what they mean."""
    x = np.random.default_rng(0).uniform(-20, 20, 20000).astype(np.float32)
    x = np.abs(x) if name in ("log", "rsqrt") else x
    got = arithmetic(FLOAT32).call(name, x).astype(np.float64)
    want = UNARY[name].numpy(x.astype(np.float64))
    assert np.max(np.abs(got - want) / np.spacing(np.abs(want).astype(np.float32))) <= most


def test_fused_multiply_adds_round_once() -> None:
    """float32 operands whose sum lies next to, or in, the middle between two numbers."""
    rng = np.random.default_rng(0)
    a, b = (rng.integers(1 << 23, 1 << 24, 20000).astype(np.float64) for _ in range(2))
    a, b = a.astype(np.float32), b.astype(np.float32)
    c = (rng.choice([1, -1, 3], a.shape) * 2.0 ** rng.integers(-60, 24, a.shape)).astype(np.float32)
    for s in (np.float32(1), np.float32(2.0**-46), np.float32(2.0**-126)):
        left, last = a[:400] * s, c[:400] * s
        got = arithmetic(DType("float", 32)).fma(left, b[:400], last)
        for g, p, q, r in zip(got, left, b, last, strict=False):
            exact = Fraction(float(p)) * Fraction(float(q)) + Fraction(float(r))
            near = [g, np.nextafter(g, np.float32(np.inf)), np.nextafter(g, np.float32(-np.inf))]
            off = [abs(Fraction(float(n)) - exact) for n in near]
            assert off[0] <= min(off[1:])
            if off[0] in off[1:]:
                assert g.view(np.int32) % 2 == 0
