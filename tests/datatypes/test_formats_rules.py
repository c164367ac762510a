"""Rounding rules, codebooks, logarithms, options of floats: the codec against plain definitions."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from variants import VARIANTS

import datatypes
from compiler.errors import DtypelabError, UnsupportedError
from datatypes.arithmetic import logarithms, oracle
from datatypes.formats import (
    Format,
    Power,
    Special,
    decode,
    encode,
    get,
    interval_starts,
    minifloat,
    ordered_values,
    to_ml_dtypes,
)
from datatypes.formats.codebook import codebook
from datatypes.formats.rules import RANDOM_BITS
from datatypes.formats.tables import operation_tables

SMALL = [fmt for fmt in VARIANTS.values() if fmt.nbits <= 8]
WIDER = [fmt for fmt in VARIANTS.values() if fmt.nbits > 8]


def directed(fmt: Format, x: Fraction) -> int | None:
    """Code by the definition of a directed rounding, from the list of all finite values."""
    values = {o: fmt.value(o) for o in range(fmt.lowest, fmt.highest + 1)}
    above = [o for o, v in values.items() if v >= x]
    below = [o for o, v in values.items() if v <= x]
    up = fmt.rounding == "up" or (fmt.rounding == "zero" and x < 0)
    if up:
        order = min(above) if above else None
    else:
        order = max(below) if below else None
    if order is None:
        return fmt.beyond(fmt.overflow, x < 0)
    return fmt.zero(x < 0) if order == 0 else fmt.code(order)


@pytest.mark.thorough
@pytest.mark.parametrize("name", [f.name for f in SMALL if f.rounding in ("zero", "up", "down")])
@given(st.fractions(min_value=-600, max_value=600), st.integers(0, 12))
@settings(deadline=None)
def test_directed_rounding_by_definition(name: str, value: Fraction, halvings: int) -> None:
    fmt = VARIANTS[name]
    value /= 2**halvings
    if value and not (fmt.underflow == "minpos" and abs(value) < fmt.minpos):
        assert fmt.encode_exact(value) == directed(fmt, value)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", [f.name for f in [*SMALL, *WIDER]])
def test_array_codec_follows_the_rules(name: str) -> None:
    """At every value and boundary (or a sample of them), and on either side."""
    fmt = VARIANTS[name]
    rng = np.random.default_rng(1)
    orders = np.arange(fmt.lowest - 1, fmt.highest + 1)
    if len(orders) > 400:
        edges = np.concatenate([orders[:20], orders[-20:], np.arange(-20, 20)])
        orders = np.concatenate([edges, rng.choice(orders, 200)])
    points = [float(fmt.value(o)) for o in orders.tolist()]
    points += [float(fmt.boundary(o)) for o in orders.tolist()]
    beside = [math.nextafter(p, s * math.inf) for p in points for s in (-1, 1)]
    values = np.array([*points, *beside, 0.0, -0.0, math.inf, -math.inf, math.nan, 1e300, -1e300])
    want = [fmt.encode_exact(float(v)) for v in values]
    assert encode(fmt, values).tolist() == want


def test_ties_away_from_zero() -> None:
    fmt = VARIANTS["fixed8_4_nearest_away"]
    assert decode(fmt, encode(fmt, [1 / 32, 3 / 32, -1 / 32, -3 / 32])).tolist() == [
        *(1 / 16, 1 / 8, -1 / 16, -1 / 8)
    ]


def test_directed_overflow_is_that_of_ieee() -> None:
    zero, up = VARIANTS["bfloat16_zero"], VARIANTS["bfloat16_up"]
    most = float(zero.maxpos)
    assert decode(zero, encode(zero, [1e300, -1e300])).tolist() == [most, -most]
    assert decode(up, encode(up, [1e300, -1e300])).tolist() == [math.inf, -most]


# ---- stochastic rounding -------------------------------------------------------------------------
def stochastic(name: str) -> Format:
    return replace(get(name), name=f"{name}_stochastic", rounding="stochastic")


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", ["bfloat16", "posit16_es1", "float8_e5m2", "fixed8_4", "nf4"])
@given(st.data())
@settings(max_examples=60, deadline=None)
def test_stochastic_array_codec_is_the_scalar_one(name: str, data: st.DataObject) -> None:
    fmt = stochastic(name)
    order = data.draw(st.integers(fmt.lowest - 1, fmt.highest))
    low, high = fmt.value(order), fmt.value(order + 1)
    part = data.draw(st.fractions(0, 1))
    value = float(low + part * (high - low))
    threshold = int(part * 2**RANDOM_BITS)
    random = data.draw(
        st.integers(0, 2**RANDOM_BITS - 1)
        | st.sampled_from(
            [min(max(2**RANDOM_BITS - threshold + k, 0), 2**RANDOM_BITS - 1) for k in (-1, 0, 1)]
        )
    )
    shifted = np.array([random << (32 - RANDOM_BITS)], np.uint32)
    got = encode(fmt, np.array([value]), random=shifted)
    assert got.tolist() == [fmt.encode_exact(value, random)]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("value", [1.001, -0.3, 3.9e-6, 1.0])
@pytest.mark.parametrize("name", ["bfloat16", "posit16_es1", "float8_e5m2", "fixed8_4"])
def test_stochastic_mean(name: str, value: float) -> None:
    """Over 10**6 roundings, within 4 standard errors."""
    fmt = stochastic(name)
    count = 1_000_000
    rounded = decode(fmt, encode(fmt, np.full(count, value)))
    error = rounded.std() / math.sqrt(count)
    if fmt.underflow != "minpos" or abs(value) > fmt.minpos:
        assert abs(rounded.mean() - value) <= 4 * error
    assert len(np.unique(rounded)) == (
        1 if value == decode(get(name), encode(get(name), value)) else 2
    )


def test_seeds_differ_and_repeat() -> None:
    values = np.random.default_rng(0).standard_normal(1000)
    codes = [encode(replace(stochastic("bfloat16"), seed=s), values) for s in (0, 0, 1)]
    assert np.array_equal(codes[0], codes[1])
    assert not np.array_equal(codes[0], codes[2])


# ---- codebooks and storage-only formats ----------------------------------------------------------
def test_nf4_rounds_to_the_nearest_of_its_list() -> None:
    fmt = get("nf4")
    table = decode(fmt, np.arange(16))
    values = np.random.default_rng(0).uniform(-1.5, 1.5, 3000)
    nearest = np.abs(values[:, None] - table[None, :]).argmin(1)
    assert np.array_equal(encode(fmt, values), nearest)
    assert encode(fmt, [math.nan, math.inf, 0.0]).tolist() == [7, 15, 7]


@given(st.permutations([-3.0, -1.0, -0.5, 0.0, 0.25, 1.5, 2.0, math.nan]))
@settings(deadline=None)
def test_codebook_order_does_not_matter(values: list[float]) -> None:
    fmt = codebook("any_order", values)
    assert fmt.nan_code == next(i for i, v in enumerate(values) if math.isnan(v))
    for value in (-2.4, -0.7, 0.1, 0.9, 9.0):
        nearest = min((abs(v - value), v) for v in values if not math.isnan(v))[1]
        assert values[int(encode(fmt, value))] == nearest
    got = oracle.apply(fmt, "Mul", np.arange(8)[:, None], np.arange(8)[None, :])
    assert values[got[values.index(1.5), values.index(0.25)]] == 0.25


def test_without_zero_and_without_negatives() -> None:
    fmt = codebook("binary", [1.0, -1.0, 3.0, -3.0])
    assert not fmt.has_zero
    assert decode(fmt, encode(fmt, [0.1, -0.1, 0.0, 9.0])).tolist() == [1.0, -1.0, 1.0, 3.0]
    unsigned = codebook("unsigned", [0.0, 1.0, 2.0, 4.0])
    assert decode(unsigned, encode(unsigned, [-5.0, 0.5, 3.1, 99.0])).tolist() == [0, 0, 4, 4]


def test_scales_only_store() -> None:
    fmt = get("float8_e8m0fnu")
    assert decode(fmt, encode(fmt, [0.75, 1.4, 1.5, -1.0, 0.0])).tolist()[:3] == [1.0, 1.0, 2.0]
    assert encode(fmt, [-1.0, 0.0]).tolist() == [255, 255]
    with pytest.raises(UnsupportedError, match="only stores values"):
        oracle.apply(fmt, "Add", np.array([127]), np.array([127]))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([0.0, 1.0, 2.0], "list 2\\*\\*n"),
        ([0.0, 1.0, 2.0, 1.0], "codes 0x1 and 0x3 both mean 1.0"),
        ([-1.0, -2.0, -3.0, -4.0], "one of them positive"),
    ],
)
def test_bad_codebooks(values: list[float], message: str) -> None:
    with pytest.raises(DtypelabError, match=message):
        codebook("bad", values)


# ---- logarithmic numbers -------------------------------------------------------------------------
@given(st.integers(-300, 300), st.integers(0, 9), st.fractions(Fraction(1, 10**6), 10**6))
@settings(deadline=None)
def test_powers_compare_exactly(numerator: int, shift: int, other: Fraction) -> None:
    exponent = Fraction(numerator, 1 << shift)
    if exponent.denominator == 1:
        return
    power = Power(False, exponent)
    want = math.log2(other.numerator) - math.log2(other.denominator) > exponent
    assert (other > power) == want
    assert (power < other) == want
    assert (-other < -power) == want
    nearest = Fraction(float(power))
    beside = [Fraction(math.nextafter(float(power), s)) for s in (0.0, math.inf)]
    assert beside[0] < power < beside[1]
    assert abs(nearest - beside[0]) > 0


@pytest.mark.parametrize("bits", [20, 100, 157, 158, 159, 160, 161, 400])
def test_powers_compare_exactly_with_their_neighbours_of_any_length(bits: int) -> None:
    below = Fraction(math.isqrt(2 << 2 * bits), 1 << bits)  # of the square root of two
    above = below + Fraction(1, 1 << bits)
    for shift in (-70, 0, 70):
        power, scale = Power(False, Fraction(1, 2) + shift), Fraction(2) ** shift
        assert below * scale < power < above * scale
        assert -above * scale < -power < -below * scale


def test_logarithmic_values_and_rounding() -> None:
    fmt = get("lns8_3")
    assert fmt.decode_exact(64) == 1
    assert fmt.decode_exact(68) == Power(False, Fraction(1, 2))
    assert fmt.decode_exact(128) is Special.NAN
    # 2**(1/16) lies half way between the logarithms 0 and 1/8.
    middle = 2 ** (1 / 16)
    assert encode(fmt, [middle * 0.9999, middle * 1.0001, -middle * 1.0001]).tolist() == [
        *(64, 65, 65 | 128)
    ]
    starts = interval_starts(fmt)
    assert np.array_equal(np.sort(starts), starts)
    assert len(ordered_values(fmt)) == len(starts) + 2


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", ["lns8_3", "lns6_0", "lns7_4"])
def test_logarithmic_sums_are_those_of_interval_arithmetic(name: str) -> None:
    fmt = get(name)
    codes = np.arange(fmt.mask + 1)
    got = oracle.apply(fmt, "Add", codes[:, None], codes[None, :])
    rows = np.random.default_rng(0).choice(codes, 24, replace=False)
    want = [[logarithms.sum_of_codes(fmt, a, b) for b in codes.tolist()] for a in rows.tolist()]
    assert np.array_equal(got[rows], want)
    negated = np.where((codes & (fmt.sign_bit - 1)) == 0, codes, codes ^ fmt.sign_bit)
    assert np.array_equal(oracle.apply(fmt, "Sub", codes[:, None], codes[None, :]), got[:, negated])


@given(st.integers(0, 65535), st.integers(0, 65535))
@settings(deadline=None)
def test_sixteen_bit_logarithmic_sums(a: int, b: int) -> None:
    fmt = get("lns16_8")
    got = oracle.apply(fmt, "Add", np.array([a]), np.array([b]))
    assert got.tolist() == [logarithms.sum_of_codes(fmt, a, b)]


def test_logarithmic_products_and_roots_are_exact() -> None:
    fmt = get("lns8_3")
    codes = np.arange(256)
    x, y = decode(fmt, codes)[:, None], decode(fmt, codes)[None, :]
    with np.errstate(all="ignore"):
        for op, value in (("Mul", x * y), ("Div", x / y)):
            want = encode(fmt, value * np.where(np.isinf(value), math.nan, 1))
            assert np.array_equal(oracle.apply(fmt, op, codes[:, None], codes[None, :]), want)
    root = oracle.apply(fmt, "sqrt", codes)
    assert root[64] == 64
    assert root[68] == 66
    assert root[65] == 64  # a tie of exponents: to the even code
    assert root[67] == 66
    assert root[0] == 0
    assert all(root[129:] == 128)


# ---- options of floats, tables, exchange ---------------------------------------------------------
def test_styles_of_floats() -> None:
    p3109 = VARIANTS["float8_e4m3_p3109"]
    assert decode(p3109, [0x7F, 0xFF, 0x80, 0x7E]).tolist()[:2] == [math.inf, -math.inf]
    assert np.isnan(decode(p3109, [0x80])).all()
    assert p3109.maxpos == 224
    finite = VARIANTS["float8_e5m2_finite"]
    assert finite.maxpos == 7 * 2**14
    assert encode(finite, [math.inf, math.nan]).tolist() == [0x7F, 0x80]
    flushed = VARIANTS["float8_e4m3_flushed"]
    assert flushed.minpos == Fraction(9, 8) / 2**7
    powers = VARIANTS["float5_e4m0_powers"]
    assert decode(powers, [1, 2, 3]).tolist() == [2.0**-6, 2.0**-5, 2.0**-4]
    saturating = VARIANTS["float16_saturating"]
    assert decode(saturating, encode(saturating, [1e9, math.inf])).tolist() == [65504.0] * 2
    with pytest.raises(DtypelabError, match="1 mantissa bit"):
        minifloat(4, 0)


def test_a_table_replaces_an_operation() -> None:
    table = np.random.default_rng(0).integers(0, 256, (256, 256))
    fmt = replace(
        get("fixed8_4"), name="tabled", tables=operation_tables("tabled", 8, {"Mul": table})
    )
    codes = np.arange(256)
    assert np.array_equal(oracle.apply(fmt, "Mul", codes[:, None], codes[None, :]), table)
    assert "Mul" in fmt.irregular
    assert oracle.apply(fmt, "Add", np.array([16]), np.array([16])).tolist() == [32]


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        (
            {"Mul": np.zeros((256, 255), int)},
            r"has shape \(256, 255\), but 8 bits need \(256, 256\)",
        ),
        ({"exp": np.zeros((256, 256), int)}, r"8 bits need \(256,\)"),
        ({"Mul": np.full((256, 256), 256)}, "integers 0 to 255"),
        ({"Mull": np.zeros((256, 256), int)}, "did you mean 'Mul'"),
    ],
)
def test_bad_tables(tables: dict[str, np.ndarray], message: str) -> None:
    with pytest.raises(DtypelabError, match=message):
        operation_tables("mine", 8, tables)


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float4_e2m1fn", "float8_e8m0fnu"])
def test_arrays_of_ml_dtypes(name: str) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    values = np.array([0.5, 1.0, 2.0, 4.0]).astype(getattr(ml_dtypes, name))
    codes = encode(name, values)
    assert np.array_equal(codes, values.view(get(name).storage))
    assert np.array_equal(decode(name, values), [0.5, 1.0, 2.0, 4.0])
    again = to_ml_dtypes(name, codes)
    assert again.dtype == values.dtype
    assert np.array_equal(again.view(np.uint8), values.view(np.uint8))
    with pytest.raises(DtypelabError, match="ml_dtypes has no posit8_es0"):
        to_ml_dtypes("posit8_es0", np.zeros(2, np.uint8))


def test_every_half_precision_number_encodes_as_in_ml_dtypes() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    halves = np.arange(65536, dtype=np.uint16).view(np.float16)
    halves = halves[~np.isnan(halves)]
    for name in datatypes.list_formats():
        if hasattr(ml_dtypes, name):
            with np.errstate(all="ignore"):
                want = halves.astype(getattr(ml_dtypes, name))
            got = to_ml_dtypes(name, encode(name, halves))
            assert np.array_equal(got.astype(float), want.astype(float), equal_nan=True), name
