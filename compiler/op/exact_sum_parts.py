"""What exact sums are made of (see `compiler.transform.split_exact`): a part of a float64, the sum
of float64 parts, rounded to odd so that it can be rounded once more, to fewer bits, and the choice
between a quick way that may have rounded and one that is sure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from compiler.arithmetic import fused_multiply_add
from compiler.op.common import ExprArithmetic, broadcast_all, one_dtype, read, require, type_of
from compiler.op.elementwise import elementwise
from compiler.op.gradient import LOWERED
from compiler.op.opdef import Fusion, NoAttrs, OpDef, register_op
from compiler.tensor.builder import PrimBuilder
from compiler.tensor.expr import Buffer, Expr, binary, call, let, select
from compiler.types.dtypes import FLOAT64, INT64, DType
from compiler.types.tensor_types import TensorType


@dataclass(frozen=True)
class PartAttrs:
    """`grids`: the leading part is a multiple of 2**grids[0], the next of 2**grids[1], and so on;
    the last is what is left. `index`: of the part wanted."""

    grids: tuple[int, ...]
    index: int


@dataclass(frozen=True)
class JoinAttrs:
    """`grids`: operand k is a multiple of 2**grids[k]; ascending, and equal or at least 8 apart."""

    grids: tuple[int, ...]


def _rounded(ar: Any, x: Any, grid: int) -> Any:
    """x, below 2**(grid + 51) in magnitude, to the nearest multiple of 2**grid."""
    c = ar.const(1.5 * 2.0 ** (52 + grid))
    return ar.sub(ar.add(x, c), c)


def _named(ar: Any, value: Any, use: Any) -> Any:
    """use(value), where an expression is computed once."""
    return let(value, use) if isinstance(ar, ExprArithmetic) else use(value)


def _part(ar: Any, a: PartAttrs, x: Any) -> Any:
    def part(rest: Any, k: int) -> Any:
        if k == len(a.grids) - 1:
            return rest
        mine = _rounded(ar, rest, a.grids[k])
        if k == a.index:
            return mine
        return _named(ar, ar.sub(rest, mine), lambda rest: part(rest, k + 1))

    return _named(ar, x, lambda x: part(x, 0))


def _join(ar: Any, a: JoinAttrs, *values: Any) -> Any:
    def carried(value: Any, k: int, tail: Any) -> Any:
        """The sum of `value`, on grid k, the operands after it, and `tail`, which is below half of
        that grid's unit."""
        if k == len(values) - 1:
            return value if tail is None else _add_to_odd(ar, value, tail)
        here, following = a.grids[k : k + 2]
        if here == following:
            total = ar.add(value, values[k + 1])
            return _named(ar, total, lambda v: carried(v, k + 1, tail))
        return _named(ar, _rounded(ar, value, following), lambda up: split(value, up, k, tail))

    def split(value: Any, up: Any, k: int, tail: Any) -> Any:
        left = ar.sub(value, up)
        below = left if tail is None else _add_to_odd(ar, left, tail)
        above = ar.add(values[k + 1], up)
        return _named(ar, below, lambda t: _named(ar, above, lambda v: carried(v, k + 1, t)))

    return _named(ar, values[0], lambda v: carried(v, 0, None))


def _add_to_odd(ar: Any, a: Any, b: Any) -> Any:
    if not isinstance(ar, ExprArithmetic):
        return fused_multiply_add.add_to_odd(a, b)
    return added_to_odd(a, b)


def added_to_odd(a: Expr, b: Expr) -> Expr:
    """a + b of float64, rounded to odd."""
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
    "part", _part, 1, "one of the parts that a float64 is the sum of", PartAttrs, _double,
    gradient=LOWERED,
)  # fmt: skip


