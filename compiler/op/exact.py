"""add_to_odd: a float64 sum that can be rounded once more, to fewer bits."""

from __future__ import annotations

from typing import Any

from compiler.dtypes import FLOAT64, INT64, DType
from compiler.op import fused
from compiler.op.common import ExprArithmetic
from compiler.op.elementwise import elementwise
from compiler.op.opdef import NoAttrs
from compiler.tensor.expr import Expr, binary, call, let, select


def _add_to_odd(ar: Any, _: NoAttrs, a: Any, b: Any) -> Any:
    if not isinstance(ar, ExprArithmetic):
        return fused.add_to_odd(a, b)
    return let(a, lambda a: let(b, lambda b: let(a + b, lambda s: _to_odd(a, b, s))))


def _to_odd(a: Expr, b: Expr, total: Expr) -> Expr:
    """a + b, whose nearest float64 is `total`; the error is Knuth's two-sum."""
    error = let(total - a, lambda part: (a - (total - part)) + (b - part))
    return let(error, lambda error: _moved(total, error))


def _moved(total: Expr, error: Expr) -> Expr:
    def neighbour(bits: Expr) -> Expr:
        away = (error > 0.0).equal(total > 0.0)
        inexact = (error < 0.0) | (error > 0.0)
        finite = binary("LT", call("abs", total), float("inf"))
        change = inexact & finite & (bits & 1).equal(0)
        return select(change, select(away, bits + 1, bits - 1), bits)

    return call("bits", let(call("bits", total, dtype=INT64), neighbour), dtype=FLOAT64)


def _double(d: DType) -> bool:
    return d == FLOAT64


elementwise(
    "add_to_odd", _add_to_odd, 2,
    "the sum; where float64 does not hold it, the odd one of its two neighbours", accepts=_double,
)  # fmt: skip
