"""The array codec: numpy arrays to and from the codes of a format.

Decoding looks values up in a table of up to 2**16 entries; wider formats bring array arithmetic of
their own (`ArrayDecoder`). Encoding rounds by binades (`datatypes.formats.binades`). A format whose
values are spaced in no such way is encoded, if it has up to 16 bits, by searching the sorted list
of the first float64 number of every code's interval (`interval_starts`), in which ties are settled
when it is made. What has none of these is coded number by number, exactly and slowly.
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import lru_cache
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from compiler.errors import DtypelabError, InputError
from datatypes.formats.binades import binades
from datatypes.formats.catalogue import get
from datatypes.formats.description import Format
from datatypes.formats.randomness import random_bits
from datatypes.formats.rules import RANDOM_BITS, Overflow
from datatypes.formats.value import Number, Power, as_float

Array = npt.NDArray[Any]

TABLE_BITS = 16
"""Widest format whose codes are enumerated."""


@runtime_checkable
class ArrayDecoder(Protocol):
    """A decoder that also works on whole arrays. It must agree with its exact scalar twin."""

    def values(self, bits: Array, fmt: Format) -> Array:
        """float64 values of an integer array of codes, NaN and infinities included."""
        ...


def encode(
    fmt: Format | str, array: npt.ArrayLike, random: npt.NDArray[np.unsignedinteger] | None = None
) -> Array:
    """Codes of the numbers of `array`, each rounded once by the format's rules.

    Args:
        fmt: the format or its name.
        array: any shape; float16/32/64, a dtype of ml_dtypes, bool, or integers that float64 holds.
        random: for stochastic rounding, uint32 of that shape whose upper `RANDOM_BITS` bits count;
            without it, they are those of node 0, step 0 (`datatypes.formats.randomness`).

    Returns:
        Array of `fmt.storage`, same shape.

    Raises:
        InputError: the dtype is another one, or an integer exceeds 2**53.
        DtypelabError: no format of this name.
    """
    fmt = get(fmt)
    values = _as_float64(fmt, array)
    if fmt.nbits > TABLE_BITS and binades(fmt) is None:
        exact = (fmt.encode_exact(float(value)) for value in values.flat)
        return np.fromiter(exact, fmt.storage, values.size).reshape(values.shape)
    ordinary = np.isfinite(values) & (values != 0)
    numbers = np.where(ordinary, values, 1.0)
    orders = _orders(fmt, numbers, random)
    negative = np.signbit(values)
    codes = codes_of_orders(fmt, orders, negative)
    if not ordinary.all():
        codes = np.where(values == 0, np.where(negative, fmt.zero(True), fmt.zero(False)), codes)
        codes = np.where(np.isinf(values), _beyond(fmt, fmt.infinity, negative), codes)
        codes = np.where(np.isnan(values), fmt.nan_code, codes)
    return codes.astype(fmt.storage)


def codes_of_orders(fmt: Format, orders: Array, negative: Array) -> Array:
    """Codes of rounded, nonzero numbers of the given orders and signs; beyond the range by the
    format's rule for overflow."""
    if fmt.negation == "complement":
        codes = orders & fmt.mask
    elif fmt.negation == "sign":
        codes = np.where(orders < 0, -orders | fmt.sign_bit, orders)
    else:
        codes = sorted_codes(fmt)[np.clip(orders, fmt.lowest, fmt.highest) - fmt.lowest]
    if fmt.signed_zero:
        codes = np.where((orders == 0) & negative, fmt.sign_bit, codes)
    beyond = (orders < fmt.lowest) | (orders > fmt.highest)
    return np.where(beyond, _beyond(fmt, fmt.overflow, negative), codes)


def _orders(fmt: Format, numbers: Array, random: Array | None) -> Array:
    """Orders that finite, nonzero numbers round to; beyond the range where they overflow."""
    if fmt.rounding == "stochastic":
        if random is None:
            random = random_bits(fmt.seed, 0, np.arange(numbers.size), 0).reshape(numbers.shape)
        return _stochastic(fmt, numbers, random >> (32 - RANDOM_BITS))
    rounding = binades(fmt)
    if rounding is None:
        return np.searchsorted(interval_starts(fmt), numbers, side="right") + (fmt.lowest - 1)
    orders: Array = rounding.orders(numbers.ravel()).reshape(numbers.shape)
    # Numbers beyond the range stay there only if they are rounded away from zero.
    least = fmt.lowest if fmt.rounding in ("zero", "up") else None
    most = fmt.highest if fmt.rounding in ("zero", "down") else None
    return orders if least is most is None else np.clip(orders, least, most)


