"""Entries of constant tables that are computed from their positions, for all lanes at once, where a
target has no permutation that looks them up.

The number that rounds to a tapered format has an exponent that grows by a step with the size of
what it rounds, and by another step beyond a bend. Such a table is

    (slope * j + |((j + ahead) >> shift) - bend / 2|) * 2**23 + start
    where j = (position + turn) % size

but for a few runs of positions that have another entry; or the upper half of that, twice, where all
entries have two halves that are alike. Which numbers these are is found by trying, and that they
give every entry of the table, too. It takes a dozen instructions. A gather from memory takes a load
for each lane, and AVX2's takes longer than these on many CPUs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from compiler.target.emit import Emitter, Val
from compiler.target.intrinsics.x86_look_up import field, halves_are_alike
from compiler.tensor.expr import Expr, Gather
from compiler.types.dtypes import FLOAT32, Array

_MANTISSA = 23
_MOST = 20
"""Instructions that a formula may take."""
_LONGEST = 64
"""Entries of a table whose formula is looked for: twice as many take seven times as long."""
_TRIED = 24
"""Shapes whose runs are looked at."""
_STEEPEST = 3
"""log2 of how many positions a step may be long."""


@dataclass(frozen=True)
class Formula:
    """What gives every entry of a table.

    Attributes:
        mask: of the bits that a position has in the number that it is a field of.
        turn, slope, ahead, shift, bend, start: as above.
        twice: whether that is but the upper half of entries whose halves are alike.
        ramp: no entry is more than j * 2**23 and this; None: there is no such bound.
        least: no entry is less; None: there is no such bound.
        runs: (first, last, entry): of the positions j that have another one.
    """

    mask: int
    turn: int
    slope: int
    ahead: int
    shift: int
    bend: int
    start: int
    twice: bool = False
    ramp: int | None = None
    least: int | None = None
    runs: tuple[tuple[int, int, int], ...] = ()

    @property
    def instructions(self) -> int:
        """How many it takes, about."""
        base = 4 + bool(self.turn) + self.slope + bool(self.ahead) + 2 * bool(self.shift)
        base += 2 * self.twice
        ends = [first in (0, last) or last == self.mask for first, last, _ in self.runs]
        base += 2 * (self.ramp is not None) + (self.least is not None)
        return base + sum(2 if one else 4 for one in ends)


def formula(x: Gather, enabled: frozenset[str]) -> Formula | None:
    """The formula of a look-up on a target with the features `enabled`; None if it is better looked
    up in memory, or has no formula."""
    data = x.buffer.data
    if "avx2" not in enabled or data is None or x.buffer.dtype != FLOAT32:
        return None
    found = field(x)
    if found is None or data.size > _LONGEST:
        return None
    most = 255 if found.floor else data.size - 1
    if found.number.dtype.bits != 32 or found.place < _MANTISSA or most << found.place >= 2**31:
        return None
    return _formula(data.tobytes(), found.floor)


@lru_cache(maxsize=256)
def _formula(table: bytes, floor: int) -> Formula | None:
    words: Array = np.frombuffer(table, np.uint32)
    twice = halves_are_alike(words)
    if floor:  # bytes as positions, of which those below the floor count as it
        words = words[np.maximum(np.arange(256), floor) % len(words)]
    known = ~np.isnan(words.view(np.float32))
    known[:floor] = False
    entries, counts = np.unique(words[known], return_counts=True)
    if len(entries) < 4:
        return None
    rare = known & (words != entries[counts.argmax()])
    words = words & np.uint32(0xFFFF0000) if twice else words
    for given in (known, rare):  # what most entries are may be a bound that the line comes to
        turns = (0,) if floor else range(len(words))
        tries = [t for turn in turns for t in _tries(words, given, turn, twice, bool(floor))]
        tries.sort(key=lambda t: -t[0])
        found = [_repaired(f, words) for fits, f in tries[:_TRIED] if 2 * fits > given.sum()]
        best = min(found, key=lambda f: f.instructions, default=None)
        if best is not None and best.instructions <= _MOST:
            return best
    return None


def _tries(
    words: Array, known: Array, turn: int, twice: bool, ahead: bool
) -> list[tuple[int, Formula]]:
    """Formulas without runs, one of every shape, and how many of the entries each gives."""
    positions, mask = np.flatnonzero(known), len(words) - 1
    j = (positions + turn) & mask
    found = []
    for shift in range(_STEEPEST + 1):
        for more in range(1 << shift) if ahead else (0,):
            steps = (j + more) >> shift
            bends = np.arange(2 * steps.min(), 2 * steps.max() + 1)
            bent = np.abs(2 * steps - bends[:, None])
            for slope in (0, 1):
                line = (2 * slope * j + bent) << (_MANTISSA - 1)
                rest = words[positions] - line.astype(np.uint32)
                start = np.sort(rest, axis=1)[:, rest.shape[1] // 2]  # what more than half have
                fits = (rest == start[:, None]).sum(axis=1)
                k = int(fits.argmax())
                shape = mask, turn, slope, more, shift, int(bends[k]), int(start[k]), twice
                found.append((int(fits[k]), Formula(*shape)))
    return found


def _repaired(f: Formula, words: Array) -> Formula:
    """The same with bounds and runs, so that it gives every entry."""
    j = np.arange(f.mask + 1)
    want = words[(j - f.turn) & f.mask].view(np.int32)
    bent = 2 * f.slope * j + np.abs(2 * ((j + f.ahead) >> f.shift) - f.bend)
    # As the processor does: words, which are compared as signed ones.
    line = ((bent << (_MANTISSA - 1)) + f.start & 0xFFFFFFFF).astype(np.uint32).view(np.int32)
    wrong = (line != want) & (want > 0)
    rise = (j << _MANTISSA).astype(np.int32)
    ramps: list[int | None] = [None, *_often((want - rise)[wrong & (want < line)])]
    bounds: list[int | None] = [None, *_often(want[wrong])]
    made = []
    for ramp in ramps:
        below = line if ramp is None else np.minimum(line, rise + np.int32(ramp))
        for least in bounds:
            got = below if least is None else np.maximum(below, least)
            runs = _runs([(int(w), bool(w != g)) for w, g in zip(want, got, strict=True)])
            made.append(replace(f, ramp=ramp, least=least, runs=tuple(runs)))
    return min(made, key=lambda f: f.instructions)


def _often(numbers: Array) -> list[int]:
    """The two numbers that come most often, of those that come more than once."""
    found, counts = np.unique(numbers, return_counts=True)
    order = counts.argsort(kind="stable")[::-1][:2]
    return [int(found[k]) for k in order if counts[k] > 1]


def _runs(entries: list[tuple[int, bool]]) -> list[tuple[int, int, int]]:
    """Runs of one entry, as short as can be, that cover all that are marked."""
    runs: list[tuple[int, int, int]] = []
    for j, (entry, marked) in enumerate(entries):
        if not marked:
            continue
        if runs and runs[-1][2] == entry and all(e == entry for e, _ in entries[runs[-1][1] : j]):
            runs[-1] = runs[-1][0], j, entry
        else:
            runs.append((j, j, entry))
    last = len(entries) - 1
    return [_open(r, entries, last) for r in runs]


def _open(
    run: tuple[int, int, int], entries: list[tuple[int, bool]], last: int
) -> tuple[int, int, int]:
    """A run, up to the end of the table if all there have its entry: a bound less to compare."""
    first, end, entry = run
    if all(e == entry for e, _ in entries[:first]):
        first = 0
    if all(e == entry for e, _ in entries[end:]):
        end = last
    return first, end, entry


def compute(e: Emitter, x: Gather, f: Formula, lanes: int, evaluate: Callable[[Expr], Val]) -> Val:
    """The entries of a table by its formula."""
    found = field(x)
    assert found is not None
    at, place = evaluate(found.number), found.place

    def word(n: int) -> Val:
        return e.const((n + 2**31) % 2**32 - 2**31, "i32", lanes)

    def plus(v: Val, n: int) -> Val:
        return e.bin("add", v, word(n)) if n else v

    bits = f.mask << place
    j = e.bin("and", plus(at, f.turn << place), word(bits))
    steps = plus(j, f.ahead << place)
    if f.shift:
        steps = e.bin("and", e.bin("lshr", steps, word(f.shift)), word(bits))
    bent = plus(steps, -(f.bend << (place - 1)))
    out = e.call(f"llvm.abs.v{lanes}i32", "i32", lanes, [bent, Val("false", "i1")])
    if f.slope:
        out = e.bin("add", out, j)
    if place > _MANTISSA:
        out = e.bin("lshr", out, word(place - _MANTISSA))
    out = plus(out, f.start)
    if f.ramp is not None:
        rise = plus(e.bin("lshr", j, word(place - _MANTISSA)) if place > _MANTISSA else j, f.ramp)
        out = e.call(f"llvm.smin.v{lanes}i32", "i32", lanes, [out, rise])
    if f.least is not None:
        out = e.call(f"llvm.smax.v{lanes}i32", "i32", lanes, [out, word(f.least)])
    for first, last, entry in f.runs:
        inside = _inside(e, j, first, last, f.mask, lambda n: word(n << place))
        out = e.op(f"select {inside}, {word(entry)}, {out}", "i32", lanes)
    if f.twice:
        out = e.bin("or", out, e.bin("lshr", out, word(16)))
    return e.bitcast(out, "float", lanes)


def _inside(
    e: Emitter, j: Val, first: int, last: int, mask: int, word: Callable[[int], Val]
) -> Val:
    """Whether positions are in a run."""

    def compared(how: str, n: int) -> Val:
        return e.op(f"icmp {how} {j}, {word(n).name}", "i1", j.n)

    if first == last:
        return compared("eq", first)
    if first == 0:
        return compared("slt", last + 1)
    above = compared("sgt", first - 1)
    return above if last == mask else e.bin("and", above, compared("slt", last + 1))
