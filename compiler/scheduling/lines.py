"""Loops that go along one line of memory together: short rows that lie one behind the other are one
row for vectors, of which they would fill less than a whole number."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from compiler.scheduling import Schedule
from compiler.scheduling.sketched import fuse_innermost
from compiler.symbolic import Index, Var
from compiler.tensor.expr import Gather, Load, walk
from compiler.tensor.stmt import For, Store

LONG = 8
"""Vectors of a row of which the last one hardly counts."""


def runs(flat: Index, loops: Sequence[Var], extents: Sequence[int | None]) -> bool:
    """Whether an access moves to the next element with every step of these loops, run as one."""
    expected = 1
    for v, n in zip(reversed(loops), reversed(extents), strict=True):
        if n != 1 and step_of(flat, v) != expected:
            return False
        expected *= n or 1
    return True


def step_of(flat: Index, v: Var) -> int | None:
    """Elements by which an access moves with a loop; None: not by the same number each time."""
    if any(v in a.leaves() for a in flat.terms if not isinstance(a, Var)):
        return None
    return flat.terms.get(v, 0)


def fuse_short_rows(
    s: Schedule, store: Store, path: Sequence[For], lanes: int, vectors: int = 1
) -> tuple[Store, tuple[For, ...]]:
    """Make so many of the innermost loops of an elementwise stage one that vectors of `lanes` are
    filled, so many at least, where all that it reads and writes lies along one line, or does not
    move at all; else nothing is changed. Returns the stage's statement and loops."""

    def short(n: int) -> bool:
        return (n % lanes != 0 or n < vectors * lanes) and n < LONG * lanes

    n = path[-1].extent.constant()
    if n is None or not short(n):
        return store, tuple(path)
    count, best = 1, n
    while short(best) and count < len(path):
        if not one_line(store, path[-count - 1 :]):
            break
        count += 1
        best *= path[-count].extent.const
    return (store, tuple(path)) if best == n else fused(s, store, path, count)


def one_line(store: Store, inner: Sequence[For]) -> bool:
    """Whether all that a statement reads and writes lies along one line when these loops, the
    innermost around it, are run as one, or does not move, as what they reduce to does not."""
    if any(isinstance(e, Gather) for e in walk(store.value)):
        return False
    extents = [f.extent.constant() for f in inner]
    nested = all(f.body == [g] and g.kind == f.kind for f, g in pairwise(inner))
    if None in extents or not nested:
        return False
    loops = [f.var for f in inner]
    out = store.buffer.flat(store.idx)
    flats = [e.buffer.flat(e.idx) for e in walk(store.value) if isinstance(e, Load)]
    lies = runs(out, loops, extents) if not store.update else not _moves(out, loops)
    return lies and all(runs(x, loops, extents) or not _moves(x, loops) for x in flats)


def fused(
    s: Schedule, store: Store, path: Sequence[For], count: int
) -> tuple[Store, tuple[For, ...]]:
    """The statement and the loops of a stage once its `count` innermost loops are one."""
    fuse_innermost(s, path, count)
    ((store, path, _),) = s.stage_stores(store.stage)
    return store, tuple(path)


def _moves(flat: Index, loops: Sequence[Var]) -> bool:
    return any(step_of(flat, v) != 0 for v in loops)


__all__ = ["fuse_short_rows", "fused", "one_line", "runs", "step_of"]
