"""Grids of threads, of which not every kind of target has any."""

from __future__ import annotations

from compiler.errors import LoweringError
from compiler.tensor.stmt import Barrier, For, PrimFunc, family, walk_stmts


def refuse_grid(f: PrimFunc, kind: str) -> None:
    """Refuse a program for a grid of threads, for a kind of target that has none.

    Raises:
        LoweringError: names the first loop or barrier of a grid.
    """
    has_none = f"targets of kind {kind!r} have no grid of threads"
    for s, _, _ in walk_stmts(f.body):
        if isinstance(s, For) and family(s):
            raise LoweringError(f"{f.name}: loop {s.var} is a {s.kind}, and {has_none}")
        if isinstance(s, Barrier):
            raise LoweringError(f"{f.name} has a barrier, and {has_none}")
