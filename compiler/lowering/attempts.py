"""Sums in registers that are tried a few steps at a time.

Deferred expressions leave NaN where they are not sure. Long sums meet such a place before they end;
so a copy of them takes some steps at once (`Attempt`), and only those are computed again, from what
the sums were before, by the expressions that are always right.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from compiler.tensor.expr import Buffer, Load
from compiler.tensor.register_sums import in_memory, moved
from compiler.tensor.stmt import (
    Attempt,
    Barrier,
    For,
    Stmt,
    Store,
    accesses,
    clone,
    stores,
    walk_stmts,
)

STEPS = 8
"""Fewest steps that are tried at once: to copy and to check takes a part of the time of one."""


def in_parts(body: list[Stmt], sums: tuple[Buffer, ...]) -> list[Stmt] | None:
    """The statements of a group (see `register_sums`) with attempts in its loops; None if it has
    no loop around others of `STEPS` steps, so that it is best tried as a whole. Where threads wait
    for each other in between, it cannot be: some of them would have to do all of it again."""
    starts = [s for s in body if _stores(s, sums, "") and not _stores(s, sums, "Add")]
    parts = _Parts(starts, sums)
    out = [parts.within(s) for s in body]
    if not parts.found and any(isinstance(s, Barrier) for s, _, _ in walk_stmts(body)):
        return [parts.part(s) for s in body]
    return out if parts.found else None


class _Parts:
    def __init__(self, starts: list[Stmt], sums: tuple[Buffer, ...]):
        self.starts, self.sums = starts, sums
        self.elements = sum(_stores(s, sums, "") for s in starts)
        self.found = False

    def within(self, s: Stmt) -> Stmt:
        """`s` with attempts in it, if it is a loop around enough steps."""
        if not isinstance(s, For) or not any(map(self.long, s.body)):
            return s
        self.found |= s.extent.constant() != 1
        return replace(s, body=[self.part(x) for x in s.body])

    def part(self, s: Stmt) -> Stmt:
        """A part of a loop, with attempts in it or in one."""
        inside = self.within(s)
        return self.attempt(s) if inside is s and _stores(s, self.sums, "Add") else inside

    def long(self, s: Stmt) -> bool:
        return _stores(s, self.sums, "Add") >= STEPS * self.elements

    def attempt(self, s: Stmt) -> Attempt:
        tried = {b: replace(b, name=f"{b.name}.tried") for b in self.sums}
        again = {b: replace(b, name=f"{b.name}.again", scope="local", align=64) for b in self.sums}
        stored = {x.buffer for x in stores([s]) if x.buffer not in self.sums}
        # What a step loads into registers first.
        loaded = {
            b: replace(b, name=f"{b.name}.again", scope="local", align=64)
            for b, *_ in accesses([s])
            if b.scope == "register" and b in stored
        }
        return Attempt(
            [*self.copies({b: (b, to) for b, to in tried.items()}), *moved([s], tried)],
            tuple(tried.values()),
            self.copies({b: (of, b) for b, of in tried.items()}),
            [
                *self.copies({b: (b, to) for b, to in again.items()}),
                *in_memory([s], {**again, **loaded}),
                *self.copies({b: (of, b) for b, of in again.items()}),
            ],
        )

    def copies(self, way: Mapping[Buffer, tuple[Buffer, Buffer]]) -> list[Stmt]:
        """Copies of all elements that the sums start with, from one buffer to another."""
        out = [clone(s, {}) for s in self.starts]
        for s, _, _ in walk_stmts(out):
            if isinstance(s, Store):
                source, s.buffer = way[s.buffer]
                s.value = Load(source, s.idx)
        return out


def _stores(s: Stmt, sums: tuple[Buffer, ...], update: str) -> float:
    """How often, at most, `s` stores to the sums with this update."""
    return sum(
        math.prod(loop.extent.range()[1] or math.inf for loop in path)
        for x, path, _ in walk_stmts([s])
        if isinstance(x, Store) and x.buffer in sums and x.update == update
    )
