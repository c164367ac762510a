"""How precise a format is where: the values it has between powers of two."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

from datatypes.formats.binades import exponent_of
from datatypes.formats.description import Format


@dataclass(frozen=True)
class BinadePrecision:
    """The positive values from 2**exponent up to, and without, 2**(exponent + 1).

    Attributes:
        exponent: of the power of two.
        values: how many there are.
    """

    exponent: int
    values: int

    @property
    def bits(self) -> float:
        """Significant bits: a float with p of them has 2**(p-1) values here; 0 if there is none."""
        return 1 + math.log2(self.values) if self.values else 0.0


def precision_profile(fmt: Format) -> list[BinadePrecision]:
    """The precision of every binade from minpos to maxpos."""
    first, last = exponent_of(fmt.minpos), exponent_of(fmt.maxpos)
    starts = [_first_order(fmt, Fraction(2) ** e) for e in range(first, last + 2)]
    return [
        BinadePrecision(first + k, end - start) for k, (start, end) in enumerate(pairwise(starts))
    ]


def _first_order(fmt: Format, value: Fraction) -> int:
    """Order of the least value at or above a positive one; highest + 1 if there is none."""
    low, high = (0 if fmt.has_zero else -1), fmt.highest + 1
    while high - low > 1:
        middle = (low + high) // 2
        if fmt.point(middle) >= value:
            high = middle
        else:
            low = middle
    return high
