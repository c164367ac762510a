"""Compiled scalar operations of every built-in format against its exact description."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from variants import VARIANTS, defined_variants

from compiler.arithmetic.scalar_functions import UNARY
from compiler.errors import DtypelabError, LoweringError, UnsupportedError
from compiler.types.dtypes import FLOAT32, FLOAT64, INT32, INT64, UINT8, Array, DType, custom
from datatypes import kernels
from datatypes.arithmetic import mathfun, oracle
from datatypes.formats import Format, decode, encode, get, list_formats

EXTRA = ["lns12_7", "lns5_1", "posit31_es2", "posit10_es1", "takum12", "fixed12_5", "float12_e5m6"]
WIDE = [
    "posit17_es0", "posit20_es2", "posit24_es1", "posit28_es2", "posit27_es3", "takum17", "takum24",
    "takum29", "fixed17_3", "fixed24_8", "fixed32_16", "fixed32_20", "float19_e8m10",
    "float24_e7m16", "float32_e8m23",
]  # fmt: skip
COMPUTING = [name for name in list_formats() if not get(name).storage_only]
FORMATS = [*COMPUTING, *EXTRA, *WIDE, *VARIANTS]
BINARY = ("Add", "Sub", "Mul", "Div", "Max", "Min", "LT", "LE", "GT", "GE", "EQ", "NE")
FUNCTIONS = [f.name for f in UNARY.values() if f.in_formats]
OUTSIDE = np.array([0.0, -0.0, math.inf, -math.inf, math.nan, 1e300, -1e300, 1e-300, -1e-300])


__all__ = ["defined_variants"]


def dtype_of(fmt: Format) -> DType:
    return DType.parse(f"custom[{fmt.name}]{fmt.nbits}")


def some_codes(fmt: Format, seed: int, count: int) -> Array:
    """Half of them anywhere, half near 1, and every special one."""
    rng = np.random.default_rng(seed)
    anywhere = rng.integers(0, fmt.mask + 1, count // 2)
    near = encode(fmt, rng.standard_normal(count // 2) * 2.0 ** rng.integers(-3, 4, count // 2))
    edges = [0, 1, fmt.mask, fmt.sign_bit, fmt.nan_code, fmt.highest, fmt.code(fmt.lowest)]
    return rng.permutation(np.concatenate([anywhere, near, edges]).astype(fmt.storage))


def slow_functions(name: str) -> bool:
    """Whether most results are near to a boundary, so that tables take seconds to fill."""
    fmt = VARIANTS.get(name) or get(name)
    return fmt.rounding in ("zero", "up", "down") and fmt.nbits == 16


@pytest.mark.sampled(96)
@pytest.mark.parametrize("op", BINARY)
@pytest.mark.parametrize("name", FORMATS)
def test_binary_operations(name: str, op: str) -> None:
    fmt = get(name)
    a, b = some_codes(fmt, 1, 4000), some_codes(fmt, 2, 4000)
    want = oracle.apply(fmt, op, a, b)
    np.testing.assert_array_equal(kernels.operate(op, dtype_of(fmt), a, b), want)


@pytest.mark.sampled(30)
@pytest.mark.parametrize("fn", FUNCTIONS)
@pytest.mark.parametrize("name", [n for n in FORMATS if not slow_functions(n)])
def test_functions(name: str, fn: str) -> None:
    fmt = get(name)
    a = np.arange(fmt.mask + 1) if fmt.nbits <= 8 else some_codes(fmt, 3, 2000)
    got = kernels.operate(fn, dtype_of(fmt), a)
    want = oracle.apply(fmt, fn, a) if UNARY[fn].integral else mathfun.apply(fmt, fn, a)
    if fmt.nbits <= 16 or UNARY[fn].exact:
        np.testing.assert_array_equal(got, want)
    else:  # one float64 function, then one rounding
        steps = np.abs(got.astype(np.int64) - want.astype(np.int64))
        assert steps.max() <= 1
        assert (steps == 0).mean() > (0.99 if fmt.rounding == "nearest" else 0.5)


@pytest.mark.sampled(24)
@pytest.mark.parametrize("name", FORMATS)
def test_conversions(name: str) -> None:
    fmt = get(name)
    dtype, rng = dtype_of(fmt), np.random.default_rng(4)
    scale = 2.0 ** rng.uniform(-140, 140, 3000)
    wide = np.concatenate([rng.standard_normal(3000) * scale, rng.standard_normal(3000), OUTSIDE])
    with np.errstate(over="ignore"):
        single = wide.astype(np.float32)
    sources: list[tuple[DType, Array]] = [
        (FLOAT64, wide),
        (FLOAT32, single),
        (INT32, rng.integers(-(2**31), 2**31, 3000).astype(np.int32)),
        (INT64, rng.integers(-(2**63), 2**63, 3000, dtype=np.int64)),
        (UINT8, np.arange(256, dtype=np.uint8)),
    ]
    for source, values in sources:
        want = custom(name).encode(values, dtype)
        np.testing.assert_array_equal(kernels.convert(values, source, dtype), want)
    codes = some_codes(fmt, 5, 3000)
    np.testing.assert_array_equal(kernels.convert(codes, dtype, FLOAT64), decode(fmt, codes))
    with np.errstate(over="ignore"):
        values = decode(fmt, codes).astype(np.float32)
    np.testing.assert_array_equal(kernels.convert(codes, dtype, FLOAT32), values)


@pytest.mark.thorough
@given(st.data())
@settings(max_examples=60, deadline=None)
def test_any_codes_of_any_format(data: Any) -> None:
    fmt = get(data.draw(st.sampled_from(FORMATS)))
    op = data.draw(st.sampled_from(BINARY))
    codes = arrays(fmt.storage, 8, elements=st.integers(0, fmt.mask))
    a, b = data.draw(codes), data.draw(codes)
    want = oracle.apply(fmt, op, a, b)
    np.testing.assert_array_equal(kernels.operate(op, dtype_of(fmt), a, b), want)


# ---- the oracle itself, against exact rationals --------------------------------------------------
def exactly(fmt: Format, op: str, a: int, b: int) -> int | None:
    """Code of a op b by rational arithmetic; None where an operand or the result is no number."""
    x, y = fmt.decode_exact(a), fmt.decode_exact(b)
    if not isinstance(x, Fraction) or not isinstance(y, Fraction) or (op == "Div" and y == 0):
        return None
    result = {"Add": x + y, "Sub": x - y, "Mul": x * y}[op] if op != "Div" else x / y
    return fmt.encode_exact(result)


@pytest.mark.sampled(90)
@pytest.mark.parametrize("op", oracle.ARITHMETIC)
@pytest.mark.parametrize("name", FORMATS)
def test_oracle_is_exact(name: str, op: str) -> None:
    fmt = get(name)
    a, b = some_codes(fmt, 6, 400), some_codes(fmt, 7, 400)
    got = oracle.apply(fmt, op, a, b)
    for x, y, z in zip(a.tolist(), b.tolist(), got.tolist(), strict=True):
        want = exactly(fmt, op, x, y)
        if want == fmt.zero(False):  # a rational zero has no sign
            assert z in (want, fmt.zero(True)), (hex(x), hex(y))
        elif want is not None:
            assert z == want, (hex(x), hex(y))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("op", ["Add", "Mul", "Div"])
def test_wide_results_next_to_a_tie(op: str) -> None:
    """Sums, products and quotients whose float64 result is a tie that the exact result is not."""
    fmt = get("posit32_es2")
    one = encode(fmt, 1.0)
    rng = np.random.default_rng(8)
    a = (int(one) + rng.integers(0, 1 << 27, 3000)).astype(np.uint32)
    b = (int(one) + rng.integers(0, 1 << 27, 3000)).astype(np.uint32)
    if op == "Add":
        b = rng.integers(1, 1 << 20, 3000).astype(np.uint32)  # far below the last place of a
    got = oracle.apply(fmt, op, a, b)
    want = [exactly(fmt, op, x, y) for x, y in zip(a.tolist(), b.tolist(), strict=True)]
    assert got.tolist() == want


def test_round_to_odd_matters() -> None:
    """Products of 28-bit significands just above a tie, which is what float64 rounds them to."""
    fmt = get("posit32_es2")
    pairs = []
    for a in range((3 << 26) + 1, (3 << 26) + 4000, 2):
        b = ((1 << 27) + 1) * pow(a, -1, 1 << 28) % (1 << 28)
        if b >= 1 << 27 and a * b >= 1 << 55:
            pairs.append((a, b))
    assert len(pairs) > 100
    values = np.array(pairs) / 2.0**27
    a, b = encode(fmt, values[:, 0]), encode(fmt, values[:, 1])
    want = [exactly(fmt, "Mul", x, y) for x, y in zip(a.tolist(), b.tolist(), strict=True)]
    assert oracle.apply(fmt, "Mul", a, b).tolist() == want
    assert encode(fmt, values[:, 0] * values[:, 1]).tolist() != want
    np.testing.assert_array_equal(kernels.operate("Mul", dtype_of(fmt), a, b), want)


def test_bfloat16_subnormal_results_round_once() -> None:
    """Every pair of significands, for quotients and products around the smallest normal number."""
    fmt = get("bfloat16")
    fractions = np.arange(128)
    for op, exponent in (("Mul", lambda k: 65 - k), ("Div", lambda k: 190 + k)):
        for k in range(-2, 10):
            a = (60 << 7 | fractions).astype(np.uint16)[:, None]
            b = (exponent(k) << 7 | fractions).astype(np.uint16)[None, :]
            want = oracle.apply(fmt, op, a, b)
            np.testing.assert_array_equal(kernels.operate(op, dtype_of(fmt), a, b), want)


@pytest.mark.slow
@pytest.mark.parametrize("op", BINARY)
@pytest.mark.parametrize("name", [n for n in FORMATS if (VARIANTS.get(n) or get(n)).nbits <= 8])
def test_all_pairs(name: str, op: str) -> None:
    fmt = get(name)
    codes = np.arange(fmt.mask + 1)
    want = oracle.apply(fmt, op, codes[:, None], codes[None, :])
    np.testing.assert_array_equal(
        kernels.operate(op, dtype_of(fmt), codes[:, None], codes[None, :]), want
    )


def test_lowered_loops_mean_the_same_in_the_interpreter() -> None:
    """The expressions that code is generated from, walked over numpy arrays instead."""
    from compiler.interpret import loop_nests
    from compiler.lowering.custom_dtypes import lower_custom_dtypes
    from compiler.symbolic import Index
    from compiler.tensor.builder import PrimBuilder
    from compiler.tensor.expr import BinOp

    for name in ("bfloat16", "takum16", "float8_e4m3fn", "posit24_es1", "fixed32_16", "takum24"):
        fmt = get(name)
        dtype, builder = dtype_of(fmt), PrimBuilder("f")
        x, y = (builder.input(n, (40,), dtype) for n in "xy")

        def product(i: Index, x: Any = x, y: Any = y, dtype: DType = dtype) -> BinOp:
            return BinOp("Mul", x[i], y[i], dtype)

        out = builder.compute("out", (40,), dtype, product)
        lowered, _ = lower_custom_dtypes(builder.finish([out]), "llvm")
        a, b = some_codes(fmt, 9, 60)[:40], some_codes(fmt, 10, 60)[:40]
        got = np.zeros(40, fmt.storage)
        loop_nests.run(lowered, [a, b, got])
        np.testing.assert_array_equal(got, oracle.apply(fmt, "Mul", a, b))


# ---- rules --------------------------------------------------------------------------------------
def test_exp_of_posits_neither_overflows_nor_vanishes() -> None:
    for name in ("posit8_es0", "posit16_es1", "posit16_es2", "posit32_es2"):
        fmt = get(name)
        x = encode(fmt, np.array([1000.0, -1000.0]))
        assert kernels.operate("exp", dtype_of(fmt), x).tolist() == [fmt.highest, 1], name


def test_nan_propagates_through_max_and_min() -> None:
    for name in ("posit16_es1", "posit10_es1", "bfloat16", "float8_e4m3fn", "posit32_es2"):
        fmt = get(name)
        nan, number = np.array([fmt.nan_code]), encode(fmt, np.array([-1.0]))
        for op in ("Max", "Min"):
            assert kernels.operate(op, dtype_of(fmt), nan, number) == fmt.nan_code
            assert kernels.operate(op, dtype_of(fmt), number, nan) == fmt.nan_code


def test_comparisons_with_nar_and_nan() -> None:
    posit, bfloat = get("posit16_es1"), get("bfloat16")
    nar, nan = np.array([posit.nan_code]), np.array([bfloat.nan_code])
    low = np.array([posit.code(posit.lowest)])
    assert kernels.operate("EQ", dtype_of(posit), nar, nar)
    assert kernels.operate("LT", dtype_of(posit), nar, low)
    assert not kernels.operate("EQ", dtype_of(bfloat), nan, nan)
    assert kernels.operate("NE", dtype_of(bfloat), nan, nan)


def test_what_has_no_lowering_is_named() -> None:
    with pytest.raises(LoweringError, match=r"Mul of custom\[posit32_es4\]32 .*register_op"):
        kernels.operate("Mul", DType.parse("custom[posit32_es4]32"), np.array([1]), np.array([1]))
    with pytest.raises(LoweringError, match=r'sin of .* intrinsic_name="sin"'):
        kernels.operate("sin", dtype_of(get("posit16_es1")), np.array([1]))


def test_wrong_width_is_refused() -> None:
    with pytest.raises(DtypelabError, match=r"has 16 bits; write custom\[posit16_es1\]"):
        kernels.operate("Add", DType.parse("custom[posit16_es1]8"), np.array([1]), np.array([1]))


def test_functions_of_wide_formats_are_not_in_the_array_oracle() -> None:
    with pytest.raises(UnsupportedError, match="exp of posit32_es2"):
        oracle.apply(get("posit32_es2"), "exp", np.array([1]))
