"""Sums in a format of terms, and of products, that are in other formats: one rounding a step.

What a step adds is exact in float64, or is rounded to odd there (S. Boldo and G. Melquiond, 2008);
or in float32, if that holds the product and the format is short. No oddness is needed where the
product has no more bits than the format p, which is a float or fixed point with 2 p + 2 bits or
less in the carrier: then both terms are floats of p bits, of which a sum that the carrier does not
hold is far from any number that ends a rounding interval (S. Figueroa, "When is double rounding
innocuous?", 1995). A product of few bits may end one only below the format's normal numbers; but
there the carrier holds the sum. Nor is it needed of formats of few binades (`_narrow`).
"""

from __future__ import annotations

from fractions import Fraction

from compiler.lowering.custom_dtypes import Lane
from compiler.tensor.expr import Expr, cast, let
from compiler.types.dtypes import DType
from datatypes.builtin import round_to_odd
from datatypes.formats import Format, get
from datatypes.vector.carrier import DOUBLE, SINGLE, Carrier, narrowed_to_odd
from datatypes.vector.choice import chosen, significant_bits
from datatypes.vector.operations import to_odd
from datatypes.vector.rounding import rounded, rounds_in_single, uniform

_NATIVE = {32: SINGLE, 64: DOUBLE}


def add_into(fmt: Format, *terms: Expr) -> Expr:
    """x + acc, or x * w + acc, as a lane of `fmt`, rounded once.

    Args:
        fmt: the format of acc and of the result, which has lanes.
        terms: x and acc, or x, w and acc: `Lane` of any formats, or float32 or float64.
    """
    *factors, acc = terms
    carrier, odd = _carrier(fmt, factors)
    values = [cast(_value(x), carrier.dtype) for x in factors]
    total = cast(_value(acc), carrier.dtype)
    # What tables round, they round in float32 where they can: those stay in registers.
    exact = _total(factors, values, total, odd)
    if carrier == DOUBLE and rounds_in_single(fmt):
        exact = narrowed_to_odd(exact)
    return cast(rounded(fmt, exact, outside=True), _lane(fmt))


def _total(factors: list[Expr], values: list[Expr], acc: Expr, odd: bool) -> Expr:
    term = values[0] if len(values) == 1 else values[0] * values[1]
    if not odd:
        return term + acc
    if term.dtype == SINGLE.dtype:
        return to_odd("Add", term, acc, infinite=True)
    if sum(map(_bits, factors)) <= DOUBLE.significant:
        return let(term, lambda x: let(acc, lambda y: round_to_odd.operation("Add", x, y)))
    a, b = values
    return let(
        a,
        lambda x: let(b, lambda y: let(acc, lambda z: round_to_odd.multiply_add(x, y, z))),
    )


def _value(x: Expr) -> Expr:
    return x.value if isinstance(x, Lane) else x


def _lane(fmt: Format) -> DType:
    return chosen(fmt).lane.dtype


def _bits(x: Expr) -> int:
    """Significant bits of an operand."""
    if isinstance(x, Lane):
        return significant_bits(get(x.dtype.name))
    return _NATIVE[x.dtype.bits].significant


def _carrier(fmt: Format, factors: list[Expr]) -> tuple[Carrier, bool]:
    """The float that a step is computed in, and whether it is rounded to odd there."""
    bits, p = sum(map(_bits, factors)), significant_bits(fmt)
    plain = fmt.rounding == "nearest" and uniform(fmt) is not None and bits <= p
    if 2 * p + 2 <= SINGLE.significant and _within_single(fmt, factors):
        if plain:
            return SINGLE, False
        if bits <= SINGLE.significant and uniform(fmt) is not None:
            return SINGLE, True
    if plain and 2 * p + 2 <= DOUBLE.significant:
        return DOUBLE, False
    return DOUBLE, not _narrow(fmt, bits, p)


def _narrow(fmt: Format, bits: int, p: int) -> bool:
    """Whether float64 may round a sum of a product of so many bits and a number of the format.

    What ends a rounding interval is a multiple of minpos / 2. Say that such an m is where float64
    rounds a + b to, at 2**e or above, and that a + b is another number: then they differ by at most
    2**(e - 53). But b, and m, are multiples of minpos / 2, which is more than that. So the last
    place of a is below 2**(e - 53), a itself below 2**(e - 53 + bits), and b, a number of the
    format, would have to be that near to m: yet m is at least 2**(e - p - 2) from all of them.
    """
    even = fmt.rounding == "nearest" and uniform(fmt) is not None
    grid = fmt.maxpos * 4 < fmt.minpos / 2 * 2**DOUBLE.significant
    return even and grid and bits + p + 3 < DOUBLE.significant


def _within_single(fmt: Format, factors: list[Expr]) -> bool:
    """Whether no term, nor their sum, leaves float32's normal numbers."""
    if chosen(fmt).arithmetic != SINGLE or not all(isinstance(x, Lane) for x in factors):
        return False
    high, low = Fraction(1), Fraction(1)
    for x in factors:
        f = get(x.dtype.name)
        high, low = high * max(f.maxpos, -f.value(f.lowest)), low * f.minpos
    top = fmt.maxpos + high
    infinite = fmt.infinity == fmt.overflow == "inf"
    return (top < Fraction(2) ** 127 or (infinite and high < Fraction(2) ** 127)) and (
        min(low, fmt.minpos) >= Fraction(1, 2**126) or (low >= Fraction(1, 2**100) and infinite)
    )
