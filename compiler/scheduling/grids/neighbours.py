"""Large elementwise nests of which each thread does several neighbours, which it loads and stores
together: 16 bytes of float32 in one instruction, and four bytes where one would be a whole access.
"""

from __future__ import annotations

from compiler.scheduling.grids.products import At, even_step, evenly, numbered, total
from compiler.scheduling.grids.tiles import MULTIPROCESSORS
from compiler.symbolic import Index, Var, imin
from compiler.tensor.expr import CallExtern, Gather, IndexValue, Load, loads, subst, walk
from compiler.tensor.stmt import For, Stmt, Store

TOGETHER, WIDEST = 4, 4
"""Neighbours of a thread, and the most bytes of one."""
THREADS = 128
"""Threads of a block."""
LEAST = TOGETHER * THREADS * MULTIPROCESSORS
"""Elements from which on all multiprocessors have work."""


def neighbours(s: Stmt) -> Stmt | None:
    """The grid of a nest that stores elements in the order in which they lie, each computed from
    elements that lie so, too, or are the same for neighbours; None of others, and of small ones."""
    loops: list[For] = []
    while isinstance(s, For) and s.kind in ("serial", "parallel") and len(s.body) == 1:
        loops.append(s)
        s = s.body[0]
    if not isinstance(s, Store) or s.update or s.init is not None:
        return None
    several = [f for f in loops if f.extent != 1]
    count = total(several).constant()
    if count is None or count < LEAST or count % TOGETHER:
        return None
    single = {f.var: 0 for f in loops if f.extent == 1}
    there = Load(s.buffer, tuple(i.subst(single) for i in s.idx))
    value = subst(s.value, single)
    if any(isinstance(e, (CallExtern, Gather, IndexValue)) for e in walk(value)):
        return None
    every = [there, *loads(value)]
    if any(x.dtype.is_custom or x.dtype.nbytes > WIDEST for x in every):
        return None
    if even_step(there, several) != 1 or not all(_together(x, several) for x in every):
        return None
    groups = count // TOGETHER
    block = Var("block", -(-groups // THREADS))
    whole = groups % THREADS == 0
    thread = Var("thread", THREADS if whole else imin(THREADS, groups - block * THREADS))
    lane = Var("lane", TOGETHER)
    where = [At(several, (block * THREADS + thread) * TOGETHER, Index.of(lane))]
    node = Store(s.stage, s.buffer, evenly(there, where).idx, numbered(value, where))
    body: list[Stmt] = [For(lane, [node], "vector")]
    return For(block, [For(thread, body, "threadIdx.x")], "blockIdx.x")


def _together(x: Load, loops: list[For]) -> bool:
    """Whether neighbours are computed from neighbours of a load, or from one element of it."""
    if even_step(x, loops) == 1:
        return True
    last = loops[-1:]
    return last[0].extent.multiple_of(TOGETHER) and even_step(x, last) in (0, 1)


__all__ = ["neighbours"]
