"""Where loop nests over rows are in a block of threads, and what they read and store there."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from compiler.scheduling.grids.products import At, evenly, numbered
from compiler.scheduling.grids.rows import RowNest, Rows
from compiler.symbolic import Index
from compiler.tensor.expr import Buffer, Expr, Load, rewrite, subst
from compiler.tensor.stmt import Stmt, Store

ZERO = (Index(),)
"""Where the one element of a register is."""


@dataclass(frozen=True)
class Kept:
    """What a block keeps.

    Attributes:
        first: the number of its first row.
        homes: a buffer -> its rows of the block, in shared memory: each as one line, or as one
            element.
        local: the buffers that nothing but the nests of the block reads.
    """

    first: Index
    homes: Mapping[Buffer, Buffer]
    local: Collection[Buffer]


@dataclass(frozen=True)
class Place:
    """An element of a row of a block: `lane` further on than `element`.

    Attributes:
        rows: the nests of the block.
        nest: one of them.
        kept: what the block keeps.
        row: the number of the row in the block.
    """

    rows: Rows
    nest: RowNest
    kept: Kept
    row: Index
    element: Index
    lane: Index

    @property
    def where(self) -> list[At]:
        """The nest's loops."""
        rows, inner = (
            [f for f in loops if f.extent != 1] for loops in (self.nest.rows, self.nest.inner)
        )
        there = [At(rows, self.kept.first + self.row)] if rows else []
        return [*there, At(inner, self.element, self.lane)] if inner else there

    def value(self, e: Expr) -> Expr:
        """A value of the nest, there."""

        def put(x: Expr) -> Expr | None:
            mine = isinstance(x, Load) and x.buffer in self.kept.homes
            return self._home(x) if mine and isinstance(x, Load) else None

        return numbered(subst(rewrite(e, put), self.nest.single), self.where)

    def _home(self, x: Load) -> Load:
        """The element in shared memory."""
        home, at = self.kept.homes[x.buffer], self.rows.in_row(x.buffer, x.idx)
        return Load(home, (self.row, at) if len(home.shape) > 1 else (self.row,))

    def stored(self, value: Expr, ending: str = "") -> list[Stmt]:
        """Store what the nest stores, there: to shared memory, and where others read it. `value`:
        over the nest's loops, or none."""
        store, homes = self.nest.store, self.kept.homes
        there = Load(store.buffer, store.idx)
        places = [there] if store.buffer not in homes else [self._home(there)]
        if store.buffer in homes and store.buffer not in self.kept.local:
            places.append(there)
        value = self.value(value)
        out: list[Stmt] = []
        for p in places:
            p = evenly(Load(p.buffer, tuple(i.subst(self.nest.single) for i in p.idx)), self.where)
            out.append(Store(f"{store.stage}{ending}", p.buffer, p.idx, value))
        return out


__all__ = ["ZERO", "Kept", "Place"]
