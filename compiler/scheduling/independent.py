"""Loops that people mark as vectorized or parallel: their iterations must not depend on each other.

The compiler's own schedules see to that themselves.
"""

from __future__ import annotations

import math

import numpy as np

from compiler.errors import ScheduleError
from compiler.symbolic import Index, Var
from compiler.tensor.expr import Buffer
from compiler.tensor.stmt import (
    For,
    Intrin,
    Pick,
    PrimFunc,
    Store,
    accesses,
    walk_stmts,
)

MOST_POINTS = 1 << 16
"""Iterations that are looked at one by one; of more, only linear indices are understood."""


def check_independent(f: PrimFunc) -> None:
    """Refuse vectorized and parallel loops whose iterations may depend on each other.

    Raises:
        ScheduleError: names the loop and what it shares.
    """
    for s, _, _ in walk_stmts(f.body):
        if isinstance(s, For) and s.kind in ("vector", "parallel"):
            _check(s)


def independent(loop: For) -> bool:
    """Whether iterations of a loop share no memory, but what each stores before it reads it, in
    registers and on the stack."""
    try:
        _check(loop)
    except ScheduleError:
        return False
    begun: set[Buffer] = set()
    for s, _, _ in walk_stmts(loop.body):
        store = s.store if isinstance(s, Intrin) else s
        if not isinstance(store, Store):
            continue
        read = {b for b, _, stored, _ in accesses([s]) if not stored}
        if store.update and store.init is None:
            read.add(store.buffer)
        if any(b.scope != "global" and b not in begun for b in read):
            return False
        begun.add(store.buffer)
    return True


def _check(loop: For) -> None:
    inner = [s.var for s, _, _ in walk_stmts(loop.body) if isinstance(s, (For, Pick))]
    for v in inner:
        if loop.kind == "vector" and v.extent is not None and loop.var in v.extent.vars():
            raise ScheduleError(f"loop {v} goes as far as the vectorized loop {loop.var} says")
    every = [(b, idx, stored) for b, idx, stored, _ in accesses(loop.body) if b.scope == "global"]
    for b in dict.fromkeys(b for b, _, stored in every if stored):
        places = {idx for x, idx, _ in every if x is b}
        if not _own(places, loop.var, inner):
            word = "vectorized" if loop.kind == "vector" else loop.kind
            raise ScheduleError(
                f"iterations of the {word} loop {loop.var} share elements of {b.name}: "
                "make the loop serial"
            )


def _own(places: set[tuple[Index, ...] | None], v: Var, inner: list[Var]) -> bool:
    """Whether each iteration of `v` reads and stores elements that no other does."""
    known = [idx for idx in places if idx is not None]
    if len(known) < len(places):
        return False  # somewhere that is known only when it runs
    if len(known) == 1:
        return _apart(known[0], v, inner)
    # All of them stay in one slice of the tensor, which each iteration has for itself.
    common = [same.pop() for same in map(set, zip(*known, strict=True)) if len(same) == 1]
    return any(_apart((i,), v, inner) for i in common)


def _apart(idx: tuple[Index, ...], v: Var, inner: list[Var]) -> bool:
    """Whether iterations of `v` store elements of their own, whatever the loops inside it do."""
    inside = [x for x in inner if any(x in i.vars() for i in idx)]
    loops = [v, *inside]
    sizes = [None if x.extent is None else x.extent.range()[1] for x in loops]
    known = [n for n in sizes if n is not None]
    if len(known) == len(loops) and math.prod(known) <= MOST_POINTS:
        outer = dict.fromkeys({x for i in idx for x in i.vars()} - set(loops), 0)
        env = {**outer, **dict(zip(loops, np.indices(known), strict=True))}
        points = [np.broadcast_to(i.value(env), known).ravel() for i in idx]
        first = np.indices(known)[0].ravel()
        stored = np.unique(np.stack([*points, first], 1), axis=0)
        return len(np.unique(stored[:, :-1], axis=0)) == len(stored)
    return any(_linear(i, v, inside) for i in idx)


def _linear(i: Index, v: Var, inside: list[Var]) -> bool:
    """Whether steps of `v` in an index are larger than what the loops inside it add."""
    factor = i.terms.get(v, 0)
    rest = i - v * factor
    fixed = [a for a in rest.terms if not a.leaves() & {v, *inside}]
    low, high = Index({a: c for a, c in rest.terms.items() if a not in fixed}).range()
    moves = v in rest.vars() or low is None or high is None
    return not moves and abs(factor) > (high or 0) - (low or 0)
