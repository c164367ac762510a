"""What a comparison in turns tells: times, and between what bounds their ratios lie."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

CONFIDENCE = 0.95
"""How sure an interval is, where there are enough rounds for that."""
BLOCKS = 20
"""Parts that the rounds are divided into: a burst of load spoils some of them, and what is said of
the others holds."""


@dataclass(frozen=True)
class Ratio:
    """A ratio of times: its median, and the interval that it lies in."""

    middle: float
    low: float
    high: float


@dataclass(frozen=True)
class Turns:
    """What calls that took turns took.

    Attributes:
        rounds: of every round, the milliseconds of every call.
    """

    rounds: tuple[tuple[float, ...], ...]

    @staticmethod
    def of(*times: float) -> Turns:
        """One round."""
        return Turns((times,))

    def medians(self) -> list[float]:
        """Milliseconds of every call."""
        return [statistics.median(t) for t in zip(*self.rounds, strict=True)]

    def ratio(self, call: int, to: int) -> Ratio:
        """What call number `call` takes, as a multiple of what number `to` takes."""
        found = []
        for block in _blocks(self.rounds):
            took = [statistics.median(r[k] for r in block) for k in (call, to)]
            found.append(max(took[0], 1e-9) / max(took[1], 1e-9))
        found.sort()
        skip = _skipped(len(found))
        return Ratio(statistics.median(found), found[skip], found[-1 - skip])


def _blocks(rounds: Sequence[tuple[float, ...]]) -> list[Sequence[tuple[float, ...]]]:
    """Rounds as up to BLOCKS parts, each of rounds one after the other."""
    count = min(BLOCKS, len(rounds))
    ends = [len(rounds) * k // count for k in range(count + 1)]
    return [rounds[a:b] for a, b in pairwise(ends)]


def _skipped(count: int) -> int:
    """How many of `count` sorted samples lie outside the interval of their median, at either end.
    A sample is above the median as often as a coin shows heads, however they are distributed, so
    these are quantiles of the binomial distribution; of fewer than six samples, none."""
    skip, outside = 0, 0.0
    while True:
        outside += 2 * math.comb(count, skip) / 2**count
        if outside > 1 - CONFIDENCE:
            return max(0, skip - 1)
        skip += 1
