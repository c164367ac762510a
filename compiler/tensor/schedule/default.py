"""Default schedules, chosen from the loop nest alone: no operator is named here.

A sum of products (stage `mac`) with an elementwise consumer gets a register tile: lanes along the
output axis that only the constant operand follows (output channels), several neighbouring outputs
of the last axis, the whole reduction in registers, and the constant operand packed in traversal
order. Elementwise stages are vectorized along the last axis where it is contiguous. Anything else
runs as written.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from compiler.errors import ScheduleError
from compiler.symbolic import Index, IntLike, Var
from compiler.target import Target
from compiler.tensor.expr import BinOp, CallExtern, Expr, Gather, IndexValue, Load, loads, walk
from compiler.tensor.lower_custom import uses_custom
from compiler.tensor.schedule import Schedule
from compiler.tensor.stmt import Buffer, For, PrimFunc, Store, clone, stores, walk_stmts

TASKS = 16
"""Iterations that a parallel loop should at least have."""


@dataclass(frozen=True)
class Tile:
    """Register tile: `blocks` vectors of `lanes` along one output axis times `width` along
    another."""

    lane_axis: int
    lanes: int
    blocks: int
    width_axis: int | None
    width: int
    pack: Buffer | None


def schedule_default(f: PrimFunc, target: Target, constants: Collection[Buffer] = ()) -> None:
    """Schedule `f` in place. `constants`: the parameters whose arrays are known at build time."""
    s = Schedule(f)
    inline_elementwise(s)
    custom = uses_custom(f)
    macs = [] if custom else [st for st in s.stages() if st == "mac" or st.startswith("mac")]
    for stage in macs:
        if s.stage_stores(stage)[0][0].buffer in f.params:
            s.accumulate_apart(stage)
        tile = choose_tile(s, stage, target, constants)
        if tile is not None:
            _tile(s, stage, tile, fma="fma" in target.enabled or "neon" in target.enabled)
    for stage in s.stages():
        _decompose(s, stage)
    if not custom:
        for stage in s.stages():
            _vectorize(s, stage, target)
    _parallelize(s)


def inline_elementwise(s: Schedule) -> None:
    """Inline every elementwise stage that is read by one non-reduction stage, at one position."""
    for stage in s.stages():
        ((store, _, _), *more) = s.stage_stores(stage)
        b = store.buffer
        if more or store.update or b not in s.func.temps:
            continue
        if sum(x.buffer is b for x in stores(s.func.body)) > 1:
            continue
        readers = [x for x in stores(s.func.body) if any(n.buffer is b for n in _reads(x))]
        positions = {n.idx for x in readers for n in loads(x.value) if n.buffer is b}
        gathered = any(isinstance(n, Gather) for x in readers for n in _reads(x) if n.buffer is b)
        if len(readers) == 1 and not readers[0].update and len(positions) == 1 and not gathered:
            try:
                s.compute_inline(stage)
            except ScheduleError:
                continue  # a shifted or strided copy: it stays a stage of its own


def _reads(s: Store) -> list[Load | Gather]:
    exprs = [s.value] + ([s.init] if s.init is not None else [])
    return [n for e in exprs for n in walk(e) if isinstance(n, (Load, Gather))]


def choose_tile(
    s: Schedule, stage: str, target: Target, constants: Collection[Buffer]
) -> Tile | None:
    """The register tile for a sum of products, or None where the nest does not have that form."""
    ((store, path, _),) = s.stage_stores(stage)
    consumer = _consumer(s, store)
    operands = [n for n in walk(store.value) if isinstance(n, Load)]
    spatial = [next(iter(i.vars()), None) for i in store.idx]
    product = isinstance(store.value, BinOp) and store.value.op == "Mul"
    if consumer is None or len(operands) != 2 or store.update != "Add" or not product:
        return None
    if any(v is None or i != v for v, i in zip(spatial, store.idx, strict=True)):
        return None
    if any(f.extent.vars() & {g.var for g in path} for f in path):
        return None  # trimmed loops
    lanes = target.vector_bytes // store.buffer.dtype.nbytes
    axes = [v for v in spatial if v is not None]
    only = {k: [x for x in operands if v in _index_vars(x)] for k, v in enumerate(axes)}
    lane_axis, pack = None, None
    for k, v in reversed(list(enumerate(axes))):
        n = _static(v)
        if n and n >= 4 and len(only[k]) == 1:
            operand = only[k][0]
            if operand.buffer in constants:
                lane_axis, pack = k, operand.buffer
                break
            if lane_axis is None and _stride(operand, v) == 1:
                lane_axis = k
    if lane_axis is None:
        n = _static(axes[-1]) if axes else None
        if not n or n < 4:
            return None
        lane_axis = len(axes) - 1
    n = _static(axes[lane_axis]) or 1
    lanes = min(lanes, n)
    others = [k for k in range(len(axes)) if k != lane_axis and (_static(axes[k]) or 0) > 1]
    width_axis = others[-1] if others and pack is not None else None
    registers = 28 if target.vector_bytes == 64 else 12
    blocks = 2 if n >= 2 * lanes else 1
    width = 1
    if width_axis is not None:
        width = best_width(_static(axes[width_axis]) or 1, registers // blocks)
    return Tile(lane_axis, lanes, blocks, width_axis, width, pack)


def best_width(extent: int, most: int) -> int:
    """The tile width <= `most` that wastes least of `extent`; the widest among equals."""
    return max(range(1, min(extent, most) + 1), key=lambda w: (extent / (-(-extent // w) * w), w))


def _consumer(s: Schedule, store: Store) -> Store | None:
    readers = [x for x in stores(s.func.body) if any(n.buffer is store.buffer for n in _reads(x))]
    readers = [x for x in readers if x is not store]
    if len(readers) != 1 or readers[0].update or store.buffer not in s.func.temps:
        return None
    reader = readers[0]
    positions = {n.idx for n in loads(reader.value) if n.buffer is store.buffer}
    if len(positions) != 1 or len(reader.idx) != len(store.idx):
        return None
    # The consumer must walk the same axes, one loop each.
    ((_, path, _),) = s.stage_stores(reader.stage)
    (position,) = positions
    loops = [f.var for f in path]
    same = list(position) == loops and list(reader.idx) == loops
    return reader if same else None


def _tile(s: Schedule, stage: str, t: Tile, fma: bool) -> None:
    ((store, path, _),) = s.stage_stores(stage)
    consumer = _consumer(s, store)
    assert consumer is not None
    out, rank = consumer.stage, len(store.idx)
    outer = s.loops(out)
    mine = [f.var.name for f in path]
    axes, reduce = mine[:rank], mine[rank:]
    # The output tile.
    lane = outer[t.lane_axis]
    o_out, o_in = s.split(lane, t.lanes * t.blocks)
    order = [o_out if k == t.lane_axis else n for k, n in enumerate(outer)]
    inside = [o_in]
    if t.width_axis is not None:
        w_out, w_in = s.split(outer[t.width_axis], t.width)
        order[t.width_axis] = w_out
        inside = [w_in, o_in]
    s.reorder(*order, *inside)
    s.compute_at(stage, order[-1])
    block, o_lane = s.split(o_in, t.lanes)
    # The reduction inside it.
    m_block, m_lane = s.split(axes[t.lane_axis], t.lanes)
    tile = [n for k, n in enumerate(axes) if k != t.lane_axis]
    if reduce:
        s.reorder(*reduce, *tile, m_block, m_lane)
        s.decompose_reduction(stage, reduce[0])
    if t.pack is not None:
        s.pack(stage, t.pack)
    if fma and store.buffer.dtype.is_float and isinstance(store.value, BinOp):
        s.contract(stage)
    init = [n + ".init" for n in (*tile, m_block)]
    s.vectorize(o_lane, m_lane, m_lane + ".init")
    s.unroll(*tile, m_block, *init, block)
    if t.width_axis is not None:
        s.unroll(w_in)
        s.peel(w_out)
    s.peel(o_out)


def _decompose(s: Schedule, stage: str) -> None:
    for store, path, _ in s.stage_stores(stage):
        if store.init is None:
            continue
        used: set[Var] = set().union(*(i.vars() for i in store.idx))
        reduction = next((f for f in path if f.var not in used), None)
        if reduction is None:
            raise ScheduleError(f"{stage} starts from a value but reduces over nothing")
        s.decompose_reduction(stage, reduction.var.name)


def _vectorize(s: Schedule, stage: str, target: Target) -> None:
    """Vectorize an elementwise stage (a perfect nest of serial loops) along its last axis."""
    found = s.stage_stores(stage)
    ((store, path, home), *more) = found
    if more or store.update or not path or any(f.kind != "serial" for f in path) or len(home) != 1:
        return
    last = path[-1]
    n = last.extent.constant()
    if n is None or n < 2 or not _contiguous(store, last.var):
        return
    lanes = target.vector_bytes // 4
    if n <= 2 * lanes:
        s.vectorize(last.var.name)
        return
    outer, inner = s.split(last.var.name, lanes)
    s.vectorize(inner)
    s.peel(outer)


def _contiguous(store: Store, v: Var) -> bool:
    out = store.buffer.flat(store.idx)
    if out.terms.get(v) != 1 or _hides(out, v):
        return False
    for n in walk(store.value):
        if isinstance(n, Load):
            flat = n.buffer.flat(n.idx)
            if flat.terms.get(v, 0) not in (0, 1) or _hides(flat, v):
                return False
        elif isinstance(n, (CallExtern, Gather, IndexValue)):
            return False
    return True


def _hides(flat: Index, v: Var) -> bool:
    return any(v in a.leaves() for a in flat.terms if not isinstance(a, Var))


def _parallelize(s: Schedule) -> None:
    """Run every top-level loop whose iterations store to different places in parallel, fused with
    the loops directly inside it while it has few iterations of its own (a batch of one image)."""
    for k, _ in enumerate(s.func.body):
        root = s.func.body[k]
        if not isinstance(root, For) or root.kind != "serial" or not _spatial(root):
            continue
        while (root.extent.range()[0] or 0) < TASKS and len(root.body) == 1:
            inner = root.body[0]
            n = inner.extent.constant() if isinstance(inner, For) else None
            if not isinstance(inner, For) or inner.kind != "serial" or n is None:
                break
            if (
                inner.opaque
                or not inner.body
                or not _spatial(inner)
                or not isinstance(inner.body[0], For)
            ):
                break
            fused = For(Var(f"task{k}", root.extent * n), [])
            m: dict[Var, IntLike] = {root.var: fused.var // n, inner.var: fused.var % n}
            fused.body = [clone(x, m) for x in inner.body]
            s.func.body[k] = root = fused
        root.kind = "parallel"


def _spatial(root: For) -> bool:
    """Whether every statement below stores to places that this loop alone moves between."""
    return all(
        any(root.var in i.vars() for i in s.idx)
        for s, _, _ in walk_stmts([root])
        if isinstance(s, Store) and s.buffer.scope == "global"
    )


def _static(v: Var) -> int | None:
    return v.extent.constant() if v.extent is not None else None


def _index_vars(x: Load) -> set[Var]:
    return set().union(*(i.vars() for i in x.idx))


def _stride(x: Load, v: Var) -> int | None:
    flat = x.buffer.flat(x.idx)
    return None if _hides(flat, v) else flat.terms.get(v, 0)


__all__ = ["Expr", "Tile", "best_width", "choose_tile", "schedule_default"]
