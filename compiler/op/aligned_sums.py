"""Sums of terms that are aligned to the largest exponent among them and cut off there, as tensor
cores form them (`compiler.op.accumulator`, `align_bits`): expressions of float64."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from operator import mul

from compiler.op.staged_rounding import Factors, term_of
from compiler.tensor.expr import Expr, call, cast, const, let, maximum, select
from compiler.types.dtypes import FLOAT64, INT64

_EXPONENTS = 0x7FF << 52
_LEAST = (1023 - 960) << 52
"""Bits of a power of two below all products; its inverse is no overflow."""
_INVERSE = 2046 << 52
_ONE = 1023 << 52
_SIGN = -(1 << 63)


def aligned_sum(
    acc: Expr, terms: Sequence[Factors], kept: int, least: int | None, least_held: int | None
) -> Expr:
    """float64 of acc and terms, cut off at the same place.

    Args:
        acc: float64, the sum so far.
        terms: numbers, or pairs of factors, whose products float64 holds.
        kept: bits that are kept, from the largest exponent down.
        least: exponent of the data's least normal number, which smaller factors have too; None:
            they have their own. least_held: the same of the accumulator.
    """

    def total(products: list[Expr], largest: Expr, acc: Expr) -> Expr:
        def cut(bits: Expr) -> Expr:
            unit = call("bits", bits, dtype=FLOAT64) * 2.0 ** (1 - kept)
            inverse = call("bits", bits * -1 + _INVERSE, dtype=FLOAT64) * 2.0 ** (kept - 1)
            whole = let(inverse, lambda f: _added([_whole(x * f) for x in (*products, acc)]))
            return whole * unit

        # What is infinite or NaN makes the sum so, in any unit.
        bits = maximum(call("bits", largest, dtype=INT64), const(_LEAST, INT64))
        finite = largest < float("inf")
        return let(select(finite, bits, const(_ONE, INT64)), cut)

    def with_products(acc: Expr, products: list[Expr]) -> Expr:
        powers = (_power_of(*f, least) for f in zip(terms, products, strict=True))
        largest = reduce(maximum, (*powers, _power_of((acc,), acc, least_held)))
        return let(largest, lambda e: total(products, e, acc))

    every = [term_of(t) for t in terms]
    return let(acc, lambda a: _named(every, lambda p: with_products(a, p)))


def _power_of(factors: Factors, product: Expr, least: int | None) -> Expr:
    """The product of the factors' powers of two; 0 of 0.

    Args:
        factors: of the product.
        product: their float64 product.
        least: exponent of the least normal number, which is that of smaller ones too.
    """
    powers = [_power(cast(x, FLOAT64)) for x in factors]
    if least is None:
        return reduce(mul, powers)
    raised = reduce(mul, (maximum(p, const(2.0**least, FLOAT64)) for p in powers))
    return select(product.equal(0.0), const(0.0, FLOAT64), raised)


def _power(x: Expr) -> Expr:
    """The power of two at or below |x|; 0 of 0, infinite of NaN."""
    return call("bits", call("bits", x, dtype=INT64) & _EXPONENTS, dtype=FLOAT64)


def _whole(x: Expr) -> Expr:
    """x toward zero."""

    def signed(x: Expr) -> Expr:
        whole = call("bits", call("floor", call("abs", x)), dtype=INT64)
        return call("bits", whole | (call("bits", x, dtype=INT64) & _SIGN), dtype=FLOAT64)

    return let(x, signed)


def _added(values: Sequence[Expr]) -> Expr:
    """Their sum in order; +0 of zeros."""
    return reduce(lambda x, y: x + y, values) + 0.0


def _named(values: Sequence[Expr], body: Callable[[list[Expr]], Expr]) -> Expr:
    """`body` of values that are evaluated once."""
    if not values:
        return body([])
    return let(values[0], lambda x: _named(values[1:], lambda rest: body([x, *rest])))
