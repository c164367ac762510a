"""Pipelines of the parts of a sum, whose operands go through shared memory.

An operand goes there in one of two ways. Through registers: what the next part needs is loaded
while one is multiplied, and stored before the next barrier; there are two parts in turn. By
asynchronous copies, where it is loaded as it is: of `stages` parts in turn, one is multiplied and
the others are on their way; each part is a group of copies. Both ways take one barrier for a part:
before it, the thread's own copies of the part have arrived; after it, those of all threads have,
and nobody reads the part before any more, in whose place the next one is copied then.
(Source: NVIDIA, CUTLASS, "efficient GEMM": pipelining.)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from compiler.symbolic import Index, Var, imax, imin
from compiler.target.intrinsics import for_target
from compiler.target.registry import Target
from compiler.tensor.expr import index_vars
from compiler.tensor.intrinsic import Intrinsic, copied
from compiler.tensor.stmt import Barrier, Commit, For, Intrin, Stmt, Wait


class Staged(Protocol):
    """An operand on its way to shared memory; `copy` None: it goes through registers."""

    copy: Intrinsic | None

    def fetch(self, part: Index) -> list[Stmt]:
        """Load what the thread brings of a part to registers."""

    def share(self, part: Index) -> list[Stmt]:
        """Store that in shared memory."""

    def copies(self, part: Index) -> list[Stmt]:
        """Begin to copy what the thread brings of a part to shared memory."""


def late_copies(target: Target) -> list[Intrinsic]:
    """What copies to shared memory without waiting."""
    return [i for i in for_target(target) if i.late]


def copies_as_is(s: Intrin) -> bool:
    """Whether an instruction for asynchronous copies does what its statement says: it moves
    neighbours, from and to multiples of their bytes, or zeros instead of all of them."""
    (value,) = s.leaves.values()
    found = copied(value)
    if found is None or found[0].buffer.scope != "global" or found[0].dtype != s.store.buffer.dtype:
        return False
    load, conditions = found
    if any(index_vars(c) & {*s.vars.values()} for c in conditions):
        return False
    sizes = s.intrin.loops.values()
    for b, idx in ((load.buffer, load.idx), (s.store.buffer, s.store.idx)):
        rest, below = b.flat(idx), 1
        for v, n in reversed([*zip(s.vars.values(), sizes, strict=True)]):
            rest = rest - Index.of(v) * below if n > 1 else rest
            below *= n
        if rest.vars() & {*s.vars.values()} or not rest.multiple_of(below):
            return False
    return True


def pipelined(
    operands: Sequence[Staged], parts: int, stages: int, multiply: Callable[[Index], list[Stmt]]
) -> list[Stmt]:
    """Bring and multiply all parts of a sum. `stages`: of an operand that is copied."""
    through = [x for x in operands if x.copy is None]
    late = [x for x in operands if x.copy is not None]
    fetch = [s for x in through for s in x.fetch(Index())]
    if parts == 1:
        share = [s for x in through for s in x.share(Index())]
        begun = [s for x in late for s in x.copies(Index())]
        arrive: list[Stmt] = [Wait()] if late else []
        begun += [Commit()] if late else []
        return [*begun, *fetch, *share, *arrive, Barrier(), *multiply(Index())]
    ahead = stages - 1
    begin: list[Stmt] = []
    for k in range(ahead if late else 0):
        begin += [*(s for x in late for s in x.copies(Index.of(k))), Commit()]
    v = Var("part", parts)
    part = Index.of(v)
    body = [s for x in through for s in x.share(part)]
    if late:
        body.append(Wait(ahead - 1))
    body.append(Barrier())
    if through:
        more = Var("more", imin(1, parts - 1 - part))
        body.append(For(more, [s for x in through for s in x.fetch(part + 1)]))
    if late:
        more = Var("more", imin(1, imax(parts - ahead - part, 0)))
        begun = [s for x in late for s in x.copies(part + ahead)]
        body += [For(more, begun), Commit()]
    return [*begin, *fetch, For(v, [*body, *multiply(part)])]


__all__ = ["Staged", "copies_as_is", "late_copies", "pipelined"]
