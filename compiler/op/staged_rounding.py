"""What the sums of an accumulator are held in (`compiler.op.accumulator`), and the steps from one
to the next, each of which is rounded once.

Terms are float64, which holds every product; so are sums while they are added, and each addition is
rounded to odd there (S. Boldo and G. Melquiond, 2008), then to the format.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from operator import mul

from compiler.op.accumulate import held_form, into
from compiler.op.accumulator import Accumulator
from compiler.op.exact_sum_parts import added_to_odd
from compiler.tensor.expr import BinOp, Expr, call, cast, let, select
from compiler.types.dtypes import FLOAT32, FLOAT64, INT32, DType, keeps_errors, precision, span

Factors = tuple[Expr, ...]


@dataclass(frozen=True)
class Rounding:
    """What sums are held in, and how terms and such sums become others.

    Attributes:
        dtype: of sums.
        truncated: of float32: toward zero. (Other formats say so themselves.)
    """

    dtype: DType
    truncated: bool = False

    @staticmethod
    def of(how: Accumulator, outer: bool, data: DType) -> Rounding:
        """Of what an accumulator, or its outer sums, are held in, beside data of a dtype."""
        name = (how.outer if outer else "") or how.format
        if name == "float32":
            nearest = outer and how.outer
            return Rounding(FLOAT32, how.rounding == "truncate" and not nearest)
        return Rounding(held_form(how.outer_dtype if outer else how.dtype, data))

    def held(self, x: Expr) -> Expr:
        """A float64, which is exact or was rounded to odd."""
        if not self.truncated:
            return cast(x, self.dtype)
        return let(x, lambda x: let(cast(x, FLOAT32), lambda r: _toward_zero(r, x)))

    def value(self, x: Expr) -> Expr:
        """float64 of a sum."""
        return cast(x, FLOAT64)

    def add(self, a: Expr, b: Expr, op: str = "Add") -> Expr:
        """a + b (a - b with the op "Sub") of two sums."""
        if self.truncated:
            b = self.value(b)
            return self.held(added_to_odd(self.value(a), b if op == "Add" else b * -1.0))
        return BinOp(op, a, b, self.dtype)

    def put(self, term: Factors, acc: Expr) -> Expr:
        """acc, a sum or a float64, and a term or a product of two factors."""
        if self.dtype.is_custom:
            return into(self.dtype, *term, acc)
        if self.dtype == acc.dtype == FLOAT32 and not self.truncated and all(map(_is_single, term)):
            values = [cast(x, FLOAT32) for x in term]
            return call("fma", *values, acc) if len(values) == 2 else values[0] + acc
        total = self.value(acc)
        exact = term_of(term)
        return self.held(exact + total if self.dtype == FLOAT64 else added_to_odd(exact, total))

    def kept(self, x: Expr) -> Expr:
        """A float that is a number of the dtype: it is not rounded again."""
        if not self.dtype.lane:
            return cast(x, self.dtype)
        return call("bits", cast(x, self.dtype.storage_dtype), dtype=self.dtype)

    def error(self, y: Expr, gained: Expr) -> Expr:
        """y - gained, where a sum has `gained` that much by y: one that no rounding changes, if the
        dtype keeps errors. (`gained` is y and the error of a sum of y, which is in the dtype and
        smaller than y, rounded; or, if y was the smaller term, y and that error exactly.)"""
        if not self.dtype.lane or not keeps_errors(self.dtype):
            return self.add(y, gained, "Sub")
        lanes = [call("bits", x, dtype=self.dtype.storage_dtype) for x in (y, gained)]
        return self.kept(lanes[0] - lanes[1])

    def compensated(
        self, s: Expr, lost: Expr, term: Factors, then: Callable[[Expr, Expr], Expr]
    ) -> Expr:
        """What follows from Kahan's sum after one term, and what that lost: y = term + lost,
        t = s + y, lost = y - (t - s), s = t."""

        def with_sum(y: Expr, t: Expr) -> Expr:
            return let(self.error(y, self.add(t, s, "Sub")), lambda lost: then(t, lost))

        return let(self.put(term, lost), lambda y: let(self.add(s, y), lambda t: with_sum(y, t)))


def term_of(factors: Factors) -> Expr:
    """float64 of a term, which holds it."""
    return reduce(mul, (cast(x, FLOAT64) for x in factors))


def _is_single(x: Expr) -> bool:
    """Whether float32 holds every number of an operand's dtype."""
    if not x.dtype.is_custom:
        return x.dtype == FLOAT32
    bits, grid = precision(x.dtype), span(x.dtype)
    if bits is None or grid is None:
        return False
    return bits <= 24 and grid[0] >= -149 and grid[1] <= 128


def _toward_zero(nearest: Expr, x: Expr) -> Expr:
    """float32 of x, of which the nearest is given."""
    further = call("abs", cast(nearest, FLOAT64)) > call("abs", x)
    bits = call("bits", nearest, dtype=INT32)
    return call("bits", select(further, bits - 1, bits), dtype=FLOAT32)


__all__ = ["Factors", "Rounding", "term_of"]
