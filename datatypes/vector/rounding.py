"""Rounding a float to a format, as an expression whose result is a float again.

Adding a number C of which the unit in the last place is the spacing of the format, and subtracting
it again, rounds to nearest; an odd C makes ties go to the odd multiple. What C is depends on the
binade that the number lies in. Three ways to have it:

- short floats (bfloat16): no C; the lower bits of float32 are rounded away in integer arithmetic;
- formats of even precision (floats with gradual underflow, fixed point): a multiple of the power of
  two below the number, with a lower bound;
- all others (posits, takums): tables by exponent. In binades too sparse for the format to be evenly
  spaced in them, two more tables turn the count that C rounds to into one of two values.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from compiler.lowering.tables import table
from compiler.tensor.expr import Buffer, Expr, Gather, binary, cast, let, maximum, minimum, select
from compiler.types.dtypes import INT64
from datatypes.formats import Binades, Format, as_float, binades
from datatypes.vector.carrier import (
    FAR,
    SINGLE,
    Carrier,
    at_least,
    at_most,
    carrier_of,
    is_nan,
    magnitude,
    with_sign,
)
from datatypes.vector.choice import chosen, is_short_single, significant_bits, to_nearest

Array = npt.NDArray[Any]


def rounded(fmt: Format, x: Expr, outside: bool = False) -> Expr:
    """The format's value nearest to `x`, in the same float dtype.

    Args:
        fmt: a format that has lanes.
        x: float32, where that may be the format's arithmetic (see `choice`), or float64.
        outside: whether x may be anything. Without it, x is the sum, difference or product of two
            values, rounded to the carrier.
    """
    return let(x, lambda x: _finished(fmt, x, outside), "x")


def _finished(fmt: Format, x: Expr, outside: bool) -> Expr:
    """`_nearest`, and the rules for numbers beyond the range, infinities and NaN."""
    c = carrier_of(x.dtype)
    if fmt.rounding == "zero":
        nearest = _truncated(fmt, x)
        return select(is_nan(x), c.number(nan_value(fmt)), nearest) if outside else nearest
    short = x.dtype == SINGLE.dtype and is_short_single(fmt)
    if short:
        nearest = _shortened(fmt, x)
    else:
        nearest = _nearest(fmt, clamped(fmt, x))
        if fmt.overflow != "saturate":
            over = magnitude(x) > c.number(largest_kept(fmt, c))
            nearest = select(over, _beyond(fmt, fmt.overflow, x), nearest)
    if outside:
        if fmt.infinity != fmt.overflow:
            infinite = magnitude(x).equal(float("inf"))
            nearest = select(infinite, _beyond(fmt, fmt.infinity, x), nearest)
        kept = uniform(fmt) is not None and not short and np.isnan(nan_value(fmt))
        if not kept:  # NaN is not NaN already
            nearest = select(is_nan(x), c.number(nan_value(fmt)), nearest)
    return nearest


def clamped(fmt: Format, x: Expr) -> Expr:
    """x within the range, if what lies beyond saturates."""
    if fmt.overflow != "saturate":
        return x
    low, high = float(fmt.value(fmt.lowest)), float(fmt.maxpos)
    if fmt.lowest == -fmt.highest and tables_of(fmt) is not None:
        return x  # its magnitude is clamped later
    return at_most(at_least(x, low), high)


def _beyond(fmt: Format, rule: str, x: Expr) -> Expr:
    """What a number beyond the range becomes under a rule."""
    c = carrier_of(x.dtype)
    if rule == "nan":
        return c.number(nan_value(fmt))
    return with_sign(c.number(float("inf") if rule == "inf" else float(fmt.maxpos)), x)


def nan_value(fmt: Format) -> float:
    """What NaN becomes: NaN, or the value that stands in for it."""
    value = as_float(fmt.decode_exact(fmt.nan_code))
    return -0.0 if value == 0 and fmt.signed_zero and fmt.nan_code == fmt.sign_bit else value


def largest_kept(fmt: Format, c: Carrier) -> float:
    """Largest number of the carrier that does not overflow."""
    boundary = fmt.boundary(fmt.highest)
    limit = float(boundary)
    assert Fraction(limit) == boundary
    if fmt.highest % 2 == 0:  # a tie goes to the even one, which is maxpos
        return limit
    return float(np.nextafter(c.dtype.storage.type(limit), c.dtype.storage.type(0)))


def _truncated(fmt: Format, x: Expr) -> Expr:
    """The value toward zero: the nearest, or, where that is further from zero than x, the one
    before it."""
    c, spacing = carrier_of(x.dtype), uniform(to_nearest(fmt))
    assert spacing is not None  # or the format has no lanes
    most = float(fmt.maxpos)

    def cut(y: Expr, big: Expr) -> Expr:
        def before(nearest: Expr) -> Expr:
            step = with_sign(big * (2.0**-c.mantissa / 1.5), y)
            return select(magnitude(nearest) > magnitude(y), nearest - step, nearest)

        return let((y + big) - big, before, "nearest")

    def value(y: Expr) -> Expr:
        out = let(even_c(to_nearest(fmt), spacing, y), lambda big: cut(y, big), "c")
        return with_sign(out, y) if fmt.signed_zero else out

    inside = let(at_most(at_least(x, -most), most), value, "y")
    infinite = magnitude(x).equal(float("inf"))
    return select(infinite, _beyond(fmt, fmt.infinity, x), inside)


# ---- short floats --------------------------------------------------------------------------------
def _shortened(fmt: Format, x: Expr) -> Expr:
    """Half of the last place is added to the bits of a float32, a bit less on ties to even."""
    dropped = SINGLE.mantissa - (fmt.nbits - 9)

    def nearest(bits: Expr) -> Expr:
        odd = binary("NE", bits & (1 << dropped), 0)
        half = bits + ((1 << (dropped - 1)) - 1)
        return SINGLE.value(select(odd, half + 1, half) & -(1 << dropped))

    return let(SINGLE.bits(x), nearest, "bits")


# ---- formats of even precision -------------------------------------------------------------------
@dataclass(frozen=True)
class Uniform:
    """The spacing of a format is 2**-fraction of the power of two below a number, but at least
    `finest`."""

    fraction: int
    finest: Fraction


@lru_cache(maxsize=256)
def uniform(fmt: Format) -> Uniform | None:
    """The spacing of a format of even precision; None for other formats."""
    rounding = binades(fmt)
    if rounding is None or rounding.least or rounding.shift.any():
        return None
    steps = {e: 1 / Fraction(s) for e, s in enumerate(rounding.scale, rounding.first) if s}
    finest = fmt.minpos
    widest = max(Fraction(2) ** e / step for e, step in steps.items())
    if widest < 1:
        return None
    if any(step != max(Fraction(2) ** e / widest, finest) for e, step in steps.items()):
        return None
    return Uniform(widest.numerator.bit_length() - 1, finest)


def _nearest(fmt: Format, x: Expr) -> Expr:
    """NaN of NaN, and perhaps of what overflows and does not saturate: C may be infinite there."""
    spacing = uniform(fmt)
    if spacing is None:
        return _by_tables(fmt, x)

    def nearest(x: Expr) -> Expr:
        r = let(even_c(fmt, spacing, x), lambda big: (x + big) - big, "c")
        return with_sign(r, x) if fmt.signed_zero else r

    return let(x, nearest, "x")


def even_c(fmt: Format, spacing: Uniform, x: Expr) -> Expr:
    """C for x."""
    c = carrier_of(x.dtype)
    factor = 1.5 * 2.0 ** (c.mantissa - spacing.fraction)
    least = spacing.finest * 2**spacing.fraction  # below this power of two the spacing is constant
    if fmt.overflow == "saturate" and fmt.maxpos <= 2 * least:
        return c.number(float(least) * factor)
    floor = np.array(float(least), c.dtype.storage).view(c.integer.storage)
    power = maximum(c.bits(x) & c.exponents, int(floor))
    return c.value(power) * factor


# ---- all others ----------------------------------------------------------------------------------
@dataclass(frozen=True)
class Tables:
    """By exponent from `first` on, the ends standing for all beyond: a magnitude y rounds to
    ((y + c) - c) * factor + base.

    `c` is for a carrier, in whose dtype the arrays are. `last` is the number of the last entry.
    """

    first: int
    last: int
    c: Buffer
    factor: Buffer
    base: Buffer


def _by_tables(fmt: Format, x: Expr) -> Expr:
    c = carrier_of(x.dtype)
    t = carrier_tables(fmt, c)

    def entry(y: Expr) -> Expr:
        exponent = (c.bits(y) >> c.mantissa) - (c.bias + t.first)
        return cast(minimum(maximum(exponent, 0), t.last), INT64)

    def nearest(y: Expr, at: Expr) -> Expr:
        count = let(Gather(t.c, at), lambda big: (y + big) - big, "c")
        value = count * Gather(t.factor, at) + Gather(t.base, at)
        if fmt.underflow == "minpos":
            value = select(y.equal(0.0), y, at_least(value, float(fmt.minpos)))
        return with_sign(value, x)

    y = magnitude(x)
    if fmt.overflow == "saturate":
        y = at_most(y, float(fmt.maxpos))
    return let(y, lambda y: let(entry(y), lambda at: nearest(y, at), "entry"), "y")


def tables_of(fmt: Format) -> Binades | None:
    """The binades of a format that is rounded by tables; None for other formats."""
    return binades(fmt) if uniform(fmt) is None else None


@lru_cache(maxsize=256)
def rounds_in_single(fmt: Format) -> bool:
    """Whether any float64 may be rounded to float32, to odd, before it is rounded to the format;
    and the tables for that are so small that they stay in registers."""
    choice = chosen(fmt)
    if choice.lane != SINGLE or choice.arithmetic == SINGLE or tables_of(fmt) is None:
        return False
    far = Fraction(FAR)
    inside = fmt.maxpos * 4 < far and fmt.minpos * far > 4
    short = significant_bits(fmt) + 2 <= SINGLE.significant
    return inside and short and carrier_tables(fmt, SINGLE).last < 128


@lru_cache(maxsize=256)
def products_in_single(fmt: Format) -> bool:
    """Whether sums and products of two values are normal numbers of float32, or zero."""
    unit = fmt.minpos * Fraction(2) ** (1 - significant_bits(fmt))  # values are multiples of it
    low = min(unit, fmt.minpos * fmt.minpos)
    return fmt.maxpos * fmt.maxpos < Fraction(2) ** SINGLE.bias and low >= Fraction(SINGLE.least)


@lru_cache(maxsize=256)
def carrier_tables(fmt: Format, c: Carrier) -> Tables:
    """The tables of a format for a carrier."""
    rounding = binades(fmt)
    assert rounding is not None
    rows = [_row(fmt, rounding, k, c) for k in range(len(rounding.scale))]
    columns = [np.array(column, c.dtype.storage) for column in zip(*rows, strict=True)]
    names = (f"{fmt.name}_{c.dtype}_{name}" for name in ("c", "factor", "base"))
    buffers = (table(n, v) for n, v in zip(names, columns, strict=True))
    return Tables(rounding.first, len(rows) - 1, *buffers)


def _row(fmt: Format, rounding: Binades, k: int, c: Carrier) -> tuple[float, float, float]:
    """c, factor and base of entry k."""
    scale, shift, base = rounding.scale[k], rounding.shift[k], int(rounding.base[k])
    value = _value(fmt, base)
    if scale == 0:  # all alike
        return 0.0, 0.0, value
    spacing = float(1 / scale)
    big = (1.5 * 2.0**c.mantissa + shift) * spacing
    if spacing <= 2.0 ** (rounding.first + k):
        return big, 1.0, 0.0
    # 0 at the power of two and `spacing` above it, which are two neighbours.
    return big, (_value(fmt, base + 1) - value) / spacing, value


def _value(fmt: Format, order: int) -> float:
    """Value of an order, with the last one for all beyond."""
    return float(fmt.value(min(order, fmt.highest)))