def _stochastic(fmt: Format, numbers: Array, random: Array) -> Array:
    """`Format.rounded` for stochastic rounding: one comparison, whose sides are exact."""
    values = ordered_values(fmt)
    below = np.searchsorted(values[1:-1], numbers, side="right")
    low, high = values[below], values[below + 1]
    part = np.where(numbers > 0, numbers - low, high - numbers)
    away = part * 2.0**RANDOM_BITS >= (high - low) * (2.0**RANDOM_BITS - random)
    orders = below + (fmt.lowest - 1) + (away == (numbers > 0))
    if fmt.underflow == "minpos":
        first = 1 if fmt.has_zero else 0
        orders = np.where(numbers > 0, np.maximum(orders, first), np.minimum(orders, -1))
    return np.asarray(
        np.clip(orders, fmt.lowest, fmt.highest) if fmt.overflow == "saturate" else orders
    )


def decode(fmt: Format | str, bits: npt.ArrayLike, dtype: npt.DTypeLike = np.float64) -> Array:
    """Values of an array of codes.

    Args:
        fmt: the format or its name.
        bits: integer array of any shape; bits above `fmt.nbits` must be zero. An array in the dtype
            of ml_dtypes of the same name will do too.
        dtype: float64 holds every value exactly; float32 rounds to nearest where it does not, and
            gives infinity beyond its range.

    Returns:
        Array of `dtype`, same shape. NaR and NaN give NaN.

    Raises:
        InputError: `bits` are not integers, or not codes of this format.
        DtypelabError: no format of this name.
    """
    fmt = get(fmt)
    codes = np.asarray(bits)
    if ml_dtype(codes.dtype) == fmt.name:
        codes = codes.view(fmt.storage)
    if codes.dtype.kind not in "ui":
        raise InputError(f"codes of {fmt.name} must be integers, got {codes.dtype}")
    if codes.size and (int(codes.min()) < 0 or int(codes.max()) > fmt.mask):
        raise InputError(f"codes of {fmt.name} must lie within 0 .. {fmt.mask:#x}")
    array_decoder = _array_decoder(fmt)
    if fmt.nbits <= TABLE_BITS:
        values = value_table(fmt)[codes]
    elif array_decoder is not None:
        values = array_decoder.values(codes, fmt)
    else:
        exact = (as_float(fmt.decode_exact(int(code))) for code in codes.flat)
        values = np.fromiter(exact, np.float64, codes.size).reshape(codes.shape)
    with np.errstate(over="ignore"):
        return np.asarray(values, dtype)


@lru_cache(maxsize=64)
def value_table(fmt: Format) -> Array:
    """Read-only float64[2**nbits]: the value of every code of a format of at most 16 bits."""
    codes = range(fmt.mask + 1)
    array_decoder = _array_decoder(fmt)
    if array_decoder is not None:
        table = array_decoder.values(np.array(codes), fmt)
    else:
        table = np.array([as_float(fmt.decode_exact(bits)) for bits in codes])
        if fmt.signed_zero:
            table[fmt.sign_bit] = -0.0
    table.flags.writeable = False
    return table


@lru_cache(maxsize=64)
def sorted_codes(fmt: Format) -> Array:
    """Read-only array of the codes number `fmt.lowest` to `fmt.highest`, of at most 16 bits."""
    codes = np.array([fmt.code(order) for order in range(fmt.lowest, fmt.highest + 1)])
    codes.flags.writeable = False
    return codes


@lru_cache(maxsize=64)
def ordered_values(fmt: Format) -> Array:
    """Read-only, increasing float64 array: the values number `fmt.lowest` - 1 to `fmt.highest` + 1.

    The first and the last lie one step beyond the range (`Format.point`).
    """
    inner = value_table(fmt)[sorted_codes(fmt)]
    ends = float(fmt.value(fmt.lowest - 1)), float(fmt.value(fmt.highest + 1))
    values = np.concatenate([ends[:1], inner, ends[1:]])
    values.flags.writeable = False
    return values


