"""Positions in the order of values, as loops: a merge sort."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from compiler.arithmetic.arrays import Arithmetic
from compiler.symbolic import Index, Var
from compiler.tensor.builder import PrimBuilder
from compiler.tensor.expr import (
    Buffer,
    Expr,
    Gather,
    Load,
    binary,
    cast,
    const,
    index_value,
    minimum,
    select,
)
from compiler.tensor.stmt import For, Stmt, Store, When
from compiler.types.dtypes import BOOL, FLOAT32, FLOAT64, INT64, Array

_ROUNDS = 31
"""Each makes sorted runs four times as long: 4**31 elements are more than any memory holds."""


def order_of(ar: Arithmetic, x: Array, axis: int, descending: bool) -> Array:
    """What `sorted_positions` gives, with the axis where it is."""
    values = ar.of(FLOAT64).cast(x, ar.dtype) if ar.dtype.is_custom else x
    if not descending:
        return np.argsort(values, axis, kind="stable")
    back = np.flip(np.argsort(np.flip(values, axis), axis, kind="stable"), axis)
    return np.asarray(x.shape[axis] - 1 - back)


def is_nan(x: Expr) -> Expr:
    """Whether a value is NaN; custom datatypes, whose NaN may equal itself, go by float32."""
    wide = cast(x, FLOAT32) if x.dtype.is_custom else x
    return binary("NE", wide, wide)


def goes_before(a: Expr, b: Expr, descending: bool) -> Expr:
    """Whether `a` surely goes before `b`. NaN is larger than any number, as in numpy's order."""
    ahead = a > b if descending else a < b
    if not (a.dtype.is_float or a.dtype.is_custom):
        return ahead
    first, second = (a, b) if descending else (b, a)
    nan, nans = is_nan(first), is_nan(second)
    return select(nan | nans, nan & nans.equal(const(0, BOOL)), ahead)


def sorted_positions(b: PrimBuilder, x: Buffer, axis: int, descending: bool) -> Buffer:
    """Positions along an axis in the order of the values there, equal ones ascending: int64, of x's
    shape with that axis last.

    A merge sort from the bottom up (D. Knuth, The Art of Computer Programming 3, 5.2.4), stable:
    sorted runs of one element become runs of two, of four and so on, from one buffer to another and
    back.
    """
    outer = [d for k, d in enumerate(x.shape) if k != axis]
    n = x.shape[axis]
    order, spare = (b.buffer(name, (*outer, n), INT64) for name in ("order", "spare"))
    # What the loops remember: the length of a run, where the two runs go on, where they end, and
    # whether the second goes on.
    state = b.buffer("runs", (6,), INT64)
    stage, size = b.fresh("sort"), index_value(n)
    length, left, right, middle, end, second = (state[k] for k in range(6))

    def put(to: Load, value: Expr) -> Stmt:
        return Store(stage, to.buffer, to.idx, value)

    def loop(name: str, extent: Index | int, body: Callable[[Var], list[Stmt]]) -> Stmt:
        v = Var(f"{stage}.{name}", extent)
        return For(v, body(v))

    def runs_from(at: Expr) -> list[Stmt]:
        """The next two runs begin at a position."""
        return [
            put(left, at),
            put(middle, minimum(left + length, size)),
            put(right, middle),
            put(end, minimum(middle + length, size)),
        ]

    def merged(row: Sequence[Var], source: Buffer, out: Buffer, name: str) -> list[Stmt]:
        """Pairs of runs of `source` become one run each in `out`."""
        base = index_value(source.flat((*row, Index())))
        place = x.flat((*row[:axis], Index(), *row[axis:]))
        stride = Index.of(1)
        for d in x.shape[axis + 1 :]:
            stride = stride * d

        def position(at: Expr) -> Expr:
            return Gather(source, base + minimum(at, size - 1))

        def value(at: Expr) -> Expr:
            return Gather(x, index_value(place) + position(at) * index_value(stride))

        def step(t: Var) -> list[Stmt]:
            ahead = goes_before(value(right), value(left), descending)
            ahead = (right < end) & ((left >= middle) | ahead)
            return [
                When(index_value(t) >= end, runs_from(index_value(t))),
                put(second, select(ahead, const(1, INT64), const(0, INT64))),
                put(out[(*row, t)], position(select(second.equal(1), right, left))),
                put(right, right + second),
                put(left, left + 1 - second),
            ]

        first = runs_from(const(0, INT64))
        return [*first, loop(name, n, step), put(length, length * 2)]

    def sort(*row: Var) -> list[Stmt]:
        def begin(t: Var) -> list[Stmt]:
            return [put(order[(*row, t)], index_value(t))]

        def again(_: Var) -> list[Stmt]:
            there = merged(row, order, spare, "there")
            return [When(length < size, [*there, *merged(row, spare, order, "back")])]

        return [
            loop("t", n, begin),
            put(length, const(1, INT64)),
            loop("round", _ROUNDS, again),
        ]

    rows = [Var(f"{stage}.i{k}", d) for k, d in enumerate(outer)]
    body = sort(*rows)
    for v in reversed(rows):
        body = [For(v, body)]
    b.body += body
    return order
