"""Operations on lanes against the exact description of every format."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from vector_support import (
    ARITHMETIC,
    BINARY,
    OLDER,
    all_pairs,
    conversion,
    decoder,
    dtype_of,
    encoded,
    encoder,
    operate,
    some_pairs,
    special_codes,
    unary_kernel,
)

from compiler.arithmetic.scalar_functions import UNARY
from compiler.types.dtypes import FLOAT32, FLOAT64, INT32, INT64, UINT8, Array, DType
from datatypes import kernels, vector
from datatypes.arithmetic import oracle
from datatypes.formats import Format, decode, encode, get, list_formats

EXTRA = [
    "posit3_es0", "posit5_es1", "posit6_es3", "posit7_es2", "takum5", "fixed5_5", "fixed6_0",
    "float5_e2m2", "float7_e4m2", "posit10_es1", "posit13_es2", "takum12", "fixed12_5",
    "float12_e5m6", "float16_e6m9",
]  # fmt: skip
WIDE = [
    "posit17_es0", "posit20_es2", "posit24_es1", "posit28_es2", "posit27_es3", "takum17", "takum24",
    "takum29", "takum32", "fixed17_3", "fixed24_8", "fixed32_16", "fixed32_20", "float19_e8m10",
    "float24_e7m16", "float32_e8m23",
]  # fmt: skip
NAMES = [*(name for name in list_formats() if not get(name).irregular), *EXTRA]
SHORT = [n for n in NAMES if get(n).nbits <= 8]
MEDIUM = [n for n in NAMES if 8 < get(n).nbits <= 16]
FEW = ["posit8_es0", "posit16_es1", "posit32_es2", "bfloat16", "float8_e4m3fn", "takum16"]
FUNCTIONS = [f.name for f in UNARY.values() if f.in_formats]
OUTSIDE = np.array([0.0, -0.0, math.inf, -math.inf, math.nan, 1e300, -1e300, 1e-300, -1e-300])


def codes_of(fmt: Format) -> Array:
    """Every code, or some of a wide format."""
    if fmt.nbits <= 16:
        return np.arange(fmt.mask + 1, dtype=fmt.storage)
    return some_pairs(fmt, 3000)[0]


@pytest.mark.sampled(9)
@pytest.mark.parametrize("op", BINARY)
@pytest.mark.parametrize("name", SHORT)
def test_all_pairs_of_short_formats(name: str, op: str) -> None:
    fmt = get(name)
    a, b = all_pairs(fmt)
    np.testing.assert_array_equal(operate(fmt, op, a, b), oracle.apply(fmt, op, a, b))


@pytest.mark.sampled(30)
@pytest.mark.parametrize("op", BINARY)
@pytest.mark.parametrize("name", [*MEDIUM, *WIDE])
def test_pairs_of_longer_formats(name: str, op: str) -> None:
    fmt = get(name)
    a, b = some_pairs(fmt, 20_000)
    np.testing.assert_array_equal(operate(fmt, op, a, b), oracle.apply(fmt, op, a, b))


def _ties(fmt: Format, op: str) -> tuple[Array, Array]:
    """Pairs with exact results in the middle between two values: of every two, if a sum may be."""
    orders = np.arange(1, fmt.highest)
    between = np.array([float(fmt.boundary(int(k))) for k in orders])
    if op == "Mul":
        factors = np.repeat([1.5, 1.25, 1.75, 1.125, 1.375], between.size)
        between = np.tile(between, 5)
        a, b = encode(fmt, between / factors), encode(fmt, factors)
        exact = decode(fmt, a) * decode(fmt, b) == between
    else:
        low = decode(fmt, orders.astype(fmt.storage))
        rest = between - low if op == "Add" else low - between
        a, b = orders.astype(fmt.storage), encode(fmt, rest)
        exact = decode(fmt, b) == rest
    return a[exact], b[exact]


@pytest.mark.sampled(12)
@pytest.mark.parametrize("op", ["Add", "Sub", "Mul"])
@pytest.mark.parametrize("name", ["posit16_es1", "posit16_es2", "bfloat16", "float16", "takum16"])
def test_ties(name: str, op: str) -> None:
    fmt = get(name)
    a, b = _ties(fmt, op)
    assert a.size > (500 if op == "Mul" else 20_000)
    for x, y in ((a, b), (_negated(fmt, a), _negated(fmt, b) if op != "Mul" else b)):
        np.testing.assert_array_equal(operate(fmt, op, x, y), oracle.apply(fmt, op, x, y))


def _negated(fmt: Format, codes: Array) -> Array:
    if fmt.negation == "sign":
        return codes ^ fmt.storage.type(fmt.sign_bit)
    return (-codes.astype(np.int64) & fmt.mask).astype(fmt.storage)


@pytest.mark.parametrize("op", ["Add", "Sub", "Mul", "Div"])
def test_wide_results_next_to_a_tie(op: str) -> None:
    """Results whose float64 neighbour is a tie that the exact result is not."""
    fmt = get("posit32_es2")
    one, rng = int(encode(fmt, 1.0)), np.random.default_rng(8)
    a, b = ((one + rng.integers(0, 1 << 27, 30_000)).astype(np.uint32) for _ in range(2))
    if op in ("Add", "Sub"):
        b = rng.integers(1, 1 << 20, 30_000).astype(np.uint32)
    np.testing.assert_array_equal(operate(fmt, op, a, b), oracle.apply(fmt, op, a, b))


@pytest.mark.sampled(54)
@pytest.mark.parametrize("fn", FUNCTIONS)
@pytest.mark.parametrize("name", [*NAMES, *WIDE])
def test_functions(name: str, fn: str) -> None:
    fmt = get(name)
    if fmt.nbits > 16 and fn == "rsqrt":
        pytest.skip("defined up to 16 bits")
    codes = codes_of(fmt)
    got = encoded(fmt, unary_kernel(name, fn, "llvm")(vector.lane_array(fmt, codes)))
    if fmt.nbits <= 16 or fn in oracle.ROUNDINGS:
        want = oracle.apply(fmt, fn, codes)
    else:
        want = kernels.operate(fn, dtype_of(fmt), codes)
    np.testing.assert_array_equal(got, want)


@pytest.mark.sampled(10)
@pytest.mark.parametrize("name", [*NAMES, *WIDE])
def test_codes_and_lanes(name: str) -> None:
    fmt = get(name)
    codes = codes_of(fmt)
    lanes = vector.lane_array(fmt, codes)
    np.testing.assert_array_equal(lanes.astype(np.float64), decode(fmt, codes))
    got = decoder(name)(codes)
    np.testing.assert_array_equal(got.view(f"u{got.itemsize}"), lanes.view(f"u{got.itemsize}"))
    want = np.where(np.isnan(lanes), fmt.nan_code, codes)
    np.testing.assert_array_equal(encoder(name)(lanes), want)
    zeros = np.array([0.0, -0.0], lanes.dtype)
    np.testing.assert_array_equal(encoder(name)(zeros), [0, fmt.zero(True)])


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", [*NAMES, *WIDE])
def test_conversions_into_a_format(name: str) -> None:
    fmt, rng = get(name), np.random.default_rng(4)
    scale = 2.0 ** rng.uniform(-140, 140, 3000)
    wide = np.concatenate([rng.standard_normal(3000) * scale, rng.standard_normal(3000), OUTSIDE])
    values = decode(fmt, codes_of(fmt))
    ends = np.unique(values[np.isfinite(values)])
    middle = ends[1:] / 2 + ends[:-1] / 2
    wide = np.concatenate([wide, middle, np.nextafter(middle, np.inf), np.nextafter(middle, 0)])
    payloads = np.array([0x7FFFFFFF, 0xFFFFFFFF, 0x7FC00001], np.uint32).view(np.float32)
    with np.errstate(over="ignore"):
        single = np.concatenate([wide.astype(np.float32), payloads])
    sources: list[tuple[DType, Array]] = [
        (FLOAT64, wide),
        (FLOAT32, single),
        (INT32, rng.integers(-(2**31), 2**31, 3000).astype(np.int32)),
        (INT64, rng.integers(-(2**63), 2**63, 3000, dtype=np.int64)),
        (UINT8, np.arange(256, dtype=np.uint8)),
    ]
    for source, numbers in sources:
        exact = oracle.integers_to_float64(numbers) if numbers.dtype.kind in "iu" else numbers
        got = encoded(fmt, conversion(name, source, None, "llvm")(numbers))
        np.testing.assert_array_equal(got, encode(fmt, exact), err_msg=str(source))


@pytest.mark.sampled(9)
@pytest.mark.parametrize("name", [*NAMES, *WIDE])
def test_conversions_out_of_a_format(name: str) -> None:
    fmt = get(name)
    codes = codes_of(fmt)
    lanes = vector.lane_array(fmt, codes)
    lanes = np.concatenate([lanes, np.array([-0.0], lanes.dtype)])
    codes = np.append(codes, fmt.storage.type(fmt.zero(True)))
    for dest in (FLOAT64, FLOAT32, INT32, DType.parse("bool")):
        want = kernels.convert(codes, dtype_of(fmt), dest)
        got = conversion(name, None, dest, "llvm")(lanes)
        np.testing.assert_array_equal(got, want, err_msg=str(dest))
        if dest.is_float:
            np.testing.assert_array_equal(np.signbit(got), np.signbit(want))


@pytest.mark.sampled(6)
@pytest.mark.parametrize("target", OLDER)
@pytest.mark.parametrize("name", FEW)
def test_older_targets(name: str, target: str) -> None:
    fmt = get(name)
    a, b = some_pairs(fmt, 3000)
    for op in BINARY:
        want = oracle.apply(fmt, op, a, b)
        np.testing.assert_array_equal(operate(fmt, op, a, b, target=target), want, err_msg=op)
    lanes = vector.lane_array(fmt, a)
    back = encoder(name, target)(decoder(name, target)(a))
    np.testing.assert_array_equal(back, np.where(np.isnan(lanes), fmt.nan_code, a))
    root = encoder(name)(unary_kernel(name, "sqrt", target)(lanes))
    np.testing.assert_array_equal(root, kernels.operate("sqrt", dtype_of(fmt), a))


@pytest.mark.thorough
@given(st.data())
@settings(max_examples=40, deadline=None)
def test_any_codes_of_any_family(data: Any) -> None:
    fmt = get(data.draw(families()))
    op = data.draw(st.sampled_from(ARITHMETIC))
    codes = arrays(fmt.storage, 200, elements=st.integers(0, fmt.mask))
    a, b = data.draw(codes), data.draw(codes)
    a, b = np.append(a, special_codes(fmt)), np.append(b, special_codes(fmt)[::-1])
    np.testing.assert_array_equal(operate(fmt, op, a, b), oracle.apply(fmt, op, a, b))


@st.composite
def families(draw: Any) -> str:
    """Names of formats of all families."""
    family = draw(st.sampled_from(["posit", "float", "fixed", "takum"]))
    if family == "float":
        e, m = draw(st.integers(2, 7)), draw(st.integers(1, 12))
        return f"float{1 + e + m}_e{e}m{m}"
    bits = draw(st.integers(3, 32))
    if family == "posit":
        return f"posit{bits}_es{draw(st.integers(0, 3))}"
    if family == "fixed":
        return f"fixed{bits}_{draw(st.integers(0, 20))}"
    return f"takum{max(bits, 5)}"
