"""How the work of a stage is numbered, so that threads can be given ranges of it.

Each stage of a kernel may have parallel loops, alone or inside others. A task is one iteration of a
parallel loop in one round of the loops around it. Where all parallel loops of a stage run equally
often, tasks are numbered with the rounds innermost: for a convolution that takes the rows of an
image for every block of output channels, a range of tasks is then a range of rows, give or take
some blocks of the first and the last one, while the loops still run block by block. So threads
share the work evenly, and a thread reads what it wrote itself in the layer before. Parallel loops
inside parallel loops are numbered as one loop over all their iterations: with blocks of channels
around rows, a range of tasks is a range of channels. Other stages number the tasks of one loop
after those of another.
"""

from __future__ import annotations

from dataclasses import dataclass

from compiler.errors import LoweringError
from compiler.symbolic import Index
from compiler.tensor.stmt import For, Stmt, walk_stmts


@dataclass(frozen=True)
class Numbering:
    """Iteration i of a parallel loop is task `i * stride + offset`; the offset is in terms of the
    loops around it. `aligned`: rounds are numbered innermost, so that 0 <= offset < stride."""

    offset: Index
    stride: Index
    aligned: bool


def parallel_tasks(body: Stmt) -> tuple[Index | None, dict[int, Numbering]]:
    """The number of tasks of a stage, None if it has no parallel loop; and for each of these, by
    id, how its iterations are numbered.

    Raises:
        LoweringError: a statement is in no parallel loop though others are; or the rounds of a
            parallel loop differ in length.
    """
    found: list[_Loop] = []
    bare = False
    for s, path, _ in walk_stmts([body]):
        outer = [f for f in path if f.kind == "parallel"]
        if not isinstance(s, For):
            bare |= not outer
        elif s.kind == "parallel":
            found = [x for x in found if all(x.loop is not f for f in path)]  # it is not innermost
            found.append(_loop(s, path))
    if not found:
        return None, {}
    if bare:
        raise LoweringError(f"a statement beside the parallel loop {found[0].loop.var} is in none")
    out, before = {}, Index()
    extent = found[0].loop.extent
    if all(x.loop.extent == extent and x.outer == 1 for x in found):
        total = sum((x.rounds for x in found), Index())
        for x in found:
            out[id(x.loop)] = Numbering(before + x.round, total, True)
            before = before + x.rounds
        return total * extent, out
    for x in found:
        offset = before + x.at * x.loop.extent * x.rounds + x.round
        out[id(x.loop)] = Numbering(offset, x.rounds, False)
        before = before + x.outer * x.loop.extent * x.rounds
    return before, out


@dataclass(frozen=True)
class _Loop:
    """An innermost parallel loop: `at`, of `outer`, counts the iterations of the parallel loops
    around it, and `round`, of `rounds`, those of the others."""

    loop: For
    at: Index
    outer: Index
    round: Index
    rounds: Index


def _loop(loop: For, path: tuple[For, ...]) -> _Loop:
    if (set().union(*(f.extent.vars() for f in (*path, loop)))) & {f.var for f in path}:
        raise LoweringError(f"the extents around {loop.var} vary: it cannot be parallel")
    at, outer = _count([f for f in path if f.kind == "parallel"])
    turn, rounds = _count([f for f in path if f.kind != "parallel"])
    return _Loop(loop, at, outer, turn, rounds)


def _count(loops: list[For]) -> tuple[Index, Index]:
    """The number of an iteration of nested loops, and of how many."""
    at, total = Index(), Index.of(1)
    for f in loops:
        if f.extent != 1:
            at, total = at * f.extent + f.var, total * f.extent
    return at, total
