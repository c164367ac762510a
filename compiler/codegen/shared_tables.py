"""Look-up tables in the shared memory of a block of threads, on machines that have grids.

Threads that read a table at positions of their own wait for each other in the caches; shared memory
has a bank for each of them. So each block copies the small tables that its threads read often, and
waits once, before it begins. (NVIDIA, CUDA C++ Best Practices Guide, "Shared Memory".)
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from compiler.codegen.launches import grid_loops, launch_of
from compiler.symbolic import Index, Var, imax, imin
from compiler.tensor.copying import Copy
from compiler.tensor.expr import Buffer, Gather, Load, walk
from compiler.tensor.stmt import (
    Attempt,
    Barrier,
    For,
    PrimFunc,
    Stmt,
    Store,
    accesses,
    family,
    walk_stmts,
)

LARGEST = 16 << 10
"""Bytes of the tables of a block."""
SHARED = 48 << 10
"""Bytes of shared memory that any chip gives a block."""
OFTEN = 16
"""Reads of an entry by the threads of a block, on average, from which on it is copied."""
ASSUMED = 8
"""Iterations of a loop whose number is known at run time only."""


def share_tables(f: PrimFunc) -> PrimFunc:
    """A function whose blocks of threads copy the tables to shared memory that they read often.

    What is computed again after an attempt is rare, and does not count.
    """
    return replace(f, body=[_shared(s) for s in f.body])


def _shared(s: Stmt) -> Stmt:
    loops, launch = grid_loops(s), launch_of(s)
    threads = [x for x in loops if family(x) == "threadIdx"]
    if launch is None or not threads:
        return s
    count = math.prod(launch.threads)
    body = loops[-1].body
    homes = _chosen(body, count)
    sizes = dict(zip("xyz", launch.threads, strict=True))
    varies = any(x.extent != sizes[x.kind[-1]] for x in threads)
    if not homes or (varies and any(isinstance(x, Barrier) for x, _, _ in walk_stmts(body))):
        return s  # threads that wait for others must all do it: see the backends
    # All threads of the block must copy and wait, also where fewer than the most have work.
    whole = {x.var: Var(x.var.name, sizes[x.kind[-1]]) for x in threads}
    copy = _Homes(homes, whole)
    work = copy.body(body)
    for x in reversed(threads):
        if x.extent != sizes[x.kind[-1]]:
            left = imin(imax(x.extent.subst(copy.vars) - whole[x.var], 0), 1)
            work = [For(Var("inside", left), work)]
    number, below = Index(), 1
    for axis in "xyz":
        for x in threads:
            if x.kind[-1] == axis:
                number = number + Index.of(whole[x.var]) * below
        below *= sizes[axis]
    copies = [_copied(b, to, number, count) for b, to in homes.items()]
    made: list[Stmt] = [*copies, Barrier(), *work]
    for x in reversed(loops):
        made = [For(whole.get(x.var, x.var), made, x.kind)]
    return made[0]


def _chosen(body: Sequence[Stmt], threads: int) -> dict[Buffer, Buffer]:
    """Tables -> where they go; those of the most reads an entry first."""
    reads = _reads(list(body))
    used = {b for b, *_ in accesses(list(body)) if b.scope == "shared"}
    taken = sum(_nbytes(b) for b in used)
    room = min(LARGEST, SHARED - taken)
    out: dict[Buffer, Buffer] = {}
    share = {b: n * threads / b.size.const for b, n in reads.items()}
    for b in sorted(reads, key=lambda b: (-share[b], b.name)):
        if share[b] >= OFTEN and _nbytes(b) <= room:
            room -= _nbytes(b)
            out[b] = Buffer(f"{b.name}_shared", b.shape, b.dtype, "shared")
    return out


def _nbytes(b: Buffer) -> int:
    """Bytes of a buffer of constant size."""
    return b.size.const * b.dtype.nbytes


def _reads(body: list[Stmt]) -> dict[Buffer, int]:
    """How often a thread reads each table."""
    rare = {
        id(y)
        for s, _, _ in walk_stmts(body)
        if isinstance(s, Attempt)
        for y, _, _ in walk_stmts(s.again)
    }
    out: dict[Buffer, int] = {}
    for s, path, _ in walk_stmts(body):
        if not isinstance(s, Store) or id(s) in rare:
            continue
        times = math.prod(x.extent.range()[1] or ASSUMED for x in path)
        for e in walk(s.value):
            if isinstance(e, Gather) and e.buffer.scope == "constant":
                out[e.buffer] = out.get(e.buffer, 0) + times
    return out


def _copied(table: Buffer, to: Buffer, thread: Index, threads: int) -> Stmt:
    """The part of a thread in copying a table."""
    size = table.size.const
    k = Var("k", -(-size // threads))
    at = thread + k * threads
    node: Stmt = Store(f"{table.name}.share", to, (at,), Load(table, (at,)))
    if size % threads:
        node = For(Var("inside", imin(imax(size - at, 0), 1)), [node])
    return For(k, [node])


class _Homes(Copy):
    """Statements that read tables elsewhere; other buffers stay."""

    def __init__(self, homes: Mapping[Buffer, Buffer], threads: Mapping[Var, Var]):
        super().__init__(threads)
        self.homes = homes

    def buffer(self, b: Buffer) -> Buffer:
        """See Copy."""
        return self.homes.get(b, b)


__all__ = ["LARGEST", "share_tables"]
