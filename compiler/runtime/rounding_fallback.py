"""Which kernels of a program are watched for rounding, and which run only after it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass


@dataclass(frozen=True)
class Fallback:
    """The second of two ways to compute one value is taken if the first one rounds.

    Attributes:
        flag: root of the int32 that says so.
        first, second: numbers of the kernels that end the two ways.
    """

    flag: int
    first: frozenset[int]
    second: frozenset[int]


@dataclass(frozen=True)
class Conditions:
    """By the number of a kernel: the root of the flag that it sets if it rounds, and of the one
    without which it does not run."""

    watch: dict[int, int]
    when: dict[int, int]

    def last(self, flag: int) -> int:
        """The last kernel that sets or reads a flag."""
        return max(k for d in (self.watch, self.when) for k, f in d.items() if f == flag)


def conditions(
    fallbacks: Sequence[Fallback],
    reads: Sequence[AbstractSet[int]],
    writes: Sequence[AbstractSet[int]],
    kept: Collection[int],
) -> Conditions:
    """What the fallbacks, inner ones first, mean for every kernel.

    Args:
        fallbacks: of the program.
        reads, writes: roots that each kernel reads and writes.
        kept: roots that are needed besides: results and what is no kernel's.
    """
    watch: dict[int, int] = {}
    when: dict[int, int] = {}
    for c in fallbacks:
        for k in _alone(c.first, reads, writes, kept):
            watch.setdefault(k, c.flag)
        for k in _alone(c.second, reads, writes, kept):
            when.setdefault(k, c.flag)
    return Conditions(watch, when)


def _alone(
    last: frozenset[int],
    reads: Sequence[AbstractSet[int]],
    writes: Sequence[AbstractSet[int]],
    kept: Collection[int],
) -> set[int]:
    """The kernels `last`, and those before them whose results only such kernels read."""
    found = set(last)
    for k in range(max(last), -1, -1):
        readers = {j for j, r in enumerate(reads) if not r.isdisjoint(writes[k])}
        if readers and readers <= found and not any(r in kept for r in writes[k]):
            found.add(k)
    return found
