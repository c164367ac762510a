"""Kernels of several stages over the same rows, a tile of rows at a time: what a stage leaves for
the next one is still in the cache, and never as large as all rows of it.

This is what makes a kernel of attention of its operators (scores, softmax, product with values):
whole rows of scores stay where they were computed, so that every sum and every rounding is the one
of the stages one after another (T. Dao et al., "FlashAttention", 2022, tiles columns as well, and
rescales). A tile is scheduled as a kernel of its own, by the rules for all kernels. What it does
that is the same for all tiles (copies of keys and values in the order in which they are walked) is
done before them, once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from compiler.lowering.legalize import FAR
from compiler.scheduling.nests import nest
from compiler.scheduling.row_cuts import Tiling, cut
from compiler.scheduling.same_memory import same_memory
from compiler.scheduling.sandwiched import put, sandwiched
from compiler.symbolic import Index, IntLike, Var
from compiler.tensor.copying import Copy
from compiler.tensor.expr import Buffer, Expr, Load, index_vars, rewrite, subst
from compiler.tensor.shared_rows import RowStage, SharedRows, shared_rows
from compiler.tensor.stmt import (
    For,
    Pick,
    PrimFunc,
    Stmt,
    Store,
    When,
    accesses,
    stores,
    walk_stmts,
)

Rows = tuple[IntLike, ...]


def tile_rows(
    f: PrimFunc,
    cache: int,
    arrange: Callable[[PrimFunc], None],
    by_rules: Callable[[PrimFunc], None] | None = None,
) -> bool:
    """Let `f`, in place, compute tiles of rows, each scheduled by `arrange`; False: it is left as
    it is, for it is not made of several reductions over the same rows, or of one tile only. The
    temporaries of a tile are of at most `cache` bytes, or of few rows. `by_rules` schedules what
    spares products of subnormal numbers (see `sandwiched`); None: these are quick."""
    if sum(x.init is not None for x in stores(f.body)) < 2:
        return False
    shared = shared_rows(f)
    if isinstance(shared, str):
        return False
    parts: list[tuple[PrimFunc, Tiling]] = []
    for t in cut(shared, cache):
        tile = _one_tile(f, shared, t)
        quick = sandwiched(tile) if by_rules is not None and f.attrs.get(FAR) else None
        arrange(tile)
        if quick is not None and by_rules is not None:
            by_rules(quick.look)
            by_rules(quick.func)
            put(tile, quick)
        if tile.packed or any(_gathered(tile.body, b) for b in (*tile.temps, tile.params[-1])):
            return False
        parts.append((tile, t))
    if parts:
        f.body.clear()
        f.temps.clear()
    for tile, t in parts:
        _put_together(f, tile, t, shared.order)
    return bool(parts)


def _gathered(body: list[Stmt], b: Buffer) -> bool:
    return any(x is b and idx is None for x, idx, _, _ in accesses(body))


def _one_tile(f: PrimFunc, shared: SharedRows, t: Tiling) -> PrimFunc:
    """The loop nests of one tile; its result is a buffer of its own."""
    axes = len(t.rows)
    new = {b: replace(b, shape=(*map(Index.of, t.rows), *b.shape[axes:])) for b in shared.buffers}

    def stage(s: RowStage) -> Stmt:
        sizes = {v: n for v, n in zip(s.rows, t.rows, strict=True) if v is not None}
        loops = [Var(v.name, sizes.get(v, v.extent)) for v in s.loops]
        inner = dict(zip(s.loops, loops, strict=True))
        here = tuple(Index.of(0 if v is None else inner[v]) for v in s.rows)
        m: dict[Var, IntLike] = dict(inner)
        pairs = zip(s.rows, t.first, strict=True)
        m |= {v: inner[v] + first for v, first in pairs if v is not None}

        def put(e: Expr) -> Expr | None:
            if isinstance(e, Load) and e.buffer in new:
                return Load(new[e.buffer], (*here, *e.idx[axes:]))
            return None

        x = s.store
        given = (None if e is None else rewrite(subst(e, m), put) for e in (x.value, x.init))
        value, init = given
        assert value is not None
        rest = tuple(i.subst(m) for i in x.idx[axes:])
        idx = (*here, *rest)
        return nest(loops, replace(x, buffer=new[x.buffer], idx=idx, value=value, init=init))

    return replace(
        f,
        params=[*f.params[:-1], new[shared.result]],
        temps=[x for b, x in new.items() if b is not shared.result],
        body=[stage(s) for s in shared.stages],
        packed={},
        prefetch={},
    )


def _put_together(f: PrimFunc, tile: PrimFunc, t: Tiling, order: Sequence[int]) -> None:
    """Let `f` compute all tiles, too, by the loops of one."""
    moved = _moved(tile, t)
    heads = [v for v in t.loops if v not in t.moving]
    places = {tile.params[-1]: _Place(f.params[-1], (), t.first, order)}
    parts = [s for s in tile.body if _written([s]) & moved]
    home = same_memory(parts, moved & {*tile.temps})
    for b in tile.temps:
        if home.get(b, b) is not b:
            continue
        around = t.loops[:1] if b in moved else heads
        shape = (*(v.extent or Index.of(1) for v in around), *b.shape)
        places[b] = _Place(replace(b, shape=shape), tuple(around))
    kept = [b for b in tile.temps if b in places]
    places |= {b: places[x] for b, x in home.items()}
    before: list[Stmt] = []
    body: list[Stmt] = []
    for s in tile.body:
        if s in parts:
            body += _Placed(places).body([s])
            continue
        own = {v: Var(f"{v.name}.{len(before)}", v.extent) for v in heads}
        before.append(nest([*own.values()], _Placed(places, own).stmt(s)))
    for v in reversed(t.loops):
        body = [For(v, body, "parallel" if v is t.loops[0] else "serial")]
    f.body += [*before, *body]
    f.temps += [places[b].buffer for b in kept]


def _moved(tile: PrimFunc, t: Tiling) -> set[Buffer]:
    """What is not the same in all tiles of a head: the result, and what is computed from the rows
    of a tile."""
    moved = {tile.params[-1]} if t.moving else {tile.params[-1], *tile.temps}
    before = 0
    while before < len(moved):
        before = len(moved)
        for s in tile.body:
            reads = {b for b, _, stored, _ in accesses([s]) if not stored}
            if _index_vars(s) & t.moving or (reads | _written([s])) & moved:
                moved |= _written([s])
    return moved


def _written(body: list[Stmt]) -> set[Buffer]:
    return {b for b, _, stored, _ in accesses(body) if stored and b.scope == "global"}


def _index_vars(s: Stmt) -> set[Var]:
    """The index variables that a statement reads elements at, or computes with."""
    out: set[Var] = set()
    for x, _, _ in walk_stmts([s]):
        if isinstance(x, For):
            out |= x.extent.vars()
        given = [x.condition] if isinstance(x, When) else [x.at] if isinstance(x, Pick) else []
        out = out.union(*map(index_vars, given))
    for st in stores([s]):
        out = out.union(index_vars(st.value), *(i.vars() for i in st.idx))
        out |= index_vars(st.init) if st.init is not None else set()
    return out


@dataclass(frozen=True, eq=False)
class _Place:
    """Where a buffer of a tile lies: `buffer`, at `around` and the indices moved by `first`, in
    `order` if one is given."""

    buffer: Buffer
    around: Rows
    first: Rows = ()
    order: Sequence[int] = ()


class _Placed(Copy):
    """Copies statements of a tile to where its buffers lie."""

    def __init__(self, places: Mapping[Buffer, _Place], heads: Mapping[Var, IntLike] | None = None):
        super().__init__(heads)
        self.places = places

    def buffer(self, b: Buffer) -> Buffer:
        """The buffer that holds all tiles."""
        return self.places[b].buffer if b in self.places else b

    def at(self, b: Buffer, idx: Sequence[Index]) -> tuple[Index, ...]:
        """Where in it an element is."""
        here = self.indices(idx)
        if b not in self.places:
            return here
        p = self.places[b]
        around, first = (self.indices(tuple(map(Index.of, x))) for x in (p.around, p.first))
        moved = [i + k for i, k in zip(here, first, strict=False)]
        every = (*around, *moved, *here[len(first) :])
        return tuple(every[k] for k in p.order) if p.order else every

    def store(self, s: Store) -> Store:
        """A store into the tile's place."""
        return replace(super().store(s), idx=self.at(s.buffer, s.idx))

    def node(self, n: Expr) -> Expr | None:
        """A load from the tile's place."""
        if isinstance(n, Load):
            return Load(self.buffer(n.buffer), self.at(n.buffer, n.idx))
        return super().node(n)


__all__ = ["tile_rows"]
