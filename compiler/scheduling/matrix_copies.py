"""Copies of data from which products of matrices read rows that lie evenly: with zeros around them,
where loops skip what lies outside, and with every so manieth element together, where an output's
neighbours are that far apart in the data. Rows between those that are wanted are not computed then.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from compiler.scheduling import Schedule
from compiler.scheduling.matrix_products import Product, extent_of, product_of
from compiler.scheduling.tile import guards, index_vars_of
from compiler.symbolic import Index, IntLike, Var
from compiler.target.registry import Target
from compiler.tensor.expr import Expr, Load, const, rewrite
from compiler.tensor.stmt import Buffer, For, Stmt, Store

COPY = 2
"""What a row of data that is copied costs, in columns of tiles that are multiplied by it."""


def laid_out(
    s: Schedule, stage: str, found: Product, path: Sequence[For], target: Target
) -> Product | None:
    """The product as it is, or over a copy of the data, where it does not fit otherwise or computes
    so much less that the copy is worth it; None: not even then it fits, or dot products are
    quicker. The copy's stage is put in front of `stage`."""
    x, skipping = found.data, guards(path)
    if not all(_skips_padding(f, x) for f in skipping):
        return None
    fits = not skipping and found.fits and found.dense
    as_it_is = found if fits and found.pays(target) else None
    axes = [_axis(i, n, {*found.own}) for i, n in zip(x.idx, x.buffer.shape, strict=True)]
    if not skipping and all(a.step == 1 for a in axes):
        return as_it_is
    new = Buffer(f"{x.buffer.name}_padded", tuple(_in_order(axes, [a.size for a in axes], [
        Index.of(a.phases) for a in axes])), x.dtype)  # fmt: skip
    moved = Load(new, tuple(_in_order(axes, [a.at for a in axes], [a.phase for a in axes])))
    ((store, _, _),) = s.stage_stores(stage)
    home = [f for f in path if f not in skipping]
    ours = product_of(store, home, moved, found.weight, target)
    if ours is None or not (ours.fits and ours.dense and ours.pays(target)):
        return as_it_is
    if as_it_is is not None and not _worth(as_it_is, ours, axes):
        return as_it_is
    s.func.temps.append(new)
    at = next(k for k, st in enumerate(s.func.body) if st is path[0])
    lanes = target.vector_bytes // x.dtype.nbytes
    s.func.body[at:at] = _copied(f"{stage}.{x.buffer.name}", x.buffer, new, axes, lanes)
    value = rewrite(store.value, lambda e: moved if e is x else None)
    body: Stmt = replace(store, value=value)
    for f in reversed(home):
        body = For(f.var, [body], f.kind)
    s.swap(s.func.body, path[0], [body])
    return ours


def _worth(now: Product, then: Product, axes: Sequence[_Axis]) -> bool:
    """Whether the copy takes less than the tiles that it saves."""
    walked = (a.phases * (a.size.constant() or 1) for a in axes if a.walked)
    return (now.tiles - then.tiles) * now.by.size[0] > COPY * math.prod(walked)


