"""The static memory plan: where every intermediate tensor lies in one workspace.

Sizes may depend on symbolic dimensions, so offsets are expressions in them. Tensors whose lifetimes
do not overlap share a slot when one is provably no larger than the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from compiler.symbolic import Index, IntLike
from compiler.tensor.stmt import SLACK

ALIGN = 64


@dataclass(frozen=True)
class Lifetime:
    """A tensor of `size` bytes, needed from step `first` to step `last`, both included."""

    size: Index
    first: int
    last: int


@dataclass(frozen=True)
class MemoryPlan:
    """Byte offset of every tensor, in the order given, and the size of the workspace."""

    offsets: tuple[Index, ...]
    total: Index


def aligned(size: IntLike) -> Index:
    """`size` rounded up so that a multiple of ALIGN results whatever the dimensions are."""
    size = Index.of(size)

    def up(x: int) -> int:
        return -(-x // ALIGN) * ALIGN

    lows = [a.bounds()[0] for a, c in size.terms.items() if c > 0]
    if len(lows) < len(size.terms) or any(low is None or low < 0 for low in lows):
        return (size + (ALIGN - 1)) // ALIGN * ALIGN  # a term may be negative: round the sum
    return Index({a: up(c) for a, c in size.terms.items()}, up(size.const))


def plan_memory(tensors: Sequence[Lifetime]) -> MemoryPlan:
    """Assign slots greedily, in order of first use; the tightest free slot that fits wins."""
    sizes: list[Index] = []
    busy_until: list[int] = []
    slot_of: list[int] = []
    order = sorted(range(len(tensors)), key=lambda k: tensors[k].first)
    chosen: dict[int, int] = {}
    for k in order:
        t = tensors[k]
        size = aligned(t.size)
        best: tuple[int, int] | None = None
        for s, n in enumerate(sizes):
            if busy_until[s] >= t.first:
                continue
            waste = (n - size).range()[0]
            grow = (size - n).range()[0]
            if waste is not None and waste >= 0:
                best = min(best or (waste, s), (waste, s))
            elif grow is not None and grow >= 0 and best is None:
                best = (grow, s)
        if best is None:
            sizes.append(size)
            busy_until.append(t.last)
            chosen[k] = len(sizes) - 1
            continue
        s = best[1]
        if (size - sizes[s]).range()[0] not in (None,) and ((size - sizes[s]).range()[0] or 0) >= 0:
            sizes[s] = size
        busy_until[s] = t.last
        chosen[k] = s
    slot_of = [chosen[k] for k in range(len(tensors))]
    starts, total = [], Index()
    for n in sizes:
        starts.append(total)
        total = total + n
    return MemoryPlan(tuple(starts[s] for s in slot_of), total + SLACK if sizes else total)
