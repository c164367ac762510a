"""How the rows that several stages share are cut into tiles, and these into tasks."""

from __future__ import annotations

import math
from dataclasses import dataclass

from compiler.scheduling.parallelize import TASKS
from compiler.symbolic import Index, IntLike, Var
from compiler.tensor.shared_rows import SharedRows

LEAST_TASKS = 4
"""Tasks that an axis should give to be the one that threads share."""
LEAST_ROWS = 8
"""Rows that a tile has at least: so many sums go side by side."""


@dataclass(frozen=True, eq=False)
class Tiling:
    """Tiles of some of the rows.

    Attributes:
        rows: rows of a tile along each axis.
        loops: loops over tiles, the first of them shared by threads.
        first: the first row of a tile along each axis, in terms of these.
        moving: loops over tiles of the same head.
    """

    rows: tuple[int, ...]
    loops: tuple[Var, ...]
    first: tuple[IntLike, ...]
    moving: frozenset[Var]


def cut(shared: SharedRows, cache: int) -> list[Tiling]:
    """Tiles of rows, one head each, whose largest temporary fits the cache, and, where these leave
    some rows, those; empty: all is one tile, or heads have few rows."""
    *heads, n = shared.extents
    if n < LEAST_ROWS or not all(heads):
        return []
    every = math.prod(shared.extents)
    kept = (b for b in shared.buffers if b is not shared.result)
    sizes = [b.size.const * b.dtype.nbytes // every for b in kept]
    most = max(LEAST_ROWS, cache // max(1, *sizes))
    if n <= most and math.prod(heads) == 1:
        return []
    by_heads = any(_tasks(x) >= LEAST_TASKS for x in heads)
    rows, tiles = (n, 1) if n <= most else _cut(n, most, by_heads)
    whole = _tiling((*heads, tiles), rows, 0)
    left = n - rows * tiles
    return [whole, _tiling((*heads, 1), left, n - left)] if left else [whole]


def _cut(n: int, most: int, by_heads: bool) -> tuple[int, int]:
    """Rows of a tile, at most `most`, and how many such tiles there are in `n` rows: if there is
    such a number, as divides n, or else as gives threads enough."""
    least = max(most // 2, LEAST_ROWS)
    even = (d for d in range(most, least - 1, -1) if n % d == 0)
    for rows in (*even, *range(most, LEAST_ROWS - 1, -1)):
        if by_heads or _few(n // rows) >= LEAST_TASKS:
            return rows, n // rows
    return most, n // most


def _few(extent: int) -> int:
    """The largest divisor of an extent that is not more than the tasks that are wanted."""
    return max(d for d in range(1, min(extent, TASKS) + 1) if extent % d == 0)


def _tasks(extent: int) -> int:
    """How many tasks an axis is cut into: few that divide it, or the next number that is enough."""
    few = _few(extent)
    more = (d for d in range(TASKS + 1, extent + 1) if extent % d == 0)
    return few if few >= LEAST_TASKS else next(more, few)


def _tiling(extents: tuple[int, ...], rows: int, start: int) -> Tiling:
    """Tiles of `rows` rows of a head, `extents` of them along each axis, from row `start`."""
    counts = [_tasks(x) for x in extents]
    able = (k for k, d in enumerate(counts) if d >= LEAST_TASKS)
    apart = next(able, counts.index(max(counts)))
    task = Var("task", counts[apart])
    loops, at, last = [task], list[IntLike](), len(extents) - 1
    for k, extent in enumerate(extents):
        here: IntLike = Index.of(task) if k == apart else 0
        left = extent // counts[apart] if k == apart else extent
        if left > 1:
            loops.append(Var(f"tile{k}", left))
            here = here * left + loops[-1]
        at.append(here)
    moving = frozenset(Index.of(at[last]).vars())
    at[last] = at[last] * rows + start
    return Tiling((*(1 for _ in extents[:last]), rows), tuple(loops), tuple(at), moving)


__all__ = ["Tiling", "cut"]
