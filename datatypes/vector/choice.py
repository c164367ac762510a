"""Which float holds a format's values in compiled code, and which its arithmetic is done in."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache

import numpy as np

from datatypes.arithmetic import oracle
from datatypes.builtin import decoding
from datatypes.formats import Format, binades, value_table
from datatypes.formats.fixed import FixedCode
from datatypes.formats.minifloat import FloatCode
from datatypes.vector.carrier import DOUBLE, SINGLE, Carrier


@dataclass(frozen=True)
class Lanes:
    """How a format is computed with in lanes.

    Attributes:
        lane: holds every value of the format exactly.
        arithmetic: an operation on values rounds to it, and then to the format, as one rounding to
            the format would.
        odd: whether that takes rounding to odd first.
        reason: why these, in words that continue "because".
    """

    lane: Carrier
    arithmetic: Carrier
    odd: bool
    reason: str


@lru_cache(maxsize=256)
def lanes(fmt: Format) -> Lanes | str:
    """The choice for a format, or in words why it has none.

    Two roundings, to a carrier of 2 p + 2 bits or more and then to the p bits of the format, equal
    one (S. Figueroa, "When is double rounding innocuous?", 1995) if no result leaves the carrier's
    normal range on its way.
    """
    if fmt.rounding == "zero" and (found := _truncating(fmt)) is not None:
        return found
    if fmt.irregular:
        return fmt.irregular
    if fmt.nbits > decoding.TABLE_BITS and not decoding.has_family(fmt):
        return "its codes of more than 16 bits are decoded by a function, not by an expression"
    if binades(fmt) is None:
        return "its values are not evenly spaced between powers of two"
    if fmt.lowest != -fmt.highest and not isinstance(fmt.decoder, FixedCode):
        return "its negative values are not those of its positive ones"
    precision = significant_bits(fmt)
    lane = SINGLE if _fits_single(fmt, precision) else DOUBLE
    held = f"float{lane.dtype.bits} holds its {precision} significant bits"
    if _harmless_in_single(fmt, precision):
        return Lanes(lane, SINGLE, False, f"{held}, and float32 operations round harmlessly")
    if not oracle.float64_range(fmt):
        return "its products and quotients leave the range of float64"
    if oracle.double_rounding_is_innocuous(fmt):
        return Lanes(lane, DOUBLE, False, f"{held}, and float64 operations round harmlessly")
    return Lanes(lane, DOUBLE, True, f"{held}, and float64 operations are rounded to odd first")


def _truncating(fmt: Format) -> Lanes | None:
    """The lanes of a float that rounds toward zero: those of the same float that rounds to nearest;
    None for other formats."""
    family: object = fmt.decoder
    near = lanes(to_nearest(fmt))
    floats = isinstance(family, FloatCode) and family.subnormals and fmt.lowest == -fmt.highest
    if isinstance(near, str) or not floats or not oracle.float64_range(fmt):
        return None
    reason = f"float{near.lane.dtype.bits} holds its values, and float64 operations are rounded "
    return Lanes(near.lane, DOUBLE, True, reason + "to odd first, then toward zero")


@lru_cache(maxsize=256)
def to_nearest(fmt: Format) -> Format:
    """The format, rounding to nearest."""
    return replace(fmt, rounding="nearest")


def chosen(fmt: Format) -> Lanes:
    """The choice for a format that has one."""
    found = lanes(fmt)
    assert isinstance(found, Lanes), found
    return found


@lru_cache(maxsize=256)
def significant_bits(fmt: Format) -> int:
    """Most significant bits of any value."""
    if fmt.nbits > 16:
        at = (Fraction(1), fmt.maxpos)
        return max(oracle.significant_bits(fmt, x) for x in at)
    values = value_table(fmt)
    fractions = np.frexp(values[np.isfinite(values) & (values != 0)])[0]
    integers = np.abs(fractions * 2.0**53).astype(np.int64)
    return 53 - int(np.log2((integers & -integers).min()))


def is_short_single(fmt: Format) -> bool:
    """Whether the format is float32 with fewer bits, p (bfloat16), and at most a third of them.

    Two roundings then equal one down to the subnormals: a product is at least half of minpos,
    2**(-126 - p), or rounds to zero; its last place then is 2**(-125 - 3 p) or more, which float32
    has.
    """
    family: object = fmt.decoder
    return (
        isinstance(family, FloatCode)
        and family.style == "ieee"
        and family.subnormals
        and fmt.overflow == fmt.infinity == "inf"
        and (family.exponent, family.bias) == (8, SINGLE.bias)
        and 3 * (family.mantissa + 1) <= SINGLE.significant
    )


def _fits_single(fmt: Format, precision: int) -> bool:
    """Whether float32 holds every value: also the subnormals, which have fewer bits."""
    finest = min(fmt.minpos, fmt.value(min(2, fmt.highest)) - fmt.value(min(1, fmt.highest - 1)))
    inside = fmt.maxpos < Fraction(2) ** 128 and finest >= Fraction(1, 2**149)
    return inside and precision <= SINGLE.significant


def _harmless_in_single(fmt: Format, precision: int) -> bool:
    """Whether float32 operations may be rounded again. In fixed point a product within the range
    is exact and a quotient not too near to a tie (see `oracle.double_rounding_is_innocuous`)."""
    if is_short_single(fmt):
        return True
    family: object = fmt.decoder
    if isinstance(family, FixedCode):
        enough = fmt.nbits + family.fraction < SINGLE.significant
    else:
        enough = 2 * precision + 2 <= SINGLE.significant
    top, bottom = Fraction(2) ** SINGLE.bias, Fraction(2) ** (1 - SINGLE.bias)
    largest, least = fmt.maxpos, fmt.minpos
    if not enough or max(largest * largest, largest / least) >= top:
        return False
    vanishes = fmt.underflow == "zero" and least / 64 >= bottom
    return vanishes or min(least * least, least / largest) >= bottom