@lru_cache(maxsize=64)
def interval_starts(fmt: Format) -> Array:
    """Read-only, increasing float64 array: the first number of each code's interval.

    Entry i is the smallest float64 that rounds to order `fmt.lowest + i` or above; where the format
    overflows rather than saturates, the last entry is where that begins. Not for stochastic
    rounding.
    """
    saturates = fmt.overflow == "saturate"
    starts = []
    for order in range(fmt.lowest, fmt.highest + (1 if saturates else 2)):
        start = fmt.start(order)
        if start is None or (saturates and order == fmt.lowest):
            starts.append(-math.inf if order == fmt.lowest else math.inf)
        else:
            starts.append(_first_float(*start))
    table = np.array(starts)
    table.flags.writeable = False
    return table


def _array_decoder(fmt: Format) -> ArrayDecoder | None:
    """The format's own array arithmetic, if it brings any."""
    code: object = fmt.decoder
    return code if isinstance(code, ArrayDecoder) else None


def _first_float(boundary: Number, inclusive: bool) -> float:
    """Smallest float64 above `boundary`, or at it if `inclusive`."""
    if isinstance(boundary, Power):  # irrational: it is not a float64 itself
        whole = math.floor(boundary.exponent)
        above = math.ldexp(_above_power(boundary.exponent - whole), whole)
        return -math.nextafter(above, 0) if boundary.negative else above
    nearest = float(boundary)
    exact = Fraction(nearest)
    if exact < boundary or (exact == boundary and not inclusive):
        return math.nextafter(nearest, math.inf)
    return nearest


@lru_cache(maxsize=1 << 17)
def _above_power(exponent: Fraction) -> float:
    """Smallest float64 above 2**exponent, for 0 < exponent < 1."""
    power = Power(False, exponent)
    nearest = float(power)
    return nearest if power < Fraction(nearest) else math.nextafter(nearest, math.inf)


def _beyond(fmt: Format, rule: Overflow, negative: Array) -> Array:
    """Codes of values beyond the range, by their sign."""
    return np.where(negative, fmt.beyond(rule, True), fmt.beyond(rule, False))


def _as_float64(fmt: Format, array: npt.ArrayLike) -> Array:
    values = np.asarray(array)
    if ml_dtype(values.dtype):
        return values.astype(np.float64)
    if values.dtype.kind == "f" and values.dtype.itemsize <= 8:
        return np.asarray(values, np.float64)
    if values.dtype.kind in "iub":
        exact = values.astype(np.float64)
        if values.size == 0 or float(np.abs(exact).max()) <= 2.0**53:
            return exact
        raise InputError(f"integers beyond 2**53 cannot be encoded in {fmt.name}; pass float64")
    raise InputError(f"cannot encode {values.dtype} in {fmt.name}; pass float32 or float64")


def ml_dtype(dtype: np.dtype[Any]) -> str:
    """Name of a dtype of ml_dtypes, which is that of our format; empty for any other dtype."""
    return dtype.name if dtype.type.__module__ == "ml_dtypes" and "float" in dtype.name else ""


def to_ml_dtypes(fmt: Format | str, bits: npt.ArrayLike) -> Array:
    """The same values as an array in the dtype of ml_dtypes (float16: numpy's) for the format.

    Args:
        fmt: a format that ml_dtypes has, or its name.
        bits: its codes, as `encode` gives them. They are not copied.

    Raises:
        DtypelabError: ml_dtypes is not installed, or has no such format.
    """
    fmt = get(fmt)
    codes = np.asarray(bits, fmt.storage)
    if fmt.name == "float16":
        return codes.view(np.float16)
    try:
        import ml_dtypes
    except ImportError:
        raise DtypelabError(
            "this needs ml_dtypes; install dtypelab with its extra ml_dtypes"
        ) from None
    scalar = getattr(ml_dtypes, fmt.name, None)
    if scalar is None:
        raise DtypelabError(f"ml_dtypes has no {fmt.name}; decode it to float32 instead")
    return codes.view(np.dtype(scalar))
