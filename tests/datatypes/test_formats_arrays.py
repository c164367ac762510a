"""The array codec against the exact scalar codec, numpy and ml_dtypes."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from compiler.errors import DtypelabError, InputError
from datatypes.formats import (
    Format,
    as_float,
    binades,
    decode,
    encode,
    get,
    interval_starts,
    list_formats,
    posit,
    value_table,
)

Array = npt.NDArray[Any]

SMALL = [name for name in list_formats() if get(name).nbits <= 8] + [
    *("posit2_es0", "posit3_es1", "posit5_es3", "posit6_es4", "takum5", "float5_e2m2"),
    *("fixed3_0", "fixed2_4"),
]
SIXTEEN = [name for name in list_formats() if get(name).nbits == 16] + [
    "posit16_es3",
    "posit13_es2",
]
WIDE = [
    *("posit32_es2", "posit17_es0", "posit24_es3", "posit32_es5", "float32_e8m23", "float19_e8m10"),
    *("fixed32_16", "fixed24_30", "takum20"),
]
EXTREMES = [0.0, -0.0, math.nan, math.inf, -math.inf, 1e308, -1e308, 5e-324, -5e-324]


class Described:
    """A decoder with nothing but its exact call, so that the generic paths are taken."""

    def __init__(self, decoder: Callable[[int, int], Any]) -> None:
        self.decoder = decoder

    def __call__(self, bits: int, nbits: int) -> Any:
        return self.decoder(bits, nbits)


def neighbours(points: list[float]) -> list[float]:
    """Each point with the float64 just below and just above it."""
    return [
        x for p in points for x in (p, math.nextafter(p, -math.inf), math.nextafter(p, math.inf))
    ]


def boundaries(fmt: Format, orders: list[int]) -> list[float]:
    return neighbours([float(fmt.boundary(order)) for order in orders])


def random_values(fmt: Format, count: int, seed: int = 0) -> list[float]:
    """Normal numbers at scales from below minpos to above maxpos."""
    rng = np.random.default_rng(seed)
    low, high = math.log2(fmt.minpos) - 3, math.log2(fmt.maxpos) + 3
    values: list[float] = (rng.standard_normal(count) * 2 ** rng.uniform(low, high, count)).tolist()
    return values


def assert_same_codes(fmt: Format, values: list[float], got: Array) -> None:
    assert got.dtype == fmt.storage
    wrong = [
        (value, hex(code), hex(fmt.encode_exact(value)))
        for value, code in zip(values, got.tolist(), strict=True)
        if code != fmt.encode_exact(value)
    ]
    assert wrong == []


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", SMALL)
def test_small_formats_exhaustively(name: str) -> None:
    fmt = get(name)
    table = decode(fmt, np.arange(fmt.mask + 1))
    for code, value in enumerate(table.tolist()):
        exact = as_float(fmt.decode_exact(code))
        assert value == exact or (math.isnan(value) and math.isnan(exact))
    values = boundaries(fmt, list(range(fmt.lowest - 1, fmt.highest + 1)))
    values += neighbours(table[np.isfinite(table)].tolist()) + EXTREMES + random_values(fmt, 300)
    assert_same_codes(fmt, values, encode(fmt, np.array(values)))


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", SIXTEEN)
def test_sixteen_bits_against_the_exact_codec(name: str) -> None:
    fmt = get(name)
    rng = np.random.default_rng(1)
    sample = rng.integers(fmt.lowest, fmt.highest, 300).tolist()
    edges = [*range(fmt.lowest - 1, fmt.lowest + 20), *range(-20, 20)]
    edges += range(fmt.highest - 20, fmt.highest + 1)
    values = boundaries(fmt, sample + edges) + EXTREMES + random_values(fmt, 500)
    assert_same_codes(fmt, values, encode(fmt, np.array(values)))
    codes = rng.integers(0, fmt.mask + 1, 2000)
    for code, value in zip(codes.tolist(), decode(fmt, codes).tolist(), strict=True):
        exact = as_float(fmt.decode_exact(code))
        assert value == exact or (math.isnan(value) and math.isnan(exact))


@pytest.mark.sampled(9)
@pytest.mark.parametrize("name", WIDE)
def test_wide_formats_against_the_exact_codec(name: str) -> None:
    fmt = get(name)
    rng = np.random.default_rng(2)
    sample = rng.integers(fmt.lowest, fmt.highest, 100).tolist()
    edges = [*range(fmt.lowest - 1, fmt.lowest + 5), *range(-5, 5)]
    edges += range(fmt.highest - 5, fmt.highest + 1)
    values = boundaries(fmt, sample + edges) + EXTREMES + random_values(fmt, 300)
    assert_same_codes(fmt, values, encode(fmt, np.array(values)))
    codes = np.concatenate([rng.integers(0, fmt.mask + 1, 500), [0, 1, fmt.nan_code, fmt.sign_bit]])
    for code, value in zip(codes.tolist(), decode(fmt, codes).tolist(), strict=True):
        exact = as_float(fmt.decode_exact(code))
        assert value == exact or (math.isnan(value) and math.isnan(exact))


def even_binades(name: str) -> bool:
    """Whether the values of a format are spaced evenly between powers of two."""
    return get(name).negation != "none" and not get(name).logarithmic


@pytest.mark.sampled(18)
@pytest.mark.parametrize("name", [name for name in (*SIXTEEN, *SMALL) if even_binades(name)])
def test_binades_agree_with_the_intervals(name: str) -> None:
    """At both sides of every boundary, which `interval_starts` takes from the exact description."""
    fmt = get(name)
    starts = interval_starts(fmt)
    starts = starts[np.isfinite(starts) & (starts != 0)]
    values = np.concatenate([starts, np.nextafter(starts, -np.inf), np.nextafter(starts, np.inf)])
    values = values[values != 0]
    assert len(values) >= 3 * (fmt.highest - fmt.lowest) - 5
    tables = binades(fmt)
    assert tables is not None
    searched = np.searchsorted(interval_starts(fmt), values, side="right") + fmt.lowest - 1
    rounded = tables.orders(values)
    if fmt.overflow == "saturate":
        rounded = rounded.clip(fmt.lowest, fmt.highest)
    assert np.array_equal(rounded.clip(fmt.lowest - 1, fmt.highest + 1), searched)


@pytest.mark.sampled(9)
@pytest.mark.parametrize("name", SIXTEEN)
def test_decoding_needs_the_description_only(name: str) -> None:
    fmt = get(name)
    plain = dataclasses.replace(fmt, decoder=Described(fmt.decoder))
    assert np.array_equal(value_table(plain), value_table(fmt), equal_nan=True)
    zeros = value_table(fmt)[value_table(fmt) == 0]
    assert np.array_equal(np.signbit(zeros), [False, True][: len(zeros)])


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "name",
    [
        n
        for n in list_formats()
        if n.startswith(("float", "bfloat")) and n != "float16" and not n.endswith("_sat")
    ],
)
def test_against_ml_dtypes(name: str) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    other, fmt = np.dtype(getattr(ml_dtypes, name)), get(name)
    rng = np.random.default_rng(3)
    # float32 patterns: every top half, with low bits that are zero, a tie, beside a tie, random.
    top = np.arange(1 << 16, dtype=np.uint32) << 16
    low = np.concatenate([np.full(1 << 16, k) for k in (0, 1, 0x7FFF, 0x8000, 0x8001)])
    patterns = np.tile(top, 6) | np.concatenate([low, rng.integers(0, 1 << 16, 1 << 16)])
    values = patterns.astype(np.uint32).view(np.float32)
    values = values[~np.isnan(values)]
    with np.errstate(all="ignore"):
        theirs = values.astype(other)
        ours = encode(fmt, values)
        same = ours == theirs.view(fmt.storage)
        if name == "float8_e8m0fnu":
            # ml_dtypes rounds the subnormal float32 just above 2**-127 up, not to nearest.
            same |= (values > 2.0**-127) & (values < 1.5 * 2.0**-127)
        # NaN has many codes; ours is one of them.
        same |= np.isnan(decode(fmt, ours)) & np.isnan(theirs.astype(np.float64))
    assert same.all(), values[~same][:5]
    codes = np.arange(fmt.mask + 1, dtype=fmt.storage)
    mine = decode(fmt, codes)
    with np.errstate(invalid="ignore"):  # signalling NaNs
        theirs = codes.view(other).astype(np.float64)
    assert np.array_equal(mine, theirs, equal_nan=True)
    assert np.array_equal(np.signbit(mine[mine == 0]), [False, True][: (mine == 0).sum()])


@pytest.mark.parametrize(("name", "dtype"), [("float16", "float16"), ("float32_e8m23", "float32")])
def test_against_numpy(name: str, dtype: str) -> None:
    fmt = get(name)
    values = np.array(random_values(fmt, 50000) + EXTREMES)
    with np.errstate(all="ignore"):
        theirs = values.astype(dtype)
    ours = encode(fmt, values)
    assert np.array_equal(ours, theirs.view(fmt.storage))
    assert np.array_equal(decode(fmt, ours), theirs.astype(np.float64), equal_nan=True)


def test_shapes_and_dtypes() -> None:
    fmt = get("posit16_es1")
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    codes = encode(fmt, values)
    assert codes.shape == (2, 3)
    assert codes.dtype == np.uint16
    assert np.array_equal(decode("posit16_es1", codes), values)
    assert decode(fmt, codes, np.float32).dtype == np.float32
    assert np.array_equal(encode(fmt, values.astype(np.int64)), codes)
    assert np.array_equal(encode(fmt, values[:, ::-1]), codes[:, ::-1])
    assert encode(fmt, 1.0).shape == ()
    assert encode(fmt, np.zeros((0, 4))).shape == (0, 4)
    assert decode(fmt, np.zeros((0, 4), np.uint16)).shape == (0, 4)
    assert decode("takum16", encode("takum16", 2.0**200), np.float32) == np.inf


def test_tables_are_shared_and_read_only() -> None:
    fmt = get("posit8_es0")
    assert value_table(fmt) is value_table(posit(8, 0))
    with pytest.raises(ValueError, match="read-only"):
        value_table(fmt)[0] = 1.0


@pytest.mark.sampled(3)
@pytest.mark.parametrize("nbits", [4, 16, 18])
def test_spacings_that_are_no_powers_of_two(nbits: int) -> None:
    """Thirds: no binade starts with a value, and float64 holds no boundary exactly."""

    def third(bits: int, width: int) -> Fraction:
        return Fraction(bits - (1 << width) if bits >> (width - 1) else bits, 3)

    fmt = Format(name="thirds", nbits=nbits, decoder=third, nan_code=0, infinity="saturate")
    assert binades(fmt) is None
    orders = [*range(fmt.lowest - 1, fmt.lowest + 20), *range(-20, 20)]
    orders += range(fmt.highest - 8, fmt.highest + 1)
    values = boundaries(fmt, orders) + EXTREMES
    codes = encode(fmt, np.array(values))
    assert_same_codes(fmt, values, codes)
    assert decode(fmt, codes).tolist() == [as_float(fmt.decode_exact(c)) for c in codes.tolist()]


def test_uneven_binades_are_noticed() -> None:
    """A logarithmic format: every binade starts with a value, and none is evenly spaced."""

    def logarithmic(bits: int, width: int) -> Fraction:
        return Fraction(2) ** (bits // 4 - 8) * [16, 19, 23, 27][bits % 4] if bits else Fraction(0)

    fmt = Format(
        name="uneven",
        nbits=7,
        decoder=lambda b, w: -logarithmic(b & 63, w) if b >> 6 else logarithmic(b, w),
        nan_code=0,
        negation="sign",
        infinity="saturate",
    )
    assert binades(fmt) is None
    values = boundaries(fmt, list(range(fmt.lowest - 1, fmt.highest + 1))) + EXTREMES
    assert_same_codes(fmt, values, encode(fmt, np.array(values)))


def test_bad_input() -> None:
    with pytest.raises(InputError, match="must be integers, got float64"):
        decode("posit8_es0", np.zeros(3))
    with pytest.raises(InputError, match=r"0 \.\. 0xff"):
        decode("posit8_es0", np.array([256]))
    with pytest.raises(InputError, match=r"0 \.\. 0xff"):
        decode("posit8_es0", np.array([-1]))
    with pytest.raises(InputError, match=r"beyond 2\*\*53"):
        encode("posit8_es0", np.array([2**60]))
    with pytest.raises(InputError, match="cannot encode complex128"):
        encode("posit8_es0", np.array([1j]))
    with pytest.raises(DtypelabError, match=r"did you mean .*'posit8_es0'"):
        encode("posit8", 1.0)
