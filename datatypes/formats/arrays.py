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

from compiler.errors import InputError
from datatypes.formats.binades import binades
from datatypes.formats.catalogue import get
from datatypes.formats.description import Format, Overflow, as_float

Array = npt.NDArray[Any]

TABLE_BITS = 16
"""Widest format whose codes are enumerated."""


@runtime_checkable
class ArrayDecoder(Protocol):
    """A decoder that also works on whole arrays. It must agree with its exact scalar twin."""

    def values(self, bits: Array, fmt: Format) -> Array:
        """float64 values of an integer array of codes, NaN and infinities included."""
        ...


def encode(fmt: Format | str, array: npt.ArrayLike) -> Array:
    """Codes nearest to the numbers of `array`, each rounded once by the format's rules.

    Args:
        fmt: the format or its name.
        array: any shape; float16/32/64, bool, or integers that float64 holds.

    Returns:
        Array of `fmt.storage`, same shape.

    Raises:
        InputError: the dtype is another one, or an integer exceeds 2**53.
        DtypelabError: no format of this name.
    """
    fmt = get(fmt)
    values = _as_float64(fmt, array)
    rounding = binades(fmt)
    if rounding is None and fmt.nbits > TABLE_BITS:
        exact = (fmt.encode_exact(float(value)) for value in values.flat)
        return np.fromiter(exact, fmt.storage, values.size).reshape(values.shape)
    ordinary = np.isfinite(values) & (values != 0)
    numbers = np.where(ordinary, values, 1.0)
    if rounding is not None:
        orders = rounding.orders(numbers.ravel()).reshape(values.shape)
    else:
        orders = np.searchsorted(interval_starts(fmt), numbers, side="right") + (fmt.lowest - 1)
    negative = np.signbit(values)
    if fmt.negation == "complement":
        codes = orders & fmt.mask
    else:
        codes = np.where(orders < 0, -orders | fmt.sign_bit, orders)
    if fmt.signed_zero:
        codes = np.where((orders == 0) & negative, fmt.sign_bit, codes)
    beyond = (orders < fmt.lowest) | (orders > fmt.highest)
    codes = np.where(beyond, _beyond(fmt, fmt.overflow, negative), codes)
    if not ordinary.all():
        codes = np.where(values == 0, np.where(negative, fmt.zero(True), 0), codes)
        codes = np.where(np.isinf(values), _beyond(fmt, fmt.infinity, negative), codes)
        codes = np.where(np.isnan(values), fmt.nan_code, codes)
    return codes.astype(fmt.storage)


def decode(fmt: Format | str, bits: npt.ArrayLike, dtype: npt.DTypeLike = np.float64) -> Array:
    """Values of an array of codes.

    Args:
        fmt: the format or its name.
        bits: integer array of any shape; bits above `fmt.nbits` must be zero.
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
def interval_starts(fmt: Format) -> Array:
    """Read-only, increasing float64 array: the first number of each code's interval.

    Entry i is the smallest float64 that rounds to order `fmt.lowest + i` or above; where the format
    overflows rather than saturates, the last entry is where that begins.
    """
    last = fmt.highest if fmt.overflow == "saturate" else fmt.highest + 1
    first = fmt.lowest + 1 if fmt.overflow == "saturate" else fmt.lowest
    starts = [
        _first_float(fmt.boundary(k - 1), inclusive=k % 2 == 0) for k in range(first, last + 1)
    ]
    if fmt.overflow == "saturate":
        starts.insert(0, -math.inf)
    table = np.array(starts)
    table.flags.writeable = False
    return table


def _array_decoder(fmt: Format) -> ArrayDecoder | None:
    """The format's own array arithmetic, if it brings any."""
    code: object = fmt.decoder
    return code if isinstance(code, ArrayDecoder) else None


def _first_float(boundary: Fraction, *, inclusive: bool) -> float:
    """Smallest float64 above `boundary`, or at it if `inclusive`."""
    nearest = float(boundary)
    exact = Fraction(nearest)
    if exact < boundary or (exact == boundary and not inclusive):
        return math.nextafter(nearest, math.inf)
    return nearest


def _beyond(fmt: Format, rule: Overflow, negative: Array) -> Array:
    """Codes of values beyond the range, by their sign."""
    return np.where(negative, fmt.beyond(rule, True), fmt.beyond(rule, False))


def _as_float64(fmt: Format, array: npt.ArrayLike) -> Array:
    values = np.asarray(array)
    if values.dtype.kind == "f" and values.dtype.itemsize <= 8:
        return np.asarray(values, np.float64)
    if values.dtype.kind in "iub":
        exact = values.astype(np.float64)
        if values.size == 0 or float(np.abs(exact).max()) <= 2.0**53:
            return exact
        raise InputError(f"integers beyond 2**53 cannot be encoded in {fmt.name}; pass float64")
    raise InputError(f"cannot encode {values.dtype} in {fmt.name}; pass float32 or float64")
