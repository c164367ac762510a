"""Which scalar formats are binary floating point with subnormals, and of what widths: what QONNX's
FloatQuant can say."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import numpy as np

from compiler.types.dtypes import Array, custom
from quantize.formats.element import Element, element

WIDEST = 16
"""Bits of the widest formats of which every number is compared."""


@dataclass(frozen=True)
class Minifloat:
    """A sign, `exponent` bits with a `bias`, `mantissa` bits; `most` is the largest number."""

    exponent: int
    mantissa: int
    bias: int
    most: float


@cache
def minifloat_of(name: str) -> Minifloat | None:
    """The format called `name`, with rounding to nearest even and saturation, as a minifloat; None
    if it is none.

    Raises:
        ConfigError: there is no such format.
    """
    e = element(name)
    if e.dtype.bits > WIDEST or e.low != -e.high or math.frexp(e.least)[0] != 0.5:
        return None
    codes = np.arange(1 << e.dtype.bits).astype(e.dtype.storage)
    with np.errstate(all="ignore"):
        values = np.asarray(custom(e.dtype.name).decode(codes, e.dtype), np.float64)
    positive = np.unique(values[np.isfinite(values) & (values > 0)])
    for mantissa in range(e.dtype.bits - 1):
        if np.array_equal(positive, _numbers(e, mantissa)) and _rounds_to_even(e, positive):
            bias = 1 - mantissa - round(math.log2(e.least))
            top = math.frexp(e.high)[1] - 1 + bias  # the largest exponent in use
            return Minifloat(max(top.bit_length(), 1), mantissa, bias, e.high)
    return None


def _numbers(e: Element, mantissa: int) -> Array:
    """float64: the positive numbers of so many bits behind the point, from `least` to `high`."""
    whole = 1 << mantissa
    below = np.arange(1, whole)
    binades = range(math.frexp(e.high)[1] - math.frexp(e.least * whole)[1] + 1)
    rows = [below, *((whole + np.arange(whole)) * 2.0**k for k in binades)]
    numbers = np.concatenate(rows) * e.least
    return np.asarray(numbers[numbers <= e.high])


def _rounds_to_even(e: Element, positive: Array) -> bool:
    """Whether numbers in the middle go to the even neighbour, those beside it to the nearer one,
    and those between the last one and infinity stay there."""
    known = np.concatenate([[0.0], positive])
    low, high = known[:-1], known[1:]
    middle = (low + high) / 2
    even = np.where(np.arange(len(low)) % 2 == 0, low, high)
    beside = np.nextafter(middle, low), np.nextafter(middle, high)
    wanted = ((middle, even), (beside[0], low), (beside[1], high), (-middle, -even))
    return all(np.array_equal(e.rounded(given), value) for given, value in wanted)
