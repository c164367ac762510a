"""Numbers C such that (x + C) - C rounds x to a format, and the proof that they do.

The unit in the last place of C is the spacing of the format around x, and addition rounds to
nearest: ties to an even multiple of that spacing if C is even, to an odd one if it is odd. One C
serves a whole binade, which is checked against the format's exact description.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from datatypes.formats import Format, binades
from datatypes.vector.carrier import Carrier

_TINY = Fraction(1, 2**60)


@dataclass(frozen=True)
class Magic:
    """C for one binade: its unit in the last place is 2**unit, and it is odd or even."""

    unit: int
    odd: bool

    def rounds_to(self, x: Fraction) -> Fraction:
        """(x + C) - C."""
        step = Fraction(2) ** self.unit
        steps = x / step
        below = steps.numerator // steps.denominator
        rest = steps - below
        up = rest > Fraction(1, 2) or (rest == Fraction(1, 2) and (below % 2 == 1) != self.odd)
        return (below + up) * step

    def number(self, c: Carrier) -> float:
        """C."""
        return math.ldexp(1.5 * 2.0**c.mantissa + self.odd, self.unit)


def _value(fmt: Format, x: Fraction) -> Fraction | None:
    """What x > 0 rounds to; None beyond the range."""
    order = fmt.nearest(x)
    return fmt.value(order) if order <= fmt.highest else None


def _probes(fmt: Format, exponent: int) -> list[Fraction]:
    """The numbers of a binade next to which its rounding changes, and others."""
    start = Fraction(2) ** exponent
    points = [start, start * (1 + _TINY), start * (2 - _TINY)]
    first = fmt.nearest(start)
    for order in {first - 1, first, first + 1, fmt.nearest(2 * start) - 1, fmt.highest - 1}:
        edge = fmt.boundary(order) if 0 <= order <= fmt.highest else start
        if isinstance(edge, Fraction) and start < edge < 2 * start:
            points += [edge * (1 - _TINY), edge, edge * (1 + _TINY)]
    return points


@lru_cache(maxsize=8192)
def product_magic(fmt: Format, exponent: int, above: Magic | None = None) -> Magic | None:
    """C for products in [2**exponent, 2**(exponent + 1)), after which 0 stands for minpos if the
    format underflows to it; None if there is none.

    The product rounded to the lane may be 2**exponent while the exact one is just below.
    `above`: C of the next binade, which is taken where it serves this one of few values, too.
    """
    lifted = fmt.underflow == "minpos"

    def right(m: Magic, x: Fraction) -> bool:
        result = m.rounds_to(x)
        return (fmt.minpos if lifted and result == 0 else result) == _value(fmt, x)

    below = Fraction(2) ** exponent * (1 - _TINY)
    spaced = spaced_magic(fmt, exponent)
    if spaced is not None:
        return spaced if right(spaced, below) else None
    points = [*_probes(fmt, exponent), below]
    candidates = ([] if above is None else [above]) + _coarse(exponent)
    return next((m for m in candidates if all(right(m, x) for x in points)), None)


@dataclass(frozen=True)
class Scaled:
    """C for one binade, and a power of two that what it rounds to is multiplied by."""

    magic: Magic
    factor: Fraction


def scaled_magic(fmt: Format, exponent: int) -> Scaled | None:
    """The same for products that are exact, without 0 standing for minpos.

    Where all products of the binade become minpos, C rounds them all to the next power of two.
    """
    start = Fraction(2) ** exponent
    if _value(fmt, start) == _value(fmt, start * (2 - _TINY)) == fmt.minpos:
        return Scaled(Magic(exponent + 1, True), fmt.minpos / (2 * start))
    found = product_magic(fmt, exponent)
    if found is None or any(found.rounds_to(x) == 0 for x in _probes(fmt, exponent)):
        return None
    return Scaled(found, Fraction(1))


@lru_cache(maxsize=8192)
def sum_magic(fmt: Format, exponent: int) -> Magic | None:
    """C for sums of two values in [2**exponent, 2**(exponent + 1)); None if there is none.

    Sums are multiples of minpos, of which there are few in the binades next to it.
    """
    spaced = spaced_magic(fmt, exponent)
    if spaced is not None:
        return spaced
    first = Fraction(2) ** exponent / fmt.minpos
    if first < 64:
        points = [k * fmt.minpos for k in range(math.ceil(first), math.ceil(2 * first))]
    else:
        points = _probes(fmt, exponent)

    def right(m: Magic) -> bool:
        return all(m.rounds_to(x) == _value(fmt, x) for x in points)

    return next((m for m in _coarse(exponent) if right(m)), None)


def spaced_magic(fmt: Format, exponent: int) -> Magic | None:
    """C for a binade that the format is evenly spaced in, from a value on until the next one."""
    rounding = binades(fmt)
    assert rounding is not None
    k = exponent - rounding.first
    if not 0 < k < len(rounding.scale) - 1 or rounding.scale[k] == 0:
        return None
    unit, start = 1 - math.frexp(rounding.scale[k])[1], Fraction(2) ** exponent
    if unit > exponent or start < fmt.minpos or 2 * start > fmt.maxpos:
        return None
    return Magic(unit, bool(rounding.shift[k]))


def _coarse(exponent: int) -> list[Magic]:
    """What C may be for a binade with few values in it, or none."""
    units = range(exponent, exponent + 3)
    return [Magic(unit, odd) for unit in units for odd in (False, True)]


def sums_are_safe(fmt: Format, c: Carrier) -> bool:
    """Whether sums of two values may be rounded to the carrier before they are to the format.

    A sum is exact in the carrier unless one operand has bits below the sum's last place there. In
    formats of which the spacing grows with size, that operand then is small: less than a quarter of
    the format's spacing around the sum, provided that all larger values are free of such bits,
    which is tested here. The other operand is a value next to which the sum lies, off any tie.
    """
    rounding = binades(fmt)
    assert rounding is not None
    steps = {
        k + rounding.first: 1 - math.frexp(s)[1] for k, s in enumerate(rounding.scale) if s
    }  # exponent -> log2 of the spacing
    spaced = {e: u for e, u in steps.items() if u <= e}
    if not spaced or sorted(spaced.values()) != [spaced[e] for e in sorted(spaced)]:
        return False
    low = exponent_of(fmt.minpos)
    if min(spaced.values()) < low:
        return False
    return all(
        spaced.get(f, low) >= e - c.mantissa
        for e, u in spaced.items()
        for f in range(u - 2, e + 1)
        if f >= low
    )


def exponent_of(x: Fraction) -> int:
    """Floor of log2 of a positive number."""
    e = x.numerator.bit_length() - x.denominator.bit_length()
    return e if Fraction(2) ** e <= x else e - 1
