"""How the work of a stage is numbered, so that threads can be given ranges of it.

Each stage of a kernel may have parallel loops, alone or inside others. A task is one iteration of a
parallel loop in one round of the loops around it. Where all parallel loops of a stage run equally
often, tasks are numbered with the rounds innermost: for a convolution that takes the rows of an
image for every block of output channels, a range of tasks is then a range of rows, give or take
some blocks of the first and the last one, while the loops still run block by block. So threads
share the work evenly, and a thread reads what it wrote itself in the layer before. Other stages
number the tasks of one loop after those of another.
"""

from __future__ import annotations

from dataclasses import dataclass

from compiler.errors import LoweringError
from compiler.symbolic import Index
from compiler.tensor.stmt import For, Stmt, walk_stmts


@dataclass(frozen=True)
class Share:
    """Iteration i of a parallel loop is task `i * stride + offset`; the offset is in terms of the
    loops around it. `aligned`: rounds are numbered innermost, so that 0 <= offset < stride."""

    offset: Index
    stride: Index
    aligned: bool


def shares(body: Stmt) -> tuple[Index | None, dict[int, Share]]:
    """The number of tasks of a stage, None if it has no parallel loop; and the share of each of
    these, by id.

    Raises:
        LoweringError: a statement is in no parallel loop though others are, or in two; or the
            rounds of a parallel loop differ in length.
    """
    found: list[tuple[For, Index, Index]] = []  # loop, round, number of rounds
    bare = False
    for s, path, _ in walk_stmts([body]):
        parallel = [f for f in path if f.kind == "parallel"]
        if not isinstance(s, For):
            bare |= not parallel
        elif s.kind == "parallel":
            if parallel:
                raise LoweringError(f"{s.var} and {parallel[0].var} around it are both parallel")
            index, rounds = Index(), Index.of(1)
            for f in path:
                if f.extent != 1:
                    index, rounds = index * f.extent + f.var, rounds * f.extent
            if (rounds.vars() | s.extent.vars()) & {f.var for f in path}:
                raise LoweringError(f"the extents around {s.var} vary: it cannot be parallel")
            found.append((s, index, rounds))
    if not found:
        return None, {}
    if bare:
        raise LoweringError(f"a statement beside the parallel loop {found[0][0].var} is in none")
    out, before = {}, Index()
    if all(s.extent == found[0][0].extent for s, _, _ in found):
        total = sum((rounds for _, _, rounds in found), Index())
        for s, index, rounds in found:
            out[id(s)] = Share(before + index, total, True)
            before = before + rounds
        return total * found[0][0].extent, out
    for s, index, rounds in found:
        out[id(s)] = Share(before + index, rounds, False)
        before = before + rounds * s.extent
    return before, out
