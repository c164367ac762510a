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
    """Assign slots greedily, in order of first use: to the tightest free slot that fits, else to
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
