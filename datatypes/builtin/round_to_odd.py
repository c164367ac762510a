"""float64 operations rounded to odd, as expressions; on arrays: `datatypes.arithmetic.oracle`.

A result rounded to odd can be rounded again, by any rule, to fewer bits (Boldo and Melquiond 2008).
"""

from __future__ import annotations

from compiler.tensor.expr import BinOp, Expr, call, let, select
from compiler.tensor.expr import binary as binary_operation
from compiler.types.dtypes import FLOAT64, INT64

_SPLIT = 134217729.0
"""2**27 + 1: Veltkamp's splitting of float64 in halves."""


def operation(op: str, a: Expr, b: Expr) -> Expr:
    """Add, Sub, Mul or Div of float64 expressions (used several times: bind them with `let`)."""
    if op == "Sub":
        return let(b * -1.0, lambda c: operation("Add", a, c))

    def corrected(result: Expr) -> Expr:
        return let(_error(op, a, b, result), lambda error: _to_odd(result, error))

    return let(BinOp(op, a, b, FLOAT64), corrected, "result")


def multiply_add(a: Expr, b: Expr, c: Expr) -> Expr:
    """a * b + c of float64 expressions, which are used several times: bind them with `let`.

    `compiler.arithmetic.fused_multiply_add` does the same on arrays.
    """

    def head_and_tail(p: Expr, e: Expr, inner: Expr, head: Expr) -> Expr:
        low, high = _error("Add", c, e, inner), _error("Add", p, inner, head)
        tail = let(low, lambda x: let(high, lambda y: operation("Add", x, y)))
        return let(tail, lambda tail: operation("Add", head, tail))

    def of_parts(p: Expr, e: Expr) -> Expr:
        return let(c + e, lambda i: let(p + i, lambda h: head_and_tail(p, e, i, h)))

    def of_product(p: Expr) -> Expr:
        exact = let(_product_error(a, b, p), lambda e: of_parts(p, e))
        plain = p + c
        return select(binary_operation("LT", call("abs", plain), float("inf")), exact, plain)

    return let(a * b, of_product)


def _error(op: str, a: Expr, b: Expr, result: Expr) -> Expr:
    """A number of the sign of (a op b) - result, 0 if that is exact."""
    if op == "Add":
        return let(result - a, lambda part: (a - (result - part)) + (b - part))
    if op == "Mul":
        return _product_error(a, b, result)

    def rest(product: Expr) -> Expr:
        left = (a - product) - _product_error(result, b, product)
        return let(left, lambda r: select(b < 0.0, r * -1.0, r))

    return let(result * b, rest)


def _product_error(a: Expr, b: Expr, product: Expr) -> Expr:
    """a * b - product, exactly (Dekker 1971)."""

    def of_halves(a_high: Expr, b_high: Expr) -> Expr:
        a_low, b_low = a - a_high, b - b_high
        return ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low

    return let(_high(a), lambda x: let(_high(b), lambda y: of_halves(x, y)))


def _high(a: Expr) -> Expr:
    return let(a * _SPLIT, lambda scaled: scaled - (scaled - a))


def _to_odd(result: Expr, error: Expr) -> Expr:
    """`result`, or its odd neighbour toward the exact number."""

    def moved(bits: Expr) -> Expr:
        away = (error > 0.0).equal(result > 0.0)
        neighbour = select(away, bits + 1, bits - 1)
        finite = binary_operation("LT", call("abs", result), float("inf"))
        even = (bits & 1).equal(0)
        # A sum of zero is exact; a product or quotient this small is out of range.
        inexact = (error < 0.0) | (error > 0.0)
        return call("bits", select(inexact & even & finite, neighbour, bits), dtype=FLOAT64)

    return let(call("bits", result, dtype=INT64), moved)
