"""Stochastic rounding as an expression: the array codec's, with random bits hashed from a place.

The exact result is a float64 rounded to odd, which lies on the same side of every threshold: these
have fewer than 52 significant bits. The value below it is found by its binade (see
`datatypes.formats.binades`), or by bisection where values are spaced otherwise.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from compiler.arithmetic.random_bits import GOLDEN, UINT32, mixed, node_key
from compiler.arithmetic.stochastic import Place
from compiler.lowering.tables import table
from compiler.tensor.expr import (
    BinOp,
    Buffer,
    Call,
    Cast,
    Expr,
    call,
    cast,
    const,
    let,
    maximum,
    minimum,
    select,
)
from compiler.types.dtypes import FLOAT64, INT64
from datatypes.builtin import through_float64
from datatypes.builtin.common import look_up, look_up_pair
from datatypes.formats import Format, binades
from datatypes.formats.arrays import codes_of_orders, ordered_values
from datatypes.formats.rules import RANDOM_BITS
from datatypes.lowering import stored


def lower(fmt: Format, node: Expr, place: Place) -> Expr | None:
    """A conversion to the format, or Add, Sub, Mul, Div or fma, on storage integers, rounded at a
    place; None where float64 does not have the range."""
    if isinstance(node, Cast):
        return encode(fmt, through_float64.to_float64(node.value), place)
    if isinstance(node, Call):
        result = through_float64.multiplied_and_added(fmt, *map(stored, node.args))
        return None if result is None else encode(fmt, result, place)
    assert isinstance(node, BinOp)
    a, b = stored(node.a), stored(node.b)
    if fmt.table(node.op) is not None:
        return look_up_pair(fmt, node.op, a, b)
    result = through_float64.arithmetic(fmt, node.op, a, b)
    return None if result is None else encode(fmt, result, place)


def encode(fmt: Format, x: Expr, place: Place) -> Expr:
    """Storage integer of a float64 (`datatypes.formats.encode`)."""

    def rounded(x: Expr) -> Expr:
        regular = let(
            _below(fmt, x), lambda n: _code(fmt, x, _entry(fmt, x, n, random_bits(fmt, place)))
        )
        return through_float64.special_or(fmt, x, regular)

    return let(x, rounded)


def _below(fmt: Format, x: Expr) -> Expr:
    """int64 number, in `ordered_values`, of the last value that is not above x, from the first to
    the last but one; or one less, where x is negative and a value."""
    rounding, most = binades(fmt), len(ordered_values(fmt)) - 2
    if rounding is None:
        return through_float64.searched(_starts(fmt), most, x)
    scale, shift, base = through_float64.tables(fmt)
    exponent = (call("bits", x, dtype=INT64) >> 52 & 0x7FF) - (1023 + rounding.first)

    def order(entry: Expr) -> Expr:
        steps = call("abs", x) * look_up(scale, entry) - look_up(shift, entry)
        whole = call("floor", steps)
        return cast(whole + look_up(base, entry), INT64)

    def number(order: Expr) -> Expr:
        found = select(x > 0.0, order, -1 - order) + (1 - fmt.lowest)
        return minimum(maximum(found, 0), most)

    entry = minimum(maximum(exponent, 0), len(rounding.base) - 1)
    return let(let(entry, order), number)


def random_bits(fmt: Format, place: Place) -> Expr:
    """uint32 random bits of a place (`datatypes.formats.randomness`)."""
    key = const(node_key(fmt.seed, place.node), UINT32)
    at = mixed(key ^ cast(place.index, UINT32) * GOLDEN)
    return mixed(at + cast(place.step, UINT32) * GOLDEN)


def _entry(fmt: Format, x: Expr, below: Expr, random: Expr) -> Expr:
    """int64 number, in `ordered_values`, of the value that x rounds to, if none above or below."""
    values, positive = _values(fmt), x > 0.0
    last = 2.0**RANDOM_BITS

    def between(low: Expr, high: Expr) -> Expr:
        part = select(positive, x - low, high - x)
        kept = last - cast(random >> (32 - RANDOM_BITS), FLOAT64)
        return (part * last >= (high - low) * kept).equal(positive)

    low, high = look_up(values, below), look_up(values, below + 1)
    up = let(low, lambda low: let(high, lambda high: between(low, high)))
    return below + cast(up, INT64)


def _code(fmt: Format, x: Expr, entry: Expr) -> Expr:
    """Code of entry number `entry` of `ordered_values` for a number x."""
    positive, negative = _codes(fmt, False), _codes(fmt, True)

    def chosen(entry: Expr) -> Expr:
        return select(x < 0.0, look_up(negative, entry), look_up(positive, entry))

    return let(entry, chosen)


@lru_cache(maxsize=64)
def _values(fmt: Format) -> Buffer:
    return table(f"{fmt.name}_ordered", ordered_values(fmt))


@lru_cache(maxsize=64)
def _starts(fmt: Format) -> Buffer:
    return table(f"{fmt.name}_inner", ordered_values(fmt)[1:-1])


@lru_cache(maxsize=64)
def _codes(fmt: Format, negative: bool) -> Buffer:
    """Codes of the values number lowest - 1 to highest + 1, for numbers of one sign."""
    orders = np.arange(fmt.lowest - 1, fmt.highest + 2)
    if fmt.underflow == "minpos":
        first = 1 if fmt.has_zero else 0
        orders = np.minimum(orders, -1) if negative else np.maximum(orders, first)
    if fmt.overflow == "saturate":
        orders = np.clip(orders, fmt.lowest, fmt.highest)
    codes = codes_of_orders(fmt, orders, np.full(orders.shape, negative))
    return table(f"{fmt.name}_{'below' if negative else 'above'}", codes.astype(fmt.storage))
