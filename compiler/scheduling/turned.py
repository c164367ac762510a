"""Copies that turn a matrix: neighbours of the result lie apart in the data, and the other way
round. Squares of them are read row by row, and turned in registers."""

from __future__ import annotations

from collections.abc import Sequence

from compiler.scheduling import Schedule
from compiler.symbolic import Index, Var
from compiler.target.registry import Target
from compiler.tensor.expr import Load
from compiler.tensor.stmt import For, Store

MOST = 16
"""Rows of a square: as many as there are registers for, and to spare."""


def turn_squares(s: Schedule, store: Store, path: Sequence[For], target: Target) -> bool:
    """Let lanes be squares of a stage, a perfect nest, that does nothing but turn a matrix; false,
    and nothing is changed, where it does something else or the matrix is smaller than a square."""
    if not isinstance(store.value, Load) or any(len(f.body) != 1 for f in path):
        return False
    to, source = store.buffer.flat(store.idx), store.value.buffer.flat(store.value.idx)
    last = path[-1]
    row = next((f for f in path[:-1] if _step(source, f.var) == 1), None)
    if row is None or _step(to, last.var) != 1 or not _step(source, last.var):
        return False
    side = min(MOST, target.vector_bytes // store.buffer.dtype.nbytes)
    extents = [f.extent.constant() for f in (row, last)]
    if side < 2 or any(n is None or n < side for n in extents) or not _step(to, row.var):
        return False
    names = [f.var.name for f in path]
    far, near = s.split(row.var.name, side)
    far_last, near_last = s.split(last.var.name, side)
    outer = [far if n == row.var.name else n for n in names[:-1]]
    s.reorder(*outer, far_last, near, near_last)
    s.peel(far)
    s.peel(far_last)
    for loop, _, _ in s.find(near):
        (inside,) = loop.body
        if isinstance(inside, For) and {loop.extent.constant(), inside.extent.constant()} == {side}:
            loop.kind = inside.kind = "vector"
    return True


def _step(flat: Index, v: Var) -> int:
    """Elements by which an access moves with a loop; 0: none, or not by the same number."""
    if any(v in a.leaves() for a in flat.terms if not isinstance(a, Var)):
        return 0
    return flat.terms.get(v, 0)
