"""Sums in a format of terms, and of products, that are in other formats, on storage integers: one
rounding a step. The same in lanes: `datatypes.vector.mixed`."""

from __future__ import annotations

from collections.abc import Sequence

from compiler.errors import LoweringError
from compiler.lowering.custom_dtypes import Lane
from compiler.tensor.expr import Expr, cast, let
from compiler.types.dtypes import FLOAT32, FLOAT64
from datatypes.builtin import round_to_odd, through_float64
from datatypes.builtin.decoding import TABLE_BITS, decode
from datatypes.formats import Format, get
from datatypes.lowering import stored


def add_into(fmt: Format, terms: Sequence[Expr]) -> Expr | None:
    """x + acc, or x * w + acc, as a storage integer of `fmt`, rounded once.

    Args:
        fmt: the format of acc and of the result.
        terms: x and acc, or x, w and acc: views of codes or lanes of any formats, or floats.
    """
    *factors, acc = map(_value, terms)
    exact = all(map(_is_short, terms[:-1]))

    def total(a: Expr, b: Expr, c: Expr) -> Expr:
        if not exact:
            return round_to_odd.multiply_add(a, b, c)
        return let(a * b, lambda p: round_to_odd.operation("Add", p, c))

    if len(factors) == 1:
        (x,) = factors
        result = let(x, lambda x: let(acc, lambda c: round_to_odd.operation("Add", x, c)))
    else:
        first, second = factors
        result = let(first, lambda a: let(second, lambda b: let(acc, lambda c: total(a, b, c))))
    return through_float64.encode(fmt, result)


def _is_short(x: Expr) -> bool:
    """Whether float64 holds the product of two such operands."""
    return x.dtype.bits <= (TABLE_BITS if x.dtype.is_custom else FLOAT32.bits)


def is_mixed(terms: Sequence[Expr]) -> bool:
    """Whether operands are of more than one dtype, or in lanes."""
    return len({x.dtype for x in terms}) > 1 or any(isinstance(x, Lane) for x in terms)


def _value(x: Expr) -> Expr:
    """float64 of an operand."""
    if isinstance(x, Lane):
        return cast(x.value, FLOAT64)
    if not x.dtype.is_custom:
        return cast(x, FLOAT64)
    value = decode(get(x.dtype.name), stored(x))
    if value is None:
        raise LoweringError(f"{x.dtype} is decoded by a function: sums of it have no lowering")
    return value