@dataclass(frozen=True)
class _Axis:
    """An axis of the data, of which a copy has every `step`th element together.

    Attributes:
        at: where along the axis of the copy an element is read, and `phase` in which part.
        size: elements of a part, of which there are `phases`.
        base: the element at the begin of the first part.
        walked: whether an axis of the output goes along it.
    """

    at: Index
    phase: Index
    size: Index
    phases: int = 1
    step: int = 1
    base: int = 0
    walked: bool = False

    def pieces(self, phase: int, n: int | None) -> Iterator[tuple[int, IntLike, bool]]:
        """Where along a part of the copy something begins, how long it is, and whether it comes
        from the `n` elements of the data."""
        size = self.size.constant()
        if size is None or n is None:
            yield 0, self.size, True
            return
        first = self.base + phase
        begin = min(size, max(0, -(first // self.step)))
        end = max(begin, min(size, (n - 1 - first) // self.step + 1))
        for a, b, inside in ((0, begin, False), (begin, end, True), (end, size, False)):
            if b > a:
                yield a, b - a, inside


def _axis(i: Index, n: Index, own: Collection[Var]) -> _Axis:
    """The axis of a copy of one of `n` elements, of which those at `i` are read."""
    (low, high), size = i.range(), n.constant()
    whole = _Axis(i, Index(), n)
    if low is None or high is None or size is None:
        return whole
    mine = [v for v in i.vars() if v in own]
    step = i.terms.get(mine[0], 0) if len(mine) == 1 else 0
    if not mine or step <= 1:
        if low >= 0 and high < size:
            return replace(whole, walked=bool(mine))
        return _Axis(i - low, Index(), Index.of(high - low + 1), base=low, walked=bool(mine))
    rest = i - Index.of(mine[0]) * step
    if mine[0] in rest.vars():
        return whole
    low, high = rest.range()
    assert low is not None
    assert high is not None
    one = low == high or not any(c % step for c in rest.terms.values())
    base = low if one else low // step * step
    at = rest - base
    where = mine[0] + at // step
    count = where.range()[1] or 0
    return _Axis(where, Index() if one else at % step, Index.of(count + 1),
                 1 if one else step, step, base, True)  # fmt: skip


def _in_order(
    axes: Sequence[_Axis], along: Sequence[Index], phases: Sequence[Index]
) -> list[Index]:
    """What belongs to the axes of a copy: those of parts come before the first that has some."""
    several = [k for k, a in enumerate(axes) if a.phases > 1]
    first = several[0] if several else 0
    return [*along[:first], *(phases[k] for k in several), *along[first:]]


def _copied(stage: str, old: Buffer, new: Buffer, axes: Sequence[_Axis], lanes: int) -> list[Stmt]:
    """Loops that copy what `old` has, and fill what is around it with zeros, by vectors."""

    def below(
        at: tuple[Index, ...], phases: tuple[Index, ...], source: tuple[Index, ...] | None
    ) -> list[Stmt]:
        d = len(at)
        if d == len(axes):
            value: Expr = const(0, old.dtype) if source is None else Load(old, source)
            return [Store(stage, new, tuple(_in_order(axes, at, phases)), value)]
        out: list[Stmt] = []
        a, n = axes[d], old.shape[d].constant()
        for phase in range(a.phases):
            pieces = a.pieces(phase, n) if source is not None else [(0, a.size, False)]
            for begin, count, inside in pieces:
                for loops, i in _loops(f"{stage}.{d}", count, lanes if d == len(axes) - 1 else 0):
                    here = i + begin
                    read = None
                    if source is not None and inside:
                        read = (*source, here * a.step + (a.base + phase))
                    body = below((*at, here), (*phases, Index.of(phase)), read)
                    for v, kind in reversed(loops):
                        body = [For(v, body, kind)]
                    out += body
        return out

    return below((), (), ())


def _loops(name: str, count: IntLike, lanes: int) -> Iterator[tuple[list[tuple[Var, str]], Index]]:
    """Loops of `count` iterations, as vectors of `lanes` if that is not 0, and the position in
    each."""
    n = Index.of(count).constant()
    if not lanes or n is None:
        v = Var(name, count)
        yield [(v, "serial")], Index.of(v)
        return
    whole, left = divmod(n, lanes)
    if whole:
        v, lane = Var(name, whole), Var("lane", lanes)
        yield [(v, "serial"), (lane, "vector")], v * lanes + lane
    if left:
        lane = Var("lane", left)
        yield [(lane, "vector")], lane + whole * lanes


def _skips_padding(guard: For, x: Load) -> bool:
    """Whether a loop of one or no iteration skips just what lies outside of the data."""
    mine = guard.extent.vars()
    if guard.var in index_vars_of(x) or not all(map(extent_of, mine)):
        return False
    points = np.ogrid[tuple(slice(0, extent_of(v)) for v in mine)]
    env = dict(zip(mine, points, strict=True))
    inside = np.array(True)
    for i, n in zip(x.idx, x.buffer.shape, strict=True):
        if i.vars() & mine:
            if i.vars() - mine or n.constant() is None:
                return False
            at = i.value(env)
            inside = inside & (at >= 0) & (at < n.const)
    runs = guard.extent.value(env)
    return bool(np.all((runs >= 1) == inside)) and guard.extent.range()[1] == 1
