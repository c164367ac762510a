"""Functions of machines without a C library: within a few hundredths of half a unit in the last
place, with C's special values, and in float32 the C library's numbers."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import compiler
from compiler.arithmetic import enclosures
from compiler.arithmetic.arrays import arithmetic
from compiler.arithmetic.float64 import constants
from compiler.arithmetic.scalar_functions import FUNCTIONS
from compiler.build import compile_program
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import IRModule
from compiler.symbolic import Var
from compiler.types.dtypes import DType

LONG = np.longdouble
ALONE = [f for f in FUNCTIONS.values() if f.alone is not None]
OPERATORS = {"pow": "power"}
SIMT = "cuda -runner=simt"
BOUND = 0.51
SPECIAL = [0.0, -0.0, math.inf, -math.inf, math.nan, 1.0, -1.0, 2.0, -2.0, 0.5, -0.5, 3.0, -3.0]
SPECIAL += [5e-324, -5e-324, 1.7976931348623157e308, -1.7976931348623157e308, 2.0**-1022, 2.0**60]


def module(op: str, dtype: str, count: int) -> IRModule:
    b, n = FunctionBuilder(), Var("n")
    given = [b.param(f"p{k}", (n,), DType.parse(dtype)) for k in range(count)]
    return IRModule({"main": b.finish(b.call(op, *given))})


def computed(name: str, *args: np.ndarray) -> np.ndarray:
    mod = module(OPERATORS.get(name, name), str(args[0].dtype), len(args))
    return np.asarray(compiler.build(mod, target=SIMT)(*args))


def errors(got: np.ndarray, want: np.ndarray) -> np.ndarray:
    """In units of float64's last place."""
    assert np.isfinite(got).all()
    unit = np.spacing(np.abs(want).astype(np.float64)).astype(LONG)
    return np.asarray(np.abs(got.astype(LONG) - want) / unit, np.float64)


def operands(name: str, n: int, rng: np.random.Generator) -> np.ndarray:
    sign = rng.choice([-1.0, 1.0], n)
    if name in ("asin", "acos", "atanh"):
        parts = [rng.uniform(-1, 1, n), sign * (1 - 2.0 ** rng.uniform(-53, -1, n))]
        parts.append(sign * 2.0 ** rng.uniform(-60, 0, n))
    elif name == "acosh":
        parts = [1 + 2.0 ** rng.uniform(-52, 10, n), 2.0 ** rng.uniform(0, 1024, n)]
    elif name == "log":
        parts = [2.0 ** rng.uniform(-1074, 1024, n), 1 + sign * 2.0 ** rng.uniform(-52, -1, n)]
    elif name in ("sin", "cos", "tan", "asinh", "atan"):
        parts = [rng.uniform(-10, 10, n), sign * 2.0 ** rng.uniform(-60, 1024, n)]
        parts.append(rng.integers(0, 1 << 20, n) * (math.pi / 2))
    elif name in ("exp", "sinh", "cosh"):
        parts = [rng.uniform(-708, 709, n), sign * 2.0 ** rng.uniform(-60, 6, n)]
    else:
        parts = [rng.uniform(-6, 6, n), sign * 2.0 ** rng.uniform(-60, 4, n)]
    return np.concatenate(parts)


UNARY = [f.name for f in ALONE if f.arity == 1 and f.name != "erf"]


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=() if n in ("sin", "exp") else pytest.mark.thorough) for n in UNARY],
)
def test_errors(name: str) -> None:
    x = operands(name, 3000, np.random.default_rng(3))
    want = FUNCTIONS[name].numpy(x.astype(LONG))
    assert errors(computed(name, x), want).max() < BOUND


@pytest.mark.thorough
@pytest.mark.parametrize("name", UNARY)
def test_errors_of_many(name: str) -> None:
    x = operands(name, 200_000, np.random.default_rng(4))
    want = FUNCTIONS[name].numpy(x.astype(LONG))
    assert errors(computed(name, x), want).max() < BOUND


@pytest.mark.thorough
def test_powers() -> None:
    rng = np.random.default_rng(5)
    x = 2.0 ** rng.uniform(-20, 20, 100_000)
    x[::2] = 1 + rng.uniform(-1e-3, 1e-3, len(x[::2]))
    limit = 700 / np.maximum(np.abs(np.log(x)), 1e-9)
    y = rng.uniform(-1, 1, len(x)) * limit
    assert errors(computed("pow", x, y), np.power(x.astype(LONG), y.astype(LONG))).max() < 0.55


@pytest.mark.thorough
def test_error_function() -> None:
    x = operands("erf", 300, np.random.default_rng(6))
    got = computed("erf", x)
    for value, found in zip(x.tolist(), got.tolist(), strict=True):
        low, high = enclosures.erf(Fraction(value), 40)
        assert abs((low + high) / 2 - Fraction(found)) < BOUND * Fraction(math.ulp(found))


