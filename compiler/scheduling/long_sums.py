"""Sums of products whose operands do not stay in the cache from one tile to the next: all tiles
take some steps of their sums (some channels of their windows) before any takes the next, and go on
from what they have stored (Goto and van de Geijn, Anatomy of high-performance matrix
multiplication, 2008). The order of the steps is the same, and so are the bits."""

from __future__ import annotations

import math
from collections.abc import Sequence

from compiler.scheduling import Schedule
from compiler.scheduling.nests import nest
from compiler.scheduling.tile import Tile
from compiler.symbolic import Index, Var
from compiler.target.cpus import Caches
from compiler.tensor.expr import Buffer, Expr, Load, loads, rewrite
from compiler.tensor.stmt import For, Store, clone, stores, walk_stmts
from compiler.types.dtypes import FLOAT32, FLOAT64

LEAST_STEPS = 64
"""Steps that a part has at least: fewer take less time than going on from what is stored."""
HELD = 4
"""Bytes of the operand that all tiles walk for each that a cache is sure to have, up to which it is
not worth it: others have more, and storing sums takes time, too."""
TILES = 16
"""Tiles of rows that a part is walked for at least."""
WALKS = 8
"""Tiles of a window that walk the weights at least."""
NEAR = 0.34
"""Share of the nearest cache that weights of a part of a window may take."""
FAR = 0.4
"""Weights of a tile that take this share of the next cache, or less, come from there nearly as fast
as they are used."""


def steps_of_a_part(store: Store, path: Sequence[For], t: Tile, caches: Caches) -> int:
    """How many steps of its sums a tile with a copied operand takes at a time; 0: all."""
    rank = len(store.idx)
    extents = [f.extent.constant() for f in path]
    known = [n for n in extents if n is not None]
    floats = store.buffer.dtype in (FLOAT32, FLOAT64)
    if t.copy is None or t.run_time or t.dot is not None or not floats or len(known) < len(path):
        return 0
    if len(path) != rank + 1 or t.lane_axis != rank - 1 or t.block_axis != t.lane_axis:
        return 0
    (weight,) = (x for x in loads(store.value) if path[t.lane_axis].var in _vars(x))
    if any(f.var in _vars(weight) for f in path[: rank - 1]):
        return 0  # a matrix for each of a batch
    widths = dict(t.widths)
    tiles = math.prod(-(-known[k] // widths.get(k, 1)) for k in range(rank - 1))
    a_step = t.lanes * t.blocks * weight.dtype.nbytes
    if tiles < TILES or known[-1] * a_step <= HELD * caches.next:
        return 0
    most = caches.next // a_step
    fits = [n for n in range(LEAST_STEPS, most + 1) if known[-1] % n == 0]
    whole = [n for n in fits if t.reduce_block and n % t.reduce_block == 0]
    return max(whole or fits, default=0)


def channels_of_a_part(store: Store, path: Sequence[For], t: Tile, caches: Caches) -> int:
    """How many channels of a window that has several taps a tile takes at a time; 0: all. The
    weights of a part are near then, for all tiles but the first."""
    rank = len(store.idx)
    extents = [f.extent.constant() for f in path]
    moved = t.walk is not None or t.group is not None or t.run_time
    if not t.in_parts or moved or None in extents[: rank + 1]:
        return 0
    sizes = [n or 1 for n in extents]
    widths, channels = dict(t.widths), sizes[rank]
    rows = [k for k in range(rank) if k not in (t.lane_axis, t.block_axis)]
    tiles = math.prod(-(-sizes[k] // widths.get(k, 1)) for k in rows)
    each = t.lanes * t.blocks * math.prod(sizes[rank + 1 :]) * store.buffer.dtype.nbytes
    if tiles < WALKS or channels * each <= FAR * caches.next:
        return 0
    step = max(1, t.reduce_block)
    most = min(int(NEAR * caches.near) // each, channels - 1)
    return max((n for n in range(step, most + 1, step) if channels % n == 0), default=0)


def _vars(x: Load) -> set[Var]:
    return set[Var]().union(*(i.vars() for i in x.idx))


def sum_by_parts(s: Schedule, stage: str, steps: int) -> Var:
    """Let `stage` take `steps` of the first axis of its sum only, from what stage `<stage>.part`
    stored on: those of the part that the variable returned says, of which `walk_parts` makes a loop
    once `stage` is scheduled. Stage `<stage>.start` stores what sums start from."""
    ((store, path, _),) = s.stage_stores(stage)
    rank, there = len(store.idx), store.buffer
    k = path[rank].var
    assert store.init is not None
    part = Var(f"{stage}.parts", (path[rank].extent.constant() or 0) // steps)
    held = Buffer(there.name + "_part", there.shape, there.dtype, align=64)
    s.func.temps.append(held)
    for st in stores(s.func.body):
        if st is not store:
            st.value = rewrite(st.value, lambda e: _from(e, there, held))

    def over(name: str) -> tuple[list[Var], tuple[Index, ...]]:
        vs = [Var(f"{name}.{f.var.name.rsplit('.', 1)[-1]}", f.extent) for f in path[:rank]]
        return vs, tuple(map(Index.of, vs))

    first, at = over(f"{stage}.start")
    start = nest(first, Store(f"{stage}.start", held, at, store.init))
    last, at = over(f"{stage}.part")
    end = nest(last, Store(f"{stage}.part", held, at, Load(there, at)))
    fewer = Var(k.name, steps)
    (body,) = path[rank].body
    mine = clone(body, {k: part * steps + fewer})
    for x in stores([mine]):
        x.init = Load(held, x.idx)
    s.swap(path[rank - 1].body, path[rank], [For(fewer, [mine])])
    place = next(i for i, x in enumerate(s.func.body) if x is path[0])
    s.func.body[place : place + 1] = [start, path[0], end]
    return part


def _from(e: Expr, old: Buffer, new: Buffer) -> Expr | None:
    return Load(new, e.idx) if isinstance(e, Load) and e.buffer is old else None


def walk_parts(s: Schedule, stage: str, part: Var) -> None:
    """Put a loop over the parts of `stage` inside each of its outermost loops."""
    for root in s.func.body:
        mine = (x for x, _, _ in walk_stmts([root]) if isinstance(x, Store) and x.stage == stage)
        if isinstance(root, For) and any(mine):
            own = Var(part.name, part.extent)
            root.body = [For(own, [clone(x, {part: own}) for x in root.body])]


__all__ = ["channels_of_a_part", "steps_of_a_part", "sum_by_parts", "walk_parts"]
