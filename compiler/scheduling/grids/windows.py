"""Small sums over windows that overlap, as of depthwise convolutions and of pooling: a thread does
several of them one below the other, so that what they share is loaded once. Next to each other are
those of neighbouring threads, which load neighbours.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from compiler.scheduling.grids.neighbours import LEAST
from compiler.scheduling.grids.products import even_step, total
from compiler.symbolic import Index, IntLike, Quasi, Var
from compiler.tensor.expr import Load, walk
from compiler.tensor.stmt import For, Stmt, Store, clone, stores, walk_stmts

SEVERAL = (4, 2)
"""Sums of a thread, as many as possible."""
MOST = 16
"""Elements of a window."""


def share_windows(loops: Sequence[For], body: Sequence[Stmt]) -> tuple[list[For], list[Stmt]]:
    """The loops over threads and what a thread does, for fewer threads if some loop is around sums
    over overlapping windows; else as they are."""
    given = list(loops), list(body)
    if not loops or (total(loops).constant() or 0) < LEAST:
        return given
    nodes = [x for x, _, _ in walk_stmts(given[1])]
    taps = [x for x in nodes if isinstance(x, For)]
    if not all(isinstance(x, (For, Store)) for x in nodes) or not taps:
        return given
    size = total(taps).constant()
    inside = {f.var for f in taps}
    every = list(stores(given[1]))
    moving = any(i.vars() & inside for s in every for i in s.idx)
    custom = any(s.buffer.dtype.is_custom or s.value.dtype.is_custom for s in every)
    if size is None or not 1 < size <= MOST or moving or custom:
        return given
    fast = _fastest(loops, given[1])
    for f in reversed(loops):
        n = next((n for n in SEVERAL if f.extent.multiple_of(n)), None)
        if f is fast or fast is None or n is None or not _overlap(f, taps, given[1]):
            continue
        group, each = Var(f.var.name, f.extent // n), Var("each", n)
        m: dict[Var, IntLike] = {f.var: group * n + each}
        inner = [y for x in given[1] for y in _begun(clone(x, m))]
        for x, _, _ in walk_stmts(inner):
            if isinstance(x, For):
                x.kind = "unroll"
        around = [For(group, []) if g is f else g for g in loops]
        return around, [For(each, inner, "unroll")]
    return given


def _fastest(loops: Sequence[For], body: list[Stmt]) -> For | None:
    """The loop whose iterations store neighbours."""
    out = [Load(s.buffer, s.idx) for s in stores(body) if s.buffer.scope == "global"]
    found = (f for f in loops if f.extent != 1 and all(even_step(x, [f]) == 1 for x in out))
    return next(found, None) if out else None


def _overlap(f: For, taps: Sequence[For], body: list[Stmt]) -> bool:
    """Whether windows of one iteration of `f` and of the next have elements in common."""
    read = [x for s in stores(body) for x in walk(s.value) if isinstance(x, Load)]
    for part in (part for x in read for i in x.idx for part in _parts(i)):
        step = abs(part.terms.get(f.var, 0))
        if step and any(step < abs(part.terms.get(t.var, 0)) * t.extent.const for t in taps):
            return True
    return False


def _begun(s: Stmt) -> list[Stmt]:
    """A statement of which the sum begins before its loops, each time."""
    out: list[Stmt] = []
    for x in stores([s]):
        if x.init is not None:
            out.append(Store(f"{x.stage}.init", x.buffer, x.idx, x.init))
            x.init = None
    return [*out, s]


def _parts(i: Index) -> Iterator[Index]:
    """An index, and those that it is computed from."""
    yield i
    for a in i.terms:
        if isinstance(a, Quasi):
            yield from _parts(a.a)
            yield from _parts(a.b)


__all__ = ["share_windows"]
