"""Padding that is read where it is needed, instead of from a padded copy in memory.

A temporary of which some stages fill borders with one value, and a last one copies data between
them, is not stored: what reads it reads the data, by an index that is kept inside it, or the value,
by a condition on the index. That saves the copy, which is as large as the data, and one kernel for
each border.
"""

from __future__ import annotations

from dataclasses import dataclass

from compiler.symbolic import Index, IntLike, Var, imax, imin
from compiler.tensor.expr import (
    Buffer,
    Expr,
    FloatImm,
    Gather,
    IntImm,
    Load,
    binary,
    index_value,
    rewrite,
    select,
    subst,
    walk,
)
from compiler.tensor.stmt import For, PrimFunc, Stmt, Store, stores

FEW = 4
"""Nodes of what is copied, beyond which it is not computed again by every reader."""


@dataclass(frozen=True)
class _Padded:
    """What a temporary holds: `value` over `loops` in the box that begins at `first`, else
    `fill`."""

    buffer: Buffer
    value: Expr
    fill: Expr
    loops: tuple[Var | None, ...]
    first: tuple[Index, ...]


def read_padding(f: PrimFunc) -> None:
    """Let readers of padded copies, of built-in dtypes, read what was copied; in place."""
    for b in list(f.temps):
        if not b.dtype.is_custom and (padded := _padded(f, b)) is not None:
            _read_through(f, padded)


def _padded(f: PrimFunc, b: Buffer) -> _Padded | None:
    written = [k for k, s in enumerate(f.body) if any(x.buffer is b for x in stores([s]))]
    if len(written) < 2:
        return None
    read = [k for k, s in enumerate(f.body) if _reads(s, b)]
    if read and min(read) < max(written):
        return None
    simple = [_box(f.body[k], b) for k in written]
    boxes = [x for x in simple if x is not None]
    if len(boxes) < len(simple):
        return None
    *borders, (copy, loops, first) = boxes
    fills = {repr(x.value) for x, _, _ in borders}
    constant = all(isinstance(x.value, (FloatImm, IntImm)) for x, _, _ in borders)
    if not constant or len(fills) != 1 or sum(1 for _ in walk(copy.value)) > FEW:
        return None
    if any(isinstance(e, Gather) for s in stores(f.body) for e in _nodes(s) if _gathers(e, b)):
        return None
    return _Padded(b, copy.value, borders[0][0].value, loops, first)


def _box(s: Stmt, b: Buffer) -> tuple[Store, tuple[Var | None, ...], tuple[Index, ...]] | None:
    """The one store of a nest of serial loops, its loop for each dimension (None: there is one
    element), and where it begins; None: the statement has another form."""
    loops: list[Var] = []
    while isinstance(s, For) and s.kind == "serial" and len(s.body) == 1:
        loops.append(s.var)
        s = s.body[0]
    if not isinstance(s, Store) or s.update or s.buffer is not b:
        return None
    own: list[Var | None] = []
    first: list[Index] = []
    for i in s.idx:
        mine = [v for v in loops if v in i.vars()]
        if len(mine) > 1 or (mine and mine[0] in own):
            return None
        start = i - mine[0] if mine else i
        if start.vars() & set(loops):
            return None
        own.append(mine[0] if mine else None)
        first.append(start)
    left = [v for v in loops if v not in own and v.extent != 1]
    if left or any(v.extent is not None and v.extent.vars() & set(loops) for v in loops):
        return None
    return s, tuple(own), tuple(first)


def _nodes(s: Store) -> list[Expr]:
    return [*walk(s.value), *(walk(s.init) if s.init is not None else ())]


def _gathers(e: Expr, b: Buffer) -> bool:
    return isinstance(e, Gather) and e.buffer is b


def _reads(s: Stmt, b: Buffer) -> bool:
    return any(
        isinstance(e, (Load, Gather)) and e.buffer is b for x in stores([s]) for e in _nodes(x)
    )


def _read_through(f: PrimFunc, p: _Padded) -> None:
    def put(e: Expr) -> Expr | None:
        return inside_or(p, e.idx) if isinstance(e, Load) and e.buffer is p.buffer else None

    f.body[:] = [s for s in f.body if not any(x.buffer is p.buffer for x in stores([s]))]
    for s in stores(f.body):
        s.value = rewrite(s.value, put)
        s.init = None if s.init is None else rewrite(s.init, put)
    f.temps = [b for b in f.temps if b is not p.buffer]


def inside_or(p: _Padded, idx: tuple[Index, ...]) -> Expr:
    """What the copy holds at `idx`."""
    m: dict[Var, IntLike] = {}
    conditions = []
    for i, v, first, n in zip(idx, p.loops, p.first, p.buffer.shape, strict=True):
        size = Index.of(1) if v is None or v.extent is None else v.extent
        at = i - first
        if first == 0 and size == n:
            inside = at  # the dimension is not padded
        else:
            inside = imin(imax(at, 0), size - 1)
            conditions.append(imin(imax(at + 1, 0), 1) - imin(imax(at + 1 - size, 0), 1))
        if v is not None:
            m[v] = inside
    value = subst(p.value, m)
    for c in conditions:
        value = select(binary("NE", index_value(c), 0), value, p.fill)
    return value


__all__ = ["read_padding"]
