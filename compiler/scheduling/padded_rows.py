"""Padded copies of data, made for a row of outputs at a time: they take the memory of a few rows.
Rows that several rows of outputs read are copied as often."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from compiler.scheduling import Schedule
from compiler.scheduling.nests import loop_vars, nest, redirect, region
from compiler.symbolic import Index, IntLike, Var, imax, imin
from compiler.tensor.expr import (
    Buffer,
    Expr,
    FloatImm,
    IntImm,
    Load,
    binary,
    index_value,
    loads,
    select,
    subst,
)
from compiler.tensor.stmt import For, Stmt, Store, accesses, stores, walk_stmts

ROW = 2
"""The axis of rows of NCHW and NCHW[x]c data."""


@dataclass(frozen=True)
class _Padded:
    """A buffer that top-level nests fill: one with data, others with a constant around it.

    Attributes:
        data: the store of the data, at its loops plus `offsets`, of `extents`.
        border: what is around it.
        roots: the nests.
    """

    data: Store
    loops: tuple[Var, ...]
    offsets: tuple[int, ...]
    extents: tuple[int, ...]
    border: Expr
    roots: tuple[Stmt, ...]


def pad_by_rows(s: Schedule, stage: str, tiles: Sequence[str], vector_bytes: int) -> None:
    """Let a stage whose nest reads a padded copy make the rows it needs inside the loop over rows
    among `tiles` (those over its tiles), where the copy is of one known shape, and nothing else
    reads it."""
    for b in list(s.func.temps):
        padded = _padded(s, b)
        (_, path, _) = s.stage_stores(stage)[0]
        root = path[0]
        readers = {
            id(x) for x in s.func.body if any(a is b and not w for a, _, w, _ in accesses([x]))
        }
        if padded is not None and readers == {id(root)}:
            _by_rows(s, b, padded, root, tiles, vector_bytes)


def _padded(s: Schedule, b: Buffer) -> _Padded | None:
    """How `b` is filled, if it is a padded copy."""
    found: list[tuple[Store, tuple[For, ...]]] = []
    for x, path, _ in walk_stmts(s.func.body):
        if isinstance(x, Store) and x.buffer is b:
            found.append((x, path))
        elif not isinstance(x, For) and any(y.buffer is b for y in stores([x])):
            return None
    copies = [(x, path) for x, path in found if loads(x.value)]
    borders = [x.value for x, _ in found if isinstance(x.value, (IntImm, FloatImm))]
    if len(copies) != 1 or not borders or len(copies) + len(borders) != len(found):
        return None
    ((data, path),) = copies
    if any(x.update or x.init is not None for x, _ in found):
        return None
    if any(str(v) != str(borders[0]) for v in borders) or len(path) != len(b.shape):
        return None
    loops = tuple(f.var for f in path)
    offsets = tuple((i - v).constant() for i, v in zip(data.idx, loops, strict=True))
    extents = tuple(f.extent.constant() for f in path)
    if None in offsets or None in extents or any(n.constant() is None for n in b.shape):
        return None
    inside = zip(offsets, extents, b.shape, strict=True)
    apart = {k for k, (at, n, whole) in enumerate(inside) if at or n != whole.const}
    if not apart <= {ROW, ROW + 1}:
        return None
    return _Padded(
        data,
        loops,
        tuple(n or 0 for n in offsets),
        tuple(n or 0 for n in extents),
        borders[0],
        tuple(p[0] for _, p in found),
    )


def _by_rows(
    s: Schedule, b: Buffer, p: _Padded, root: Stmt, tiles: Sequence[str], vector_bytes: int
) -> None:
    """Make the copy inside the outermost of `tiles`, loops of `root`, that moves along rows."""
    reads = [i for a, i, w, _ in accesses([root]) if a is b and not w and i is not None]
    moving = set().union(*(i[ROW].vars() for i in reads))
    loops = [x for x, _, _ in walk_stmts([root]) if isinstance(x, For) and x.var in moving]
    loop = next((x for x in loops if x.var.name in tiles), None)
    if loop is None or len(s.find(loop.var.name)) != 1:
        return
    here = [i for a, i, w, _ in accesses(loop.body) if a is b and not w and i is not None]
    if len(here) != len(reads):
        return
    base, extent = region(here, loop_vars(loop.body))
    sizes = [n.constant() for n in extent]
    whole = base[ROW + 1].constant() == 0 and None not in sizes
    if not whole or (sizes[ROW] or 0) >= b.shape[ROW].const:
        return
    rows = Buffer(f"{b.name}_rows", tuple(Index.of(n or 0) for n in sizes), b.dtype)
    s.func.temps = [rows if x is b else x for x in s.func.temps]
    s.func.body[:] = [x for x in s.func.body if all(x is not r for r in p.roots)]
    redirect(loop.body, b, rows, base)
    before, all_columns = p.offsets[ROW + 1], sizes[ROW + 1] or 0
    width = min(p.extents[ROW + 1], all_columns - before)
    columns = [(0, before), (before, width), (before + width, all_columns - before - width)]
    new: list[Stmt] = []
    for part, (first, count) in zip(("left", "copy", "right"), columns, strict=True):
        if count > 0:
            new.append(_part(s, p, rows, base, part, first, count))
    loop.body[:0] = new
    for part in ("left", "copy", "right"):
        _vectorize(s, f"{p.data.stage}.{part}", vector_bytes)


def _part(
    s: Schedule, p: _Padded, rows: Buffer, base: list[Index], part: str, first: int, count: int
) -> Stmt:
    """Some columns of the rows."""
    name = f"{p.data.stage}.{part}"
    vs = [
        Var(f"{name}.{v.name.rsplit('.', 1)[-1]}", count if k == ROW + 1 else n)
        for k, (v, n) in enumerate(zip(p.loops, rows.shape, strict=True))
    ]
    at: list[Index] = [v + first if k == ROW + 1 else Index.of(v) for k, v in enumerate(vs)]
    value = p.border
    if part == "copy":
        m: dict[Var, IntLike] = {}
        for k, v in enumerate(p.loops):
            m[v] = base[k] + at[k] - p.offsets[k]
        row, height = Index.of(m[p.loops[ROW]]), p.extents[ROW]
        m[p.loops[ROW]] = imin(imax(row, 0), height - 1)
        inside = imin(imax(row + 1, 0), 1) - imin(imax(row + 1 - height, 0), 1)
        value = select(binary("NE", index_value(inside), 0), subst(p.data.value, m), p.border)
    return nest(vs, Store(name, rows, tuple(at), value))


def _vectorize(s: Schedule, stage: str, vector_bytes: int) -> None:
    """Along the last axis, where that is contiguous in what is copied."""
    if stage not in s.stages():
        return
    ((store, path, _),) = s.stage_stores(stage)
    last = path[-1].var
    n, lanes = path[-1].extent.constant() or 1, vector_bytes // store.buffer.dtype.nbytes
    reads = [x.buffer.flat(x.idx) for x in loads(store.value)]
    if any(isinstance(x, Load) and x.dtype != store.buffer.dtype for x in loads(store.value)):
        return
    if n < 2 or any(f.terms.get(last) != 1 for f in reads):
        return
    if n <= lanes:
        s.vectorize(last.name)
        return
    if n % lanes == 0:
        _, inner = s.split(last.name, lanes)
        s.vectorize(inner)
