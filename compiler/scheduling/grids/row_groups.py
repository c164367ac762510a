"""Which loop nests, of those that follow each other, one grid does over the same rows."""

from __future__ import annotations

from compiler.scheduling import Schedule
from compiler.scheduling.grids.row_blocks import row_grid
from compiler.scheduling.grids.row_threads import row_threads
from compiler.scheduling.grids.rows import assumed, rows_of
from compiler.scheduling.grids.tiles import MULTIPROCESSORS
from compiler.target.registry import Target
from compiler.tensor.expr import Buffer
from compiler.tensor.stmt import Stmt, accesses

LEAST = 16
"""Elements of a row from which on threads share it."""
LONG, FEW = 1 << 13, MULTIPROCESSORS // 2
"""Elements of a row from which on elementwise stages are grids of their own, if there are fewer
rows than that: of all multiprocessors, only so many would have work."""


MANY, COLUMN = 1 << 11, 1 << 10
"""Rows from which on a thread does one, and elements that these have at most."""
LITTLE = 1 << 12
"""Elements that are so few that kernels less are worth more than their threads."""


def group_rows(s: Schedule, target: Target) -> None:
    """Make one kernel of nests over the same rows, of as many as there are: by blocks of threads
    (see `row_blocks`) if rows lie along memory, else perhaps by threads (see `row_threads`)."""
    body, at = s.func.body, 0
    while at < len(body):
        for end in range(len(body), at, -1):
            made = _grid(s, at, end, target)
            if made is not None:
                grid, spare = made
                body[at:end] = [grid]
                s.func.temps = [b for b in s.func.temps if b not in spare]
                break
        at += 1


def _grid(s: Schedule, at: int, end: int, target: Target) -> tuple[Stmt, set[Buffer]] | None:
    body = s.func.body
    rows = rows_of(body[at:end])
    if rows is None:
        return None
    others = {b for b, *_ in accesses([*body[:at], *body[end:]])}
    local = {b for b in rows.axes if b in s.func.temps and b not in others}
    count, longest = assumed(rows.count), rows.longest
    wide = any(not n.reduces and n.length != 1 for n in rows.nests)
    if rows.along and longest >= LEAST and not (wide and count < FEW and longest >= LONG):
        return row_grid(rows, local, target)
    several = wide or sum(n.reduces for n in rows.nests) > 1
    many = count >= MANY and longest <= COLUMN
    if several and (many or count * longest <= LITTLE):
        return row_threads(rows, local, target)
    return None


__all__ = ["group_rows"]
