"""Loop nests of sums that go on from one another, in an accumulator that is more than a format
(`compiler.op.accumulator`): running sums, and sums of what is scattered.

Each such sum is what the description makes of the terms that it has: of chunks, those that are
complete are added in the outer format, and then the one that is not. So the terms must be added one
after another: what a tree, pairs or aligned groups add up to says nothing of one term more
(`compiler.op.accumulate.require_steps`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from compiler.op.accumulator import Accumulator
from compiler.op.staged_rounding import Rounding
from compiler.symbolic import Index, IntLike, Var
from compiler.tensor.builder import PrimBuilder
from compiler.tensor.expr import Buffer, Expr, const, index_value, select
from compiler.tensor.stmt import For, Stmt, Store
from compiler.types.dtypes import INT32, DType

Place = tuple[Index, ...]
State = tuple[Expr, Expr]
"""A sum, and what it lost."""


@dataclass(frozen=True)
class _Steps:
    """How one more term is added, to sums beside data of a dtype."""

    how: Accumulator
    dtype: DType

    @property
    def inner(self) -> Rounding:
        """What the terms of a chunk are added in."""
        return Rounding.of(self.how, False, self.dtype)

    @property
    def outer(self) -> Rounding:
        """What chunks are added in."""
        return Rounding.of(self.how, True, self.dtype)

    def sum(self, state: State, term: Expr) -> Expr:
        """The sum after a term."""
        if not self.how.compensated:
            return self.inner.put((term,), state[0])
        return self.inner.compensated(*state, (term,), lambda s, _: s)

    def lost(self, state: State, term: Expr) -> Expr:
        """What that lost."""
        return self.inner.compensated(*state, (term,), lambda _, lost: lost)

    def whole(self, chunk: Expr, before: Expr) -> Expr:
        """The sum of a chunk and of those before it."""
        return self.outer.put((chunk,), before)

    def zero(self) -> Expr:
        """The empty sum of a chunk."""
        return const(0, self.inner.dtype)


# ---- along an axis -------------------------------------------------------------------------------
def running_sum(
    b: PrimBuilder,
    name: str,
    axis: int,
    x: Buffer,
    how: Accumulator,
    reverse: bool = False,
    exclusive: bool = False,
) -> Buffer:
    """The sums of the elements up to each, along an axis.

    Args:
        b: collects the stages.
        name: of the buffer.
        axis: counted from the first.
        x: the terms.
        how: the accumulator, whose order is sequential.
        reverse: from the end of the axis.
        exclusive: without the element itself.
    """
    s, n = _Steps(how, x.dtype), x.shape[axis]
    sizes = [*x.shape[:axis], n + 1, *x.shape[axis + 1 :]]
    chunk = b.buffer(f"{name}_chunk", sizes, s.inner.dtype)
    lost = b.buffer(f"{name}_lost", sizes, s.inner.dtype) if how.compensated else None
    total = b.buffer(f"{name}_total", sizes, s.outer.dtype) if how.chunk else None
    used = [v for v in (chunk, lost, total) if v is not None]
    outer = [d for k, d in enumerate(x.shape) if k != axis]

    def loops(stage: str) -> list[Var]:
        return [Var(f"{stage}.i{k}", d) for k, d in enumerate(outer)]

    def at(i: Sequence[Var], k: IntLike) -> Place:
        return (*map(Index.of, i[:axis]), Index.of(k), *map(Index.of, i[axis:]))

    for buffer in used:
        stage = b.fresh(f"{buffer.name}_start")
        i = loops(stage)
        b.body.append(_nest(i, [Store(stage, buffer, at(i, 0), const(0, buffer.dtype))]))

    stages = {v: b.fresh(f"{v.name}_following") for v in used}
    i, k = loops(stages[chunk]), Var(f"{stages[chunk]}.k", n)
    fresh = index_value(Index.of(k) % how.chunk).equal(0) if how.chunk else None

    def before(v: Buffer) -> Expr:
        held = v[at(i, k)]
        return held if fresh is None else select(fresh, s.zero(), held)

    term = x[at(i, n - 1 - k if reverse else k)]
    state = before(chunk), before(lost) if lost is not None else s.zero()
    values = {chunk: s.sum(state, term)}
    if lost is not None:
        values[lost] = s.lost(state, term)
    if total is not None:
        complete = total[at(i, Index.of(k) // how.chunk * how.chunk)]
        values[total] = s.whole(chunk[at(i, k + 1)], complete)
    body: list[Stmt] = [Store(stages[v], v, at(i, k + 1), value) for v, value in values.items()]
    b.body.append(_nest([*i[:axis], k, *i[axis:]], body))

    def finish(*place: Index) -> Expr:
        step = n - 1 - place[axis] if reverse else Index.of(place[axis])
        done = step if exclusive else step + 1
        last = chunk if total is None else total
        return last[(*place[:axis], done, *place[axis + 1 :])].astype(x.dtype)

    return b.compute(name, x.shape, x.dtype, finish)


# ---- where data says -----------------------------------------------------------------------------
class ScatteredSum:
    """The sums of elements and of what is added to them, the element first. Each has chunks of its
    own, which buffers of the shape of the data hold."""

    def __init__(self, b: PrimBuilder, name: str, x: Buffer, how: Accumulator):
        self.b, self.name, self.x, self.steps = b, name, x, _Steps(how, x.dtype)
        s, empty = self.steps, (self.steps.zero(), self.steps.zero())
        self.chunk = b.compute(name, x.shape, s.inner.dtype, lambda *i: s.sum(empty, x[i]))
        self.lost = self.following = self.total = self.left = None
        if how.compensated:
            inner = s.inner.dtype
            self.lost = b.compute(f"{name}_lost", x.shape, inner, lambda *i: s.lost(empty, x[i]))
            self.following = b.compute(f"{name}_next", x.shape, inner, lambda *i: s.zero())
        if how.chunk:
            outer, first = s.outer.dtype, how.chunk - 1
            self.total = b.compute(f"{name}_total", x.shape, outer, lambda *i: const(0, outer))
            self.left = b.compute(f"{name}_left", x.shape, INT32, lambda *i: const(first, INT32))

    def updated(self, place: Sequence[Var], term: Expr) -> list[Stmt]:
        """The statements, in their order, that add a term, of the dtype of the data, to the element
        at `place`."""
        s, at = self.steps, tuple(map(Index.of, place))
        chunk, out = self.chunk[at], list[Stmt]()

        def put(buffer: Buffer, value: Expr) -> None:
            stage = self.b.fresh(f"{buffer.name}_update")
            out.append(Store(stage, buffer, at, value))

        def kept(v: Buffer) -> Expr:
            return v[at] if self.left is None else select(self.left[at].equal(0), s.zero(), v[at])

        state = kept(self.chunk), s.zero() if self.lost is None else kept(self.lost)
        if self.total is not None and self.left is not None:
            total, complete = self.total[at], self.left[at].equal(0)
            put(self.total, select(complete, s.whole(chunk, total), total))
        if self.lost is None or self.following is None:
            put(self.chunk, s.sum(state, term))
        else:  # both are computed from both
            put(self.following, s.sum(state, term))
            put(self.lost, s.lost(state, term))
            put(self.chunk, self.following[at])
        if self.left is not None:
            left, most = self.left[at], const(s.how.chunk - 1, INT32)
            put(self.left, select(left.equal(0), most, left - 1))
        return out

    def finish(self) -> Buffer:
        """The buffer of sums of the dtype of the data."""

        def value(*i: Index) -> Expr:
            last: Expr = self.chunk[i]
            if self.total is not None:
                last = self.steps.whole(last, self.total[i])
            return last.astype(self.x.dtype)

        return self.b.compute(f"{self.name}_round", self.x.shape, self.x.dtype, value)


def _nest(loops: Sequence[Var], body: list[Stmt]) -> Stmt:
    for v in reversed(loops):
        body = [For(v, body)]
    return body[0]
