"""Lane patterns: where the lanes of a vectorized access lie in memory decides how it is loaded or
stored.

Loads and broadcasts are never scheduled: a broadcast is an access that ignores the vector loop, and
a byte transpose is a gather of runs followed by one shuffle.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

Offsets = tuple[int, ...]
_SQUARE = 4
"""Rows of the least square that is turned by shuffles of pairs."""


class Pattern(NamedTuple):
    """How to load lanes: splat | vector | repeat (period) | turned (starts and lengths of the rows
    of a square whose columns are wanted) | runs (starts and lengths, selection) | scalars."""

    kind: str
    period: int = 0
    runs: tuple[tuple[int, int], ...] = ()
    selection: tuple[int, ...] = ()


def points(extents: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """All index tuples, row-major."""
    if not extents:
        yield ()
        return
    for i in range(extents[0]):
        for rest in points(extents[1:]):
            yield (i, *rest)


@lru_cache(maxsize=4096)
def lane_offsets(shape: tuple[int, ...], coefficients: tuple[int, ...]) -> Offsets:
    """Row-major lane offsets of an affine access, e.g. shape (16, 4), coefficients (0, 1)."""
    out = [0]
    for n, c in zip(shape, coefficients, strict=True):
        out = [o + i * c for o in out for i in range(n)]
    return tuple(out)


@lru_cache(maxsize=4096)
def classify(offs: Offsets) -> Pattern:
    """The cheapest way to load lanes at these element offsets."""
    n, first = len(offs), offs[0]
    if all(o == first for o in offs):
        return Pattern("splat")
    if all(o == first + i for i, o in enumerate(offs)):
        return Pattern("vector")
    for p in (2, 4, 8, 16, 32):
        if n % p == 0 and all(o == first + i % p for i, o in enumerate(offs)):
            return Pattern("repeat", p)
    side = math.isqrt(n)
    if side * side == n and side >= _SQUARE and side & (side - 1) == 0:
        step = offs[1] - first
        apart = step >= side
        if apart and offs == tuple(first + i + j * step for i in range(side) for j in range(side)):
            return Pattern("turned", side, tuple((first + j * step, side) for j in range(side)))
    runs: list[list[int]] = []
    for o in sorted(set(offs)):
        if runs and o == runs[-1][-1] + 1:
            runs[-1].append(o)
        else:
            runs.append([o])
    lengths = {len(r) for r in runs}
    distinct, count = len(runs), 1 << (len(runs) - 1).bit_length()
    length = len(runs[0])
    even = length & (length - 1) == 0 or length < 16  # others make slow shuffles
    whole = distinct == count or length >= 4  # loading one of few runs again is cheap
    if len(lengths) == 1 and even and whole and (length > 1 or count <= 4):
        where = {o: i for i, o in enumerate(o for r in runs for o in r)}
        runs += [runs[-1]] * (count - distinct)
        spans = tuple((r[0], len(r)) for r in runs)
        return Pattern("runs", 0, spans, tuple(where[o] for o in offs))
    return Pattern("scalars")


@lru_cache(maxsize=4096)
def windows(offs: Offsets) -> tuple[int, tuple[int, ...]]:
    """(width, starts) of stretches that hold all of these offsets, and nothing before the first or
    behind the last of them; no starts: they lie too far apart."""
    low, high = min(offs), max(offs) + 1
    width = 1 << (min(len(offs), high - low).bit_length() - 1)
    starts: list[int] = []
    for o in sorted(set(offs)):
        if not starts or o >= starts[-1] + width:
            starts.append(min(o, high - width))
        if 2 * len(starts) > len(offs):
            return width, ()
    return width, tuple(starts)


@lru_cache(maxsize=4096)
def store_runs(offs: tuple[int | None, ...]) -> tuple[tuple[int, tuple[int, ...]], ...]:
    """(first offset, lanes) of contiguous pieces with power-of-two lengths of at most 64
    elements."""
    lane = {o: i for i, o in enumerate(offs) if o is not None}
    runs: list[tuple[int, list[int]]] = []
    for o in sorted(lane):
        if runs and o == runs[-1][0] + len(runs[-1][1]):
            runs[-1][1].append(lane[o])
        else:
            runs.append((o, [lane[o]]))
    out = []
    for start, lanes in runs:
        o, sel = start, lanes
        while sel:
            k = min(1 << (len(sel).bit_length() - 1), 64)
            out.append((o, tuple(sel[:k])))
            o, sel = o + k, sel[k:]
    return tuple(out)
