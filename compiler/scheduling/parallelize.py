"""Which loops threads share.

A thread should read what it wrote itself: a cache line that two cores have read costs tens of
nanoseconds when one of them writes it again, ten times what fetching it costs. So every stage is
shared out along the same axis of its output where it can be: the first one after batch and channels
(tensors are N, C, spatial ..., perhaps with a block of channels last). Where blocks of channels are
small, threads take ranges of blocks, and rows of the last block only: processors fetch some
kilobytes ahead, and would fetch the rows of others. Where the constants are much larger than the
data, each thread takes channels as well, so as to read its part of the constants only.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from compiler.scheduling import Schedule
from compiler.symbolic import Var
from compiler.tensor.expr import Buffer
from compiler.tensor.stmt import Attempt, For, Pick, Stmt, When, accesses, stores, walk_stmts

TASKS = 16
"""Tasks that a stage should at least have, if they can be had."""
ROWS = 4
"""Iterations that make a spatial axis worth sharing out."""
MAP_BYTES = 1 << 14
"""Bytes of one channel block of the output (or one channel) below which threads take channels."""
CONSTANTS = 16
"""A stage with more bytes of constants per byte of data is not shared out along a spatial axis."""


def share_out(s: Schedule, constants: Collection[Buffer], tasks: int = 0) -> None:
    """Choose parallel loops for every top-level loop nest that has none: the outermost that give
    at least so many `tasks`, or those that the rules like; of one task, there are none."""
    if tasks == 1:
        return
    known = {*constants, *s.func.packed}
    for root in s.func.body:
        if isinstance(root, For) and not any(
            isinstance(x, For) and x.kind == "parallel" for x, _, _ in walk_stmts([root])
        ):
            inside = _Inside(root)
            chosen = _choose(root, inside, known, tasks)
            if chosen:
                _mark([root], chosen, inside, _small_maps(root))


class _Inside:
    """Which loops there are in which statements of a loop nest, by name."""

    def __init__(self, root: For):
        self._names: dict[int, set[str]] = {}
        self._note(root)

    def _note(self, s: Stmt) -> set[str]:
        names = {s.var.name} if isinstance(s, For) else set[str]()
        if isinstance(s, (For, When, Pick)):
            names.update(*map(self._note, s.body))
        elif isinstance(s, Attempt):
            names.update(*(self._note(x) for part in s.parts for x in part))
        self._names[id(s)] = names
        return names

    def holds(self, s: Stmt, name: str) -> bool:
        """Whether a statement is or has a loop of this name."""
        return name in self._names.get(id(s), ())


@dataclass(frozen=True)
class _Candidate:
    """Loops of one name that may be shared out; `tasks` is the least number of iterations there are
    in all rounds, `extent` in one; `axes` are the axes of the output along which they go."""

    name: str
    tasks: int
    extent: int
    axes: frozenset[int]


def _choose(root: For, inside: _Inside, constants: set[Buffer], tasks: int) -> str:
    """The name of the loops to share out; empty: none."""
    every = list(stores([root]))
    written = {st.buffer for st in every if st.buffer.scope == "global"}
    # What is stored where data says may be stored to again in any round of the loops inside.
    picked = {x.var for x, _, _ in walk_stmts([root]) if isinstance(x, Pick)}
    alone = any(picked & i.vars() for st in every for i in st.idx)
    alone |= any(b in written and not w for b, _, w, _ in accesses([root]))
    names = [root.var.name] if alone else _serial_names(root)
    found = [c for name in names if (c := _candidate(root, inside, name)) is not None]
    if not found:
        return ""
    if tasks:
        many = next((c for c in found if c.tasks >= tasks), None)
        return (many or max(found, key=lambda c: c.tasks)).name
    if found[0].name == root.var.name and found[0].extent >= TASKS:
        return root.var.name
    if not _constants_dominate(root, constants):
        rank = max(len(st.idx) for st in every if st.buffer in written)
        for axis in range(2, rank - 1) if rank > 3 else range(1, rank - 1):
            for c in found:
                if axis in c.axes and c.extent >= ROWS:
                    return c.name
    enough = next((c for c in found if c.tasks >= TASKS), None)
    return (enough or max(found, key=lambda c: c.tasks)).name


def _small_maps(root: For) -> bool:
    """Whether a block of channels is so small that a thread which reads its rows of it would fetch,
    ahead of need, many of another's."""
    out = next(st.buffer for st in stores([root]) if st.buffer.scope == "global")
    size = math.prod(n.range()[1] or MAP_BYTES for n in out.shape[2:]) * out.dtype.nbytes
    return len(out.shape) > 3 and size < MAP_BYTES


