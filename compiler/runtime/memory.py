"""The static memory plan: where every intermediate tensor lies in one workspace.

Sizes may depend on symbolic dimensions, so offsets are expressions in them. Tensors whose lifetimes
do not overlap may share a slot.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from compiler.symbolic import Index, IntLike, imax
from compiler.tensor.stmt import SLACK

ALIGN = 64
NOMINAL = 64
"""What symbolic dimensions are taken to be where sizes in them are compared."""

MUCH_LESS = 0.75
"""Share of the memory of slots up to which tensors are packed instead."""
MOST_PACKED = 5000
"""Tensors that may be: it takes the square of them."""


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
    """The slots of `_slots`, or, where all sizes are known and that takes much less, the places of
    `packed`: a gradient's activations are of many sizes, and half of such slots would be empty."""
    slots = _slots(tensors)
    if len(tensors) <= MOST_PACKED and all(t.size.constant() is not None for t in tensors):
        close = packed(tensors)
        if close.total.const <= MUCH_LESS * slots.total.const:
            return close
    return slots


def packed(tensors: Sequence[Lifetime]) -> MemoryPlan:
    """The largest tensor first, each at the lowest place that is free as long as it lives (greedy
    by size; Pisarchyk and Lee, Efficient Memory Management for Deep Neural Net Inference, 2020).
    Sizes are known."""
    sizes = [aligned(t.size).const for t in tensors]
    starts = [0] * len(tensors)
    placed: list[int] = []
    for k in sorted(range(len(tensors)), key=lambda k: (-sizes[k], tensors[k].first)):
        t = tensors[k]
        beside = [
            (starts[j], starts[j] + sizes[j])
            for j in placed
            if tensors[j].first <= t.last and t.first <= tensors[j].last
        ]
        for begin, end in sorted(beside):
            if starts[k] + sizes[k] <= begin:
                break
            starts[k] = max(starts[k], end)
        placed.append(k)
    total = max((a + n for a, n in zip(starts, sizes, strict=True)), default=0)
    return MemoryPlan(tuple(map(Index.of, starts)), Index.of(total + SLACK if tensors else 0))


def _slots(tensors: Sequence[Lifetime]) -> MemoryPlan:
    """Slots assigned greedily, in order of first use: to the tightest free slot that fits, else to
    the one that grows least.

    Where it depends on symbolic dimensions which of two sizes is larger, slots hold the larger, and
    what fits is judged with every dimension at NOMINAL.
    """
    sizes: list[Index] = []
    busy_until: list[int] = []
    chosen: dict[int, int] = {}
    for k in sorted(range(len(tensors)), key=lambda k: tensors[k].first):
        t = tensors[k]
        size = aligned(t.size)
        free = [s for s in range(len(sizes)) if busy_until[s] < t.first]
        if free:
            room = {s: _nominal(sizes[s]) - _nominal(size) for s in free}
            s = min(free, key=lambda s: (room[s] < 0, abs(room[s])))
            sizes[s], busy_until[s] = imax(sizes[s], size), t.last
        else:
            s = len(sizes)
            sizes.append(size)
            busy_until.append(t.last)
        chosen[k] = s
    starts, total = [], Index()
    for n in sizes:
        starts.append(total)
        total = total + n
    offsets = tuple(starts[chosen[k]] for k in range(len(tensors)))
    return MemoryPlan(offsets, total + SLACK if sizes else total)


def _nominal(size: Index) -> int:
    return int(size.value(dict.fromkeys(size.vars(), NOMINAL)))
