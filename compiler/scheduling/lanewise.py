"""Reductions of neighbouring data by what may be done in any order go in the lanes of vectors: each
lane takes every so manieth element, then the lanes are reduced."""

from __future__ import annotations

from compiler.scheduling import Schedule
from compiler.scheduling.lines import fused, one_line
from compiler.scheduling.nests import nest
from compiler.scheduling.tile import is_product, reads_of, stride_of
from compiler.symbolic import Index, IntLike, Var, imin
from compiler.target.registry import Target
from compiler.tensor.expr import Gather, IndexValue, IntImm, Load, subst, walk
from compiler.tensor.stmt import Buffer, For, Store, clone


def in_lanes(s: Schedule, target: Target) -> None:
    """Split every reduction to the largest or smallest of a row, of one or more axes, and every sum
    of integers: `<stage>.lanes` finds that of each lane, and the stage that of the lanes.

    The last vector overlaps the one before, which the former do not mind; sums of rows that are not
    whole vectors stay as they are.
    """
    for stage in s.stages():
        found = s.stage_stores(stage)
        ((store, path, _), *more) = found
        lanes = target.vector_bytes // store.buffer.dtype.nbytes
        if more or not _in_any_order(store):
            continue
        inner = path[len(store.idx) :]
        if len(inner) > 1 and one_line(store, inner):
            store, path = fused(s, store, path, len(inner))
        if _is_row(store, path, lanes):
            _split(s, store, path, lanes)


def _in_any_order(store: Store) -> bool:
    """Whether a statement reduces by what may be done in any order."""
    start = store.init.value if isinstance(store.init, IntImm) else None
    added = store.update == "Add" and store.buffer.dtype.is_integer and start == 0
    return store.update in ("Max", "Min") or (added and not is_product(store))


def _is_row(store: Store, path: tuple[For, ...], lanes: int) -> bool:
    """Whether a statement reduces one contiguous row of known length, two vectors at least, and
    nothing else."""
    dtype, rank, added = store.buffer.dtype, len(store.idx), store.update == "Add"
    if store.init is None or len(path) != rank + 1:
        return False
    if dtype.is_custom or not (dtype.is_float or dtype.is_integer) or lanes < 2:
        return False
    if any(f.extent.vars() & {g.var for g in path} for f in path):
        return False
    own = [next(iter(i.vars()), None) for i in store.idx]
    if own != [f.var for f in path[:rank]] or any(
        v != i for v, i in zip(own, store.idx, strict=True)
    ):
        return False
    row = path[-1]
    n = row.extent.constant()
    if any(isinstance(e, Gather | IndexValue) for e in walk(store.value)):
        return False
    mine = [x for x in walk(store.value) if isinstance(x, Load)]
    return (
        n is not None
        and n >= 2 * lanes
        and not (added and n % lanes)  # lanes that overlap would be added twice
        and bool(mine)
        and all(stride_of(x, row.var) in (0, 1) for x in mine)
        and any(stride_of(x, row.var) == 1 for x in mine)
        and all(row.var not in i.vars() for x in reads_of(store) if x not in mine for i in x.idx)
    )


def _split(s: Schedule, store: Store, path: tuple[For, ...], lanes: int) -> None:
    row, n = path[-1].var, path[-1].extent.const
    kept = [f.var for f in path[:-1] if f.extent != 1]
    name = store.stage + ".lanes"
    fresh = {v: Var(f"{name}.{v.name.rsplit('.', 1)[-1]}", v.extent) for v in kept}
    lane, step = Var(f"{name}.lane", lanes), Var(f"{name}.step", -(-n // lanes))
    most: IntLike = imin(step * lanes, n - lanes) if n % lanes else step * lanes
    at: dict[Var, IntLike] = {**fresh, **{f.var: 0 for f in path[:-1] if f.extent == 1}}
    shape = (*(v.extent or Index.of(1) for v in kept), Index.of(lanes))
    part = Buffer(store.buffer.name + "_lanes", shape, store.buffer.dtype)
    s.func.temps.append(part)
    idx = tuple(Index.of(v) for v in (*fresh.values(), lane))
    value = subst(store.value, {**at, row: most + lane})
    first = None if store.init is None else subst(store.init, at)
    new = Store(name, part, idx, value, store.update, first)
    body = s.func.body
    body.insert(
        next(k for k, x in enumerate(body) if x is path[0]),
        nest([*fresh.values(), lane, step], new),
    )
    among = Var(row.name, lanes)
    home = path[-2].body if len(path) > 1 else body
    rest = clone(store, {row: among})
    assert isinstance(rest, Store)
    rest.value = Load(part, tuple(Index.of(v) for v in (*kept, among)))
    s.swap(home, path[-1], [For(among, [rest])])


__all__ = ["in_lanes"]