def _constants_dominate(root: For, constants: set[Buffer]) -> bool:
    used = {b for b, *_ in accesses([root]) if b.scope == "global"}
    size = {b: (b.size.range()[0] or 1) * b.dtype.nbytes for b in used}
    weights = sum(n for b, n in size.items() if b in constants)
    return weights > CONSTANTS * sum(n for b, n in size.items() if b not in constants)


def _serial_names(root: For) -> list[str]:
    """Names of the loops below `root`, itself included, that are in serial loops only, and in no
    condition."""
    names: dict[str, None] = {}
    inside: set[int] = set()
    for s, path, _ in walk_stmts([root]):
        if isinstance(s, (When, Pick)):
            inside |= {id(x) for x, _, _ in walk_stmts(s.body)}
        serial = isinstance(s, For) and all(f.kind == "serial" for f in (*path, s))
        if isinstance(s, For) and serial and id(s) not in inside:
            names[s.var.name] = None
    return list(names)


def _candidate(root: For, inside: _Inside, name: str) -> _Candidate | None:
    """What sharing out the loops of this name gives; None if that is not possible."""
    tasks, widest, axes = 0, 0, set[int]()
    for unit, path in _units([root], inside, name):
        loop = _named(unit, name)
        nest = path if loop is None else (*path, loop)
        around = {f.var for f in path}
        if any(f.kind != "serial" or f.extent.vars() & around for f in nest):
            return None
        if not _stands_alone(unit):
            return None
        if loop is not None:
            moved = _moved_axes(loop)
            if not moved:
                return None
            axes |= moved
            widest = max(widest, _least(loop))
        tasks += math.prod(map(_least, nest))
    return _Candidate(name, tasks, widest, frozenset(axes))


def _least(loop: For) -> int:
    return loop.extent.range()[0] or 1


def _moved_axes(loop: For) -> set[int]:
    """Axes of the output along which iterations write to different places; empty if some statement
    writes to the same place in all of them."""
    axes = set[int]()
    for st in stores([loop]):
        if st.buffer.scope == "global":
            moved = {k for k, i in enumerate(st.idx) if loop.var in i.vars()}
            if not moved:
                return set()
            axes |= moved
    return axes


def _units(
    body: list[Stmt], inside: _Inside, name: str, path: tuple[For, ...] = ()
) -> Iterator[tuple[list[Stmt], tuple[For, ...]]]:
    """The loops called `name`, each by itself, and the statements before, between and after them,
    with the loops around them."""
    for unit in _parts(body, inside, name):
        (first, *_) = unit
        if isinstance(first, For) and first.var.name != name and inside.holds(first, name):
            yield from _units(first.body, inside, name, (*path, first))
        else:
            yield unit, path


def _parts(body: list[Stmt], inside: _Inside, name: str) -> list[list[Stmt]]:
    """A body cut into single loops that hold or are `name`, and runs of other statements."""
    return [
        part
        for holds, run in itertools.groupby(body, lambda s: inside.holds(s, name))
        for part in ([[s] for s in run] if holds else [list(run)])
    ]


def _named(unit: list[Stmt], name: str) -> For | None:
    (first, *_) = unit
    return first if isinstance(first, For) and first.var.name == name else None


def _stands_alone(unit: list[Stmt]) -> bool:
    """Whether statements write memory, and themselves start whatever they keep in registers."""
    kept = {b for b, *_ in accesses(unit) if b.scope == "register"}
    begun = {st.buffer for st in stores(unit) if not st.update}
    return kept <= begun and any(st.buffer.scope == "global" for st in stores(unit))


def _mark(body: list[Stmt], name: str, inside: _Inside, around: bool) -> None:
    """Make the loops called `name` parallel (and those around them, to number tasks in the order in
    which they run), and put what is beside them in parallel loops of one iteration."""
    new: list[Stmt] = []
    for unit in _parts(body, inside, name):
        (first, *_) = unit
        if isinstance(first, For) and inside.holds(first, name):
            if first.var.name == name:
                first.kind = "parallel"
            else:
                _mark(first.body, name, inside, around)
                if around:
                    first.kind = "parallel"
            new.append(first)
        else:
            new.append(For(Var(name + "_rest", 1), unit, "parallel"))
    body[:] = new
