"""Exact values of codes: fractions, powers of two with a fractional exponent, and non-numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import Context, Decimal
from enum import Enum
from fractions import Fraction
from functools import lru_cache


class Special(Enum):
    """Values that are not numbers. A posit's NaR counts as NAN."""

    NAN = "nan"
    INF = "inf"
    NEG_INF = "-inf"


@dataclass(frozen=True)
class Power:
    """2**exponent, or its negative: the value of a logarithmic code, irrational as a rule.

    It compares exactly with fractions and other powers. Whole exponents are written as Fractions.
    """

    negative: bool
    exponent: Fraction

    def __lt__(self, other: Number) -> bool:
        return self._compare(other) < 0

    def __le__(self, other: Number) -> bool:
        return self._compare(other) <= 0

    def __gt__(self, other: Number) -> bool:
        return self._compare(other) > 0

    def __ge__(self, other: Number) -> bool:
        return self._compare(other) >= 0

    def __neg__(self) -> Power:
        return Power(not self.negative, self.exponent)

    def __float__(self) -> float:
        """The nearest float64."""
        whole = math.floor(self.exponent)
        magnitude = math.ldexp(_significand(self.exponent - whole), whole)
        return -magnitude if self.negative else magnitude

    def _compare(self, other: Number) -> int:
        if isinstance(other, Power):
            mine, theirs = self._key(), other._key()
            return (mine > theirs) - (mine < theirs)
        if other == 0 or (other < 0) != self.negative:
            return -1 if self.negative else 1
        larger = self._magnitude_against(abs(Fraction(other)))
        return -larger if self.negative else larger

    def _magnitude_against(self, size: Fraction) -> int:
        """1, 0, -1: 2**exponent is larger than `size`, equal, smaller."""
        whole = math.floor(self.exponent)
        units = _scaled(self.exponent - whole)  # 2**exponent is this, or 1 more or less, times unit
        number, unit = size.numerator << _BITS, size.denominator
        number, unit = (number, unit << whole) if whole >= 0 else (number << -whole, unit)
        if (units - 1) * unit > number:
            return 1
        if (units + 1) * unit < number:
            return -1
        # 2**(p/q) against size: 2**p against its q-th power.
        p, q = self.exponent.numerator, self.exponent.denominator
        powered, target = size**q, Fraction(2) ** p
        return (target > powered) - (target < powered)

    def _key(self) -> tuple[int, Fraction]:
        return (-1, -self.exponent) if self.negative else (1, self.exponent)


_DIGITS = Context(prec=60)
_BITS = 160
"""After the point, of what a power is first compared by."""

Number = Fraction | Power
ZERO = Fraction(0)
Value = Number | Special


@lru_cache(maxsize=1 << 17)
def _significand(exponent: Fraction) -> float:
    """The float64 nearest to 2**exponent, for 0 <= exponent < 1."""
    return float(_power_of_two(exponent))


@lru_cache(maxsize=1 << 17)
def _scaled(exponent: Fraction) -> int:
    """2**(exponent + _BITS), for 0 <= exponent < 1, less than 1 off."""
    return int(_DIGITS.multiply(_power_of_two(exponent), Decimal(1 << _BITS)))


def _power_of_two(exponent: Fraction) -> Decimal:
    """2**exponent, correct to 60 digits."""
    decimal = _DIGITS.divide(Decimal(exponent.numerator), Decimal(exponent.denominator))
    return _DIGITS.power(Decimal(2), decimal)


def as_float(value: Value) -> float:
    """float64 nearest to an exact value."""
    return float(value.value) if isinstance(value, Special) else float(value)
