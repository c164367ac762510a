"""Copies that turn a matrix: neighbours of the result lie apart in the data, and the other way
round. Squares of them are read row by row, and turned in registers; of matrices with few columns
that do not make squares, several rows are copied together, so that what is fetched from memory is
used up at once."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from compiler.scheduling import Schedule
from compiler.symbolic import Index, Var
from compiler.target.registry import Target
from compiler.tensor.expr import Load
from compiler.tensor.stmt import For, Store

MOST = 16
"""Rows of a square: as many as there are registers for, and to spare."""
LEAST = 4
"""Rows and columns of the smallest square, and of what is left of a matrix behind its squares, to
be turned so, too."""


def turn_squares(s: Schedule, store: Store, path: Sequence[For], target: Target) -> bool:
    """Let lanes be squares of a stage, a perfect nest, that does nothing but turn a matrix; false,
    and nothing is changed, where it does something else or the matrix is smaller than a square."""
    if not isinstance(store.value, Load) or any(len(f.body) != 1 for f in path):
        return False
    if path[-1].extent.constant() == 1:  # one column: nothing is turned
        return False
    store, path = _blocks_apart(s, store, path)
    assert isinstance(store.value, Load)
    to, source = store.buffer.flat(store.idx), store.value.buffer.flat(store.value.idx)
    last = path[-1]
    row = next((f for f in path[:-1] if _step(source, f.var) == 1), None)
    if row is None or _step(to, last.var) != 1 or not _step(source, last.var):
        return False
    most = min(MOST, target.vector_bytes // store.buffer.dtype.nbytes)
    extents = [f.extent.constant() for f in (row, last)]
    if most < 2 or None in extents or not _step(to, row.var):
        return False
    if _fused_line(s, store, path, row, most, most):
        ((store, path, _),) = s.stage_stores(store.stage)
        return turn_squares(s, store, path, target)
    rows, columns = (n or 0 for n in extents)
    if columns < most <= rows and columns % LEAST and _together(s, path, row, most):
        return True
    if _fused_line(s, store, path, row, most, LEAST):
        ((store, path, _),) = s.stage_stores(store.stage)
        return turn_squares(s, store, path, target)
    names = [f.var.name for f in path]
    side = _side(min(rows, columns), most, LEAST)
    if not side:
        return False
    far, near = s.split(row.var.name, side)
    far_last, near_last = s.split(last.var.name, side)
    outer = [n for n in names[:-1] if n != row.var.name]
    s.reorder(*outer, far_last, far, near, near_last)
    s.peel(far)
    s.peel(far_last)
    for loop, _, _ in s.find(near):
        (inside,) = loop.body
        if isinstance(inside, For) and min(_known(loop), _known(inside)) >= LEAST:
            loop.kind = inside.kind = "vector"
    return True


def _fused_line(
    s: Schedule, store: Store, path: Sequence[For], row: For, most: int, least: int
) -> bool:
    """Make two loops one that go along one line of both arrays, if it takes both to have whole
    squares of at least so many rows."""
    assert isinstance(store.value, Load)
    to, source = store.buffer.flat(store.idx), store.value.buffer.flat(store.value.idx)
    last = path[-1]
    for around, inner in pairwise(path):
        if inner not in (row, last) or not _one_line(around, inner, to, source):
            continue
        side = _side(_known(last if inner is row else row), most, least)
        if side > 1 and _known(inner) % side and _known(around) * _known(inner) >= side:
            s.fuse(around.var.name, inner.var.name, f"{inner.var.name}_line")
            return True
    return False


def _side(rows: int, most: int, least: int) -> int:
    """The side of a square that a matrix of so many rows, or columns, holds; 0: none."""
    while most > least and most > rows:
        most //= 2
    return most if most <= rows else 0


def _one_line(outer: For, inner: For, *accesses: Index) -> bool:
    """Whether two loops, of known extents, go along one line in all accesses."""
    n = inner.extent.constant()
    if n is None or outer.extent.constant() in (None, 1):
        return False
    return all(_step(x, outer.var) == n * _step(x, inner.var) for x in accesses)


def _known(loop: For) -> int:
    return loop.extent.constant() or 0


def _blocks_apart(s: Schedule, store: Store, path: Sequence[For]) -> tuple[Store, Sequence[For]]:
    """The stage, with a loop over blocks and one within a block where the data is in blocks along
    one of its loops but the last."""
    assert isinstance(store.value, Load)
    flat = store.value.buffer.flat(store.value.idx)
    for f in path[:-1]:
        mine = [a for a in flat.terms if not isinstance(a, Var) and f.var in a.leaves()]
        sizes = {a.b.constant() for a in mine if a.a == f.var and a.op in ("//", "%")}
        size = sizes.pop() if len(sizes) == 1 and len(mine) == 2 else None
        if size is not None and flat.terms.get(f.var) is None and f.extent.multiple_of(size):
            s.split(f.var.name, size)
            ((store, path, _),) = s.stage_stores(store.stage)
            break
    return store, path


def _together(s: Schedule, path: Sequence[For], row: For, side: int) -> bool:
    """Copy the few neighbours of `side` rows together."""
    few, count = [path[-1]], path[-1].extent.constant() or side
    for f in reversed(path[:-1]):
        n = f.extent.constant()
        if f is row or n is None or n * count >= side:
            break
        few, count = [f, *few], n * count
    names = [f.var.name for f in path[: len(path) - len(few)]]
    if row.var.name not in names or len(names) == 1:
        return False
    far, near = s.split(row.var.name, side)
    inner = [f.var.name for f in few]
    s.reorder(*(n for n in names if n != row.var.name), far, near, *inner)
    s.peel(far)
    s.unroll(*inner)
    return True


def _step(flat: Index, v: Var) -> int:
    """Elements by which an access moves with a loop; 0: none, or not by the same number."""
    if any(v in a.leaves() for a in flat.terms if not isinstance(a, Var)):
        return 0
    return flat.terms.get(v, 0)
