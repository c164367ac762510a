"""Products and sums of lanes at least cost, for sums of products: NaN where the result is not sure.

As in `rounding`, adding and subtracting a number C rounds to nearest; here C comes straight from
the exponent of the unrounded result, and must serve all numbers of that binade (`magic`). Where
none does, C is NaN, and so is the result. A product is rounded once, inside a fused multiply-add
with C, even if it does not fit the lane.

Posits never round to zero: a product that C rounds to zero becomes minpos, unless it is zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

import numpy as np

from compiler.tensor.expr import (
    BinOp,
    Call,
    Expr,
    FloatImm,
    Let,
    binary,
    call,
    let,
    maximum,
    minimum,
    select,
)
from compiler.types.dtypes import DType
from datatypes.formats import Format
from datatypes.formats.fixed import FixedCode
from datatypes.vector.by_exponent import (
    Binade,
    Entries,
    for_magnitudes,
    for_products,
    for_sums,
    scaled,
)
from datatypes.vector.carrier import magnitude, with_sign
from datatypes.vector.choice import chosen, is_short_single, significant_bits
from datatypes.vector.magic import (
    Magic,
    exponent_of,
    product_magic,
    scaled_magic,
    spaced_magic,
    sum_magic,
    sums_are_safe,
)
from datatypes.vector.rounding import clamped, even_c, largest_kept, uniform

_RARE = 20
"""log2 of what results of ordinary networks are below."""
_TILE = 1 << 17
"""Products of a register tile, all of which are computed again for one that is not sure."""


@dataclass(frozen=True, eq=False)
class Plan:
    """How the products and sums of a format are rounded at least cost. `unsure`: exponents of
    products that are NaN; `magnitudes`: of products that are not negative."""

    products: Entries
    sums: Entries
    unsure: frozenset[int]
    magnitudes: Entries


@lru_cache(maxsize=256)
def plan(fmt: Format) -> Plan | None:
    """The plan for a format that is rounded by tables; None if none is sure to be right."""
    c = chosen(fmt).lane
    if uniform(fmt) is not None or not sums_are_safe(fmt, c):
        return None
    square, bound = fmt.maxpos * fmt.maxpos, Fraction(2) ** c.bias
    if square >= bound or fmt.minpos * fmt.minpos < Fraction(2) / bound:
        return None
    low, high = exponent_of(fmt.minpos), exponent_of(fmt.maxpos)
    sums = {e: sum_magic(fmt, e) for e in range(low, high + 2)}
    for e in sums:  # In sparse binades, sums must be exact to be sure.
        if spaced_magic(fmt, e) is None and e >= low + c.mantissa:
            sums[e] = None
    _leave_out_rare(sums)
    exponents = range(2 * low - 1, 2 * high + 2)
    products: dict[int, Magic | None] = {}
    for e in reversed(exponents):
        products[e] = product_magic(fmt, e, products.get(e + 1))
    _leave_out_rare(products)
    unsure = frozenset(e for e, m in products.items() if m is None)
    sum_entries = for_sums(f"{fmt.name}_sums", sums, c)
    name = f"{fmt.name}_products"
    if fmt.underflow == "minpos" and 2 * significant_bits(fmt) <= c.significant:
        exact = scaled(name, {e: scaled_magic(fmt, e) for e in exponents[1:]}, c)
        if exact is not None:
            return Plan(exact, sum_entries, unsure, exact)
    one, other = (of(name, products, c) for of in (for_products, for_magnitudes))
    return Plan(one, sum_entries, unsure, other)


def _leave_out_rare(numbers: dict[int, Magic | None]) -> None:
    """Take C from the binades that ordinary numbers never reach, from the first with an odd C on:
    all that are not sure are neighbours then, and take one comparison where C is computed."""
    odd = [e for e, m in numbers.items() if e >= _RARE and m is not None and m.odd]
    for e in numbers:
        if odd and e >= min(odd):
            numbers[e] = None


@lru_cache(maxsize=256)
def slow_sums(fmt: Format) -> str:
    """Why sums of products of ordinary numbers are slow in lanes, in words; empty if they are not.

    What is not sure is bounded from below by the products of normal numbers and of such with a
    standard deviation of 1/16, whose binade has no C.
    """
    if is_short_single(fmt):
        return ""
    one = chosen(fmt).lane.number(1.0)
    if product(fmt, one, one) is None or total(fmt, one, one) is None:
        return "sums in lanes take its general rounding"
    found = plan(fmt)
    if found is None:
        return ""
    x, w = np.random.default_rng(0).normal(size=(2, 1 << 10))
    exponents, counts = np.unique(np.frexp(np.outer(x, w / 16))[1] - 1, return_counts=True)
    share = counts[np.isin(exponents, list(found.unsure))].sum() / counts.sum()
    if share * _TILE < 1:
        return ""
    return f"{share:.2%} of products in lanes would be computed again, with all of their tile"


def product(fmt: Format, a: Expr, b: Expr, keeps_nan: bool = True) -> Expr | None:
    """a * b; None if there is no such expression for the format. `keeps_nan`: see VectorDType."""
    if uniform(fmt) is not None:
        return _even(fmt, "Mul", a, b, keeps_nan)
    found = plan(fmt)
    if found is None:
        return None
    c, entries = chosen(fmt).lane, found.products
    exact = 2 * significant_bits(fmt) <= c.significant

    vanishes = fmt.underflow == "minpos" and isinstance(entries, Binade) and not entries.factors

    def rounded(a: Expr, b: Expr) -> Expr:
        if vanishes and Fraction(2) ** entries.lift * fmt.minpos >= 1:
            if not keeps_nan:
                return by_magnitude(a, b)
            return let(a * (b * -(2.0**entries.lift)), lambda at: at_least_minpos(a, b, at), "at")
        at = a * (b * 2.0**entries.lift) if entries.lift else a * b
        return let(at, lambda at: nearest(a, b, at), "at")

    def at_least_minpos(a: Expr, b: Expr, at: Expr) -> Expr:
        """Given at = -a * b * 2**lift, which is 0, or minpos or more in magnitude.

        Of the negated product and minpos, which have one sign if the product did not vanish, the
        larger is taken as an integer. NaN is the largest, as it is negative in the table, and the
        difference of two NaN has the sign of the first.
        """
        word = DType("uint", c.integer.bits)
        negated = let(entries.of(at, c), lambda big: big - call("fma", a, b, big), "c")
        least = call("limit", at, c.number(float(fmt.minpos)))
        larger = maximum(*(call("bits", x, dtype=word) for x in (negated, least)))
        return c.value(larger) * -1.0

    def by_magnitude(a: Expr, b: Expr) -> Expr:
        """The same of magnitudes, among which NaN of either sign is the largest; then the sign, in
        a product that an addition can be part of."""
        word = DType("uint", c.integer.bits)

        def bits(x: Expr) -> Expr:
            return call("bits", x, dtype=word)

        def larger(at: Expr) -> Expr:
            big = found.magnitudes.of(at, c)
            r = let(big, lambda big: call("fma", size_a, size_b, big) - big, "c")
            least = minimum(bits(at), bits(c.number(float(fmt.minpos))))
            return c.value(maximum(bits(r), least))

        size_a, size_b = magnitude(a), magnitude(b)
        size = let(size_a * (size_b * 2.0**entries.lift), larger, "at")
        one_a, one_b = (with_sign(c.number(1.0), x) for x in (a, b))
        return call("fma", size, one_a * one_b, c.number(0.0))

    def nearest(a: Expr, b: Expr, at: Expr) -> Expr:
        if exact and not entries.lift:
            r = entries.rounded(at, at, c)
        else:
            r = let(entries.of(at, c), lambda big: call("fma", a, b, big) - big, "c")
        return let(r, lambda r: lifted(r, at), "r") if vanishes else r

    def lifted(r: Expr, at: Expr) -> Expr:
        vanished = binary("And", r.equal(0.0), binary("NE", at, 0.0))
        return select(vanished, with_sign(c.number(float(fmt.minpos)), at), r)

    return let(a, lambda a: let(b, lambda b: rounded(a, b), "b"), "a")


def total(fmt: Format, a: Expr, b: Expr, keeps_nan: bool = True) -> Expr | None:
    """a + b; None if there is no such expression for the format. `keeps_nan`: see VectorDType."""
    if uniform(fmt) is not None:
        return _even(fmt, "Add", a, b, keeps_nan)
    found = plan(fmt)
    if found is None:
        return None
    c, entries = chosen(fmt).lane, found.sums
    return let(_plus(a, b), lambda s: entries.rounded(s, s, c), "s")


def _plus(a: Expr, b: Expr) -> Expr:
    """a + b, where the last step of b may be an exact product that an addition can be part of."""
    if isinstance(b, Let):
        return Let(b.var, b.value, _plus(a, b.body))
    match b:
        case Call(fn="fma", args=(x, factor, FloatImm(value=0.0))):
            return call("fma", x, factor, a)
    return BinOp("Add", a, b, a.dtype)


def _even(fmt: Format, op: str, a: Expr, b: Expr, keeps_nan: bool) -> Expr | None:
    """a op b in a format of even precision: too large results are NaN, or saturate. Short floats
    are rounded in integers, unless NaN would not stay NaN there."""
    choice, spacing = chosen(fmt), uniform(fmt)
    assert spacing is not None
    c = choice.lane
    if isinstance(fmt.decoder, FixedCode) and fmt.nbits + 1 < c.significant:
        if op == "Add":  # exact
            return clamped(fmt, BinOp(op, a, b, a.dtype))
        big = even_c(fmt, spacing, a)
        return clamped(fmt, call("fma", a, b, big) - big)
    short = is_short_single(fmt)
    if choice.arithmetic != c or (short and keeps_nan):
        return None

    def rounded(x: Expr) -> Expr:
        inside = clamped(fmt, x)
        r = let(even_c(fmt, spacing, inside), lambda big: (inside + big) - big, "c")
        if fmt.overflow == "saturate" or short:  # C is infinite long before numbers are
            return r
        return select(magnitude(x) > largest_kept(fmt, c), c.number(math.nan), r)

    return let(BinOp(op, a, b, a.dtype), rounded, "x")


OPERATIONS: dict[str, Callable[[Format, Expr, Expr, bool], Expr | None]] = {
    "Add": total, "Mul": product,
}  # fmt: skip