def _infer_join(a: JoinAttrs, types: Sequence[TensorType]) -> TensorType:
    dtype = one_dtype("join", types)
    require(dtype == FLOAT64, f"join is not defined for {dtype}; cast the operands first")
    apart = all(n == m or m - n >= 8 for n, m in zip(a.grids, a.grids[1:], strict=False))
    require(
        len(a.grids) == len(types) and apart,
        f"join: {a.grids} must be a grid for each operand, ascending, equal or at least 8 apart",
    )
    return TensorType(broadcast_all([t.shape for t in types]), dtype)


def _lower_join(b: PrimBuilder, a: JoinAttrs, *xs: Buffer) -> Buffer:
    t, ar = _infer_join(a, [type_of(x) for x in xs]), ExprArithmetic(FLOAT64)
    return b.compute("join", t.shape, t.dtype, lambda *i: _join(ar, a, *(read(x, i) for x in xs)))


def _infer_if_exact(_: NoAttrs, types: Sequence[TensorType]) -> TensorType:
    quick, sure = types
    require(quick == sure, f"if_exact: {quick} and {sure} must be of one type")
    require(quick.dtype == FLOAT64, f"if_exact is not defined for {quick.dtype}; cast the operands")
    return sure


JOIN = register_op(
    OpDef(
        "join", _infer_join, _join, _lower_join, JoinAttrs, (1, None), Fusion.ELEMENTWISE,
        gradient=LOWERED,
        doc="the sum of numbers on ascending grids, rounded to odd",
    )
)  # fmt: skip
IF_EXACT = register_op(
    OpDef(
        "if_exact", _infer_if_exact, lambda ar, a, quick, sure: sure,
        lambda b, a, quick, sure: b.compute("sure", sure.shape, sure.dtype, lambda *i: sure[i]),
        arity=(2, 2), fusion=Fusion.ELEMENTWISE, view=True, second_if_rounded=True,
        gradient=LOWERED,
        doc="the second operand, which the first one equals if nothing rounded in computing it",
    )
)  # fmt: skip


def _infer_add(_: NoAttrs, types: Sequence[TensorType]) -> TensorType:
    dtype = one_dtype("add_to_odd", types)
    require(dtype == FLOAT64, f"add_to_odd is not defined for {dtype}; cast the operands first")
    return TensorType(broadcast_all([t.shape for t in types]), dtype)


def _add(ar: Any, _: NoAttrs, *values: Any) -> Any:
    if len(values) == 2:
        return _add_to_odd(ar, *values)
    a, b, c = values
    return _named(
        ar, a, lambda a: _two_sum(ar, b, c, lambda s, e: _two_sum(ar, a, s, _last(ar, e)))
    )


def _last(ar: Any, error: Any) -> Any:
    """Of a sum of three, given the error of adding the last two."""
    return lambda total, e: _add_to_odd(ar, total, _add_to_odd(ar, e, error))


def _two_sum(ar: Any, a: Any, b: Any, use: Any) -> Any:
    """use(sum, error) of a + b (D. Knuth)."""

    def with_sum(a: Any, b: Any, total: Any) -> Any:
        error = _named(
            ar, ar.sub(total, a),
            lambda part: ar.add(ar.sub(a, ar.sub(total, part)), ar.sub(b, part)),
        )  # fmt: skip
        return _named(ar, error, lambda error: use(total, error))

    return _named(
        ar, a,
        lambda a: _named(ar, b, lambda b: _named(ar, ar.add(a, b), lambda s: with_sum(a, b, s))),
    )  # fmt: skip


def _lower_add(b: PrimBuilder, a: NoAttrs, *xs: Buffer) -> Buffer:
    t, ar = _infer_add(a, [type_of(x) for x in xs]), ExprArithmetic(FLOAT64)
    return b.compute("odd", t.shape, t.dtype, lambda *i: _add(ar, a, *(read(x, i) for x in xs)))


ADD_TO_ODD = register_op(
    OpDef(
        "add_to_odd", _infer_add, _add, _lower_add, NoAttrs, (2, 3), Fusion.ELEMENTWISE,
        rounds=True, gradient=LOWERED, doc="the sum of two or three numbers, rounded to odd",
    )
)  # fmt: skip
