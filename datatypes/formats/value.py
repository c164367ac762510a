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
        size = abs(Fraction(other))
        apart = float(self.exponent) - math.log2(size.numerator) + math.log2(size.denominator)
        if abs(apart) > _SURE:
            return -1 if (apart < 0) != self.negative else 1
        # |other| against 2**(p/q): its q-th power against 2**p.
        p, q = self.exponent.numerator, self.exponent.denominator
        powered = size**q
        target = Fraction(2) ** p
        larger = (target > powered) - (target < powered)
        return -larger if self.negative else larger

    def _key(self) -> tuple[int, Fraction]:
        return (-1, -self.exponent) if self.negative else (1, self.exponent)


_SURE = 1e-6
"""Logarithms that differ by more are told apart in float64, which has them to 1e-12."""

Number = Fraction | Power
ZERO = Fraction(0)
Value = Number | Special


@lru_cache(maxsize=1 << 17)
def _significand(exponent: Fraction) -> float:
    """The float64 nearest to 2**exponent, for 0 <= exponent < 1."""
    context = Context(prec=60)
    decimal = context.divide(Decimal(exponent.numerator), Decimal(exponent.denominator))
    return float(context.power(Decimal(2), decimal))


def as_float(value: Value) -> float:
    """float64 nearest to an exact value."""
    return float(value.value) if isinstance(value, Special) else float(value)