HARD = [
    6381956970095103.0 * 2.0**797,
    1.7976931348623157e308,
    1e22,
    2.0**1023,
    math.pi,
    math.pi / 2,
]
HARD += [5.319372648326541416e255, 11 * math.pi / 2, 2.0**52 * math.pi, 355.0, 710.0 / 2, 103993.0]
"""The number nearest to a multiple of pi/2 of all (W. Kahan), and others that are near one."""


def test_reductions() -> None:
    x = np.array([*HARD, *(-h for h in HARD)])
    for name in ("sin", "cos", "tan"):
        assert errors(computed(name, x), FUNCTIONS[name].numpy(x.astype(LONG))).max() < BOUND


def c_library(name: str, *args: float) -> float:
    """The C library's result: Python's function, which raises what C returns."""
    try:
        return float(getattr(math, str(FUNCTIONS[name].c))(*args))
    except (ValueError, OverflowError):
        with np.errstate(all="ignore"):
            return float(FUNCTIONS[name].numpy(*map(np.float64, args)))


@pytest.mark.parametrize(
    "name",
    [pytest.param(f.name, marks=() if f.name == "cosh" else pytest.mark.thorough) for f in ALONE],
)
def test_special_values(name: str) -> None:
    rows = list(itertools.product(SPECIAL, repeat=FUNCTIONS[name].arity))
    got = computed(name, *np.array(rows).T.copy())
    for row, found in zip(rows, got.tolist(), strict=True):
        want = c_library(name, *row)
        if math.isnan(want):
            assert math.isnan(found), row
        elif want == 0 or math.isinf(want) or name == "fmod":
            assert (found, math.copysign(1, found)) == (want, math.copysign(1, want)), row
        else:
            assert abs(found - want) <= math.ulp(want), row


@pytest.mark.thorough
@settings(max_examples=300, deadline=None)
@given(st.floats(), st.floats())
def test_remainders(x: float, y: float) -> None:
    with np.errstate(all="ignore"):
        want = np.fmod(x, y)
    got = REMAINDER(np.array([x]), np.array([y]))[0]
    np.testing.assert_array_equal(got, want)
    assert math.isnan(want) or np.signbit(got) == np.signbit(want)


def _remainder() -> Callable[..., Any]:
    made: list[Any] = []

    def call(*args: np.ndarray) -> np.ndarray:
        if not made:
            made.append(compiler.build(module("fmod", "float64", 2), target=SIMT))
        return np.asarray(made[0](*args))

    return call


REMAINDER = _remainder()


@pytest.mark.thorough
def test_remainders_of_float32() -> None:
    rng = np.random.default_rng(7)
    codes = rng.integers(0, 1 << 32, (2, 200_000), dtype=np.uint64).astype(np.uint32)
    x, y = codes.view(np.float32)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(computed("fmod", x, y), np.fmod(x, y))


@pytest.mark.thorough
@pytest.mark.parametrize("name", [f.name for f in ALONE if f.arity == 1])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_narrow_floats_have_the_library_s_numbers(name: str, dtype: str) -> None:
    """Every number of float16, a million of float32: those of the interpreter, which asks the C
    library where it matters."""
    bits, kind = (32, np.uint32) if dtype == "float32" else (16, np.uint16)
    rng = np.random.default_rng(8)
    size = 1_000_000 if bits == 32 else 1 << 16
    codes = rng.integers(0, 1 << bits, size, dtype=np.uint64) if bits == 32 else np.arange(size)
    x = codes.astype(kind).view(dtype)
    with np.errstate(all="ignore"):
        want = arithmetic(DType.parse(dtype)).call(name, x)
        np.testing.assert_array_equal(computed(name, x), want)


@pytest.mark.parametrize(
    "name",
    [pytest.param(f.name, marks=() if f.name == "tan" else pytest.mark.thorough) for f in ALONE],
)
def test_gpus_call_no_library(name: str) -> None:
    f = FUNCTIONS[name]
    dtype = "float64" if f.single is not None else "float32"
    program = compile_program(module(OPERATORS.get(name, name), dtype, f.arity), "cuda")
    assert program.kernels
    assert all(b".extern" not in k.code for k in program.kernels)


def test_constants() -> None:
    assert constants.parts(constants.pi()) == (math.pi, 1.2246467991473532e-16)
    assert constants.parts(constants.ln2())[0] == math.log(2)
    assert [float(v) for v in constants.arctangents()] == [math.atan(k / 8) for k in range(9)]
    for k, (value, slope) in enumerate(constants.error_functions()):
        low, high = enclosures.erf(Fraction(k, 4), 50)
        assert abs(value - low) <= abs(value) / 10**48
        assert low <= high
        assert math.isclose(
            slope, 2 / math.sqrt(math.pi) * math.exp(-((k / 4) ** 2)), rel_tol=1e-14
        )
    known = 0xA2F9836E4E441529FC2757D1F534DDC0DB6295993C439041FE5163ABDEBBC561
    words = constants.two_over_pi(8)
    assert sum(w << (32 * (7 - k)) for k, w in enumerate(words)) == known
