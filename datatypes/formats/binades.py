"""Rounding by binades: what turns the exact description of a format into fast array arithmetic.

Between two powers of two the values of a number format are evenly spaced, or so sparse that one
comparison settles the matter (a posit whose exponent bits are cut off). Either way the order of a
positive x in [2**e, 2**(e+1)) is

    base[e] + rint(x * scale[e] - shift[e])

with `rint` to nearest even, and every step exact in float64 but the rounding itself. Formats that
round otherwise have `rint` replaced. The tables come from the format's exact description alone,
which is asked whether the formula holds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from datatypes.formats.description import Format
from datatypes.formats.rules import Rounding

Array = npt.NDArray[Any]

_BLOCK = 1 << 14
"""Numbers rounded at a time, so that the intermediate arrays stay in the processor's cache."""


@dataclass(frozen=True, eq=False)
class Binades:
    """The tables, one entry per exponent from `first` up.

    The entry at either end stands for all smaller and all larger numbers.

    Attributes:
        rounding: of the format; "zero" for stochastic rounding, which starts from there.
        first: exponent e of entry 0.
        scale: float64[n], a power of two: 1 / spacing of the values; 0 where the order is constant.
        shift: float64[n], 1 where ties would go to the odd order without it, else 0.
        base: float64[n], the order that the count of steps starts from.
        least: the order of the smallest results: 1 where nothing rounds to zero, else 0.
    """

    rounding: Rounding
    first: int
    scale: Array
    shift: Array
    base: Array
    least: int

    def orders(self, values: Array) -> Array:
        """int64 orders nearest to finite, nonzero float64 values, 1-d; may lie beyond the range."""
        orders = np.empty(values.shape, np.int64)
        last = len(self.base) - 1
        for start in range(0, len(values), _BLOCK):
            block = values[start : start + _BLOCK]
            magnitude = np.abs(block)
            entry = (magnitude.view(np.int64) >> 52) - (1023 + self.first)
            np.clip(entry, 0, last, out=entry)
            magnitude *= self.scale.take(entry)
            magnitude -= self.shift.take(entry)
            self._round(magnitude, block)
            magnitude += self.base.take(entry)
            np.maximum(magnitude, self.least, out=magnitude)
            orders[start : start + _BLOCK] = np.copysign(magnitude, block)
        return orders

    def _round(self, steps: Array, values: Array) -> None:
        """Replace magnitudes, counted in steps, by integers."""
        if self.rounding == "nearest":
            np.rint(steps, out=steps)
        elif self.rounding == "nearest_away":
            whole = np.floor(steps)
            np.add(whole, steps - whole >= 0.5, out=steps)
        elif self.rounding == "zero":
            np.floor(steps, out=steps)
        else:
            away = np.signbit(values) == (self.rounding == "down")
            np.copyto(steps, np.where(away, np.ceil(steps), np.floor(steps)))


@lru_cache(maxsize=64)
def binades(fmt: Format) -> Binades | None:
    """The tables of a format; None if the formula does not hold in one of its binades.

    That the spacing within a binade is even is checked at its two ends and at distances of powers
    of two from its first value.
    """
    if fmt.negation == "none" or fmt.logarithmic:
        return None
    to_nearest = fmt.rounding.startswith("nearest")
    rounding = "zero" if fmt.rounding == "stochastic" else fmt.rounding
    least = 1 if fmt.underflow == "minpos" else 0
    # The first binade with numbers that may round to minpos, and the last with finite values.
    first, last = exponent_of(fmt.minpos / (2 - least)), exponent_of(fmt.maxpos)
    entries = [(0.0 if to_nearest else math.ldexp(1.0, -first), 0, 0 if not to_nearest else least)]
    other = _sparse if to_nearest else _single
    for exponent in range(first, last + 1):
        entry = _spaced(fmt, exponent) or other(fmt, exponent)
        if entry is None:
            return None
        entries.append(entry)
    entries.append((0.0, 0, fmt.highest + 1))
    scale, shift, base = (np.array(column, np.float64) for column in zip(*entries, strict=True))
    return Binades(rounding, first - 1, scale, shift, base, least)


Entry = tuple[float, int, int]


def _spaced(fmt: Format, exponent: int) -> Entry | None:
    """Scale, shift and base of a binade that starts with a value and is evenly spaced."""
    start = Fraction(2) ** exponent
    first = fmt.nearest(start)
    if not 1 <= first <= fmt.highest:
        return None
    if first == 1 and start < fmt.minpos and fmt.underflow == "minpos":
        first = 0  # a takum starts one step after the power of two
    elif fmt.value(first) != start:
        return None
    if first < fmt.highest:
        spacing = fmt.value(first + 1) - start
    else:
        spacing = start - fmt.value(first - 1)
    steps = start / spacing
    if steps.denominator != 1 or steps.numerator & (steps.numerator - 1):
        return None
    count = steps.numerator
    final = min(first + count - 1, fmt.highest)
    probes = [first + (1 << i) for i in range(count.bit_length()) if 1 << i < count]
    for order in [*(probe for probe in probes if probe < final), final]:
        if fmt.value(order) != start + (order - first) * spacing:
            return None
    for order in (max(first, 1), final) if fmt.rounding.startswith("nearest") else ():
        saturated = order == fmt.highest and fmt.overflow == "saturate"
        if not saturated and fmt.boundary(order) != fmt.value(order) + spacing / 2:
            return None
    # x * scale counts from 0 at x = 0, so first is step number `count`; parities must agree.
    shift = (first - count) % 2
    return float(1 / spacing), shift, first - count + shift


def _sparse(fmt: Format, exponent: int) -> Entry | None:
    """The same for a binade whose numbers all round alike, but for the power of two itself."""
    start = Fraction(2) ** exponent
    at_start = fmt.rounded(start)
    above, below_end = fmt.rounded(start * (1 + _TINY)), fmt.rounded(start * (2 - _TINY))
    if above != below_end or above - at_start not in (0, 1):
        return None
    if at_start == above:
        return 0.0, 0, above
    return math.ldexp(1.0, -1 - exponent), 0, at_start  # rint(1/2) is 0; above 1/2 it is 1


def _single(fmt: Format, exponent: int) -> Entry | None:
    """The same, where no half-way point counts, for a binade with no value after its start."""
    start = Fraction(2) ** exponent
    below = fmt.nearest(start)
    while fmt.value(below) > start:
        below -= 1
    if below < fmt.highest and fmt.value(below + 1) < 2 * start:
        return None
    if fmt.value(below) == start:
        return float(1 / start), 0, below - 1
    return float(1 / (2 * start)), 0, below


_TINY = Fraction(1, 2**60)  # less than float64 tells apart


def exponent_of(value: Fraction) -> int:
    """Floor of log2 of a positive value."""
    exponent = value.numerator.bit_length() - value.denominator.bit_length()
    return exponent if Fraction(2) ** exponent <= value else exponent - 1
