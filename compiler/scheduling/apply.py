"""Carrying out a register tile: splits, orders, packing and tensorization as a `Tile` says."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from compiler.errors import ScheduleError
from compiler.scheduling import Schedule
from compiler.scheduling.long_sums import (
    TILES,
    channels_of_a_part,
    steps_of_a_part,
    sum_by_parts,
    walk_parts,
)
from compiler.scheduling.padded_rows import pad_by_rows
from compiler.scheduling.select import consumer, is_widened
from compiler.scheduling.tile import (
    UNROLLED_STEPS,
    Tile,
    channel_block,
    column_guard,
    guards,
    has_select,
    index_vars_of,
    is_product,
    keeps_order,
)
from compiler.scheduling.turned_sums import rows_may_repeat, turn_terms
from compiler.target.cpus import CACHES, LINE, Caches
from compiler.tensor.expr import Load, loads
from compiler.tensor.stmt import For, Store
from compiler.types.dtypes import FLOAT32, FLOAT64

PIXELS = 4
"""Neighbouring outputs that are stored together where several blocks lie in one vector."""
AHEAD = 8192
"""Bytes by which it is fetched ahead where it is walked once."""
WALKS = 4
"""Tiles that must walk the same part for that."""
MANY = 32
"""Registers from which on they are many: those of AVX-512."""
FAR, FEWER, SHARED, PARTS = 4, 2, 4, 4
"""For rows of windows to go first: how many times a cache the data must be, and the weights; the
most products that each number of the data is in, for each output channel; and the least parts."""


def apply_tile(
    s: Schedule,
    stage: str,
    t: Tile,
    fma: bool,
    caches: Caches = CACHES,
    row_bytes: int = 0,
    registers: int = 0,
) -> None:
    """Schedule `stage` and its consumer as the tile says. `fma`, `caches`, `registers`: of the
    target, the last how many vectors it has; `row_bytes`: of these, if padded copies are made by
    rows (see `pad_by_rows`)."""
    few: list[str] = []
    for axis, width in t.run_time:
        ((store, _, _),) = s.stage_stores(stage)
        few.append(s.versions(stage, _consumer(s, store).stage, axis, width))
    _apply(s, stage, t, fma, caches, row_bytes, registers)
    for (axis, _), name in zip(t.run_time, few, strict=True):
        one = replace(t, run_time=())
        if axis == t.lane_axis:
            one = replace(one, lanes=1, blocks=1)
        elif t.skew[0]:  # windows one by one share no data
            one = replace(one, spatial=((axis, 1),), skew=(1, *t.skew[1:]))
        _apply(s, name, one, fma, caches, 0, registers)


def _consumer(s: Schedule, store: Store) -> Store:
    reader = consumer(s, store)
    assert reader is not None
    return reader


def _apply(
    s: Schedule, stage: str, t: Tile, fma: bool, caches: Caches, row_bytes: int, registers: int
) -> None:
    ((store, path, _),) = s.stage_stores(stage)
    if t.copy is not None:
        together = t.dot.steps if t.dot is not None else 1
        s.copy_in_blocks(stage, t.copy, t.lane_axis, t.lanes, together, t.reduce_block)
        ((store, path, _),) = s.stage_stores(stage)
    few = steps_of_a_part(store, path, t, caches) or channels_of_a_part(store, path, t, caches)
    part = sum_by_parts(s, stage, few) if few else None
    ((store, path, _),) = s.stage_stores(stage)
    reader = _consumer(s, store)
    rank = len(store.idx)
    outer = s.loops(reader.stage)
    mine, columns = [f.var.name for f in path], column_guard(path, t)
    axes, reduce = mine[:rank], [n for n in mine[rank:] if n != columns]
    # The output tile: split, and everything inside the tile innermost, lanes last.
    order, inside, peeled = list(outer), [], []
    same = t.block_axis == t.lane_axis
    sizes = dict(t.widths)
    if not same and t.blocks > 1:
        sizes[t.block_axis] = t.blocks
    lane_factor = t.lanes * (t.blocks if same else 1)
    for k, width in sorted(sizes.items()):
        ending = "shift" if (k, width) in t.run_time else "peel"
        order[k], inner = s.split(outer[k], width, tail=ending)
        inside.append(inner)
        peeled.append(order[k])
    outer_x = order[t.spatial[-1][0]] if t.spatial else ""
    lane_extent = path[t.lane_axis].extent.constant()
    again = t.turned and rows_may_repeat(store, reader, t.lane_axis)
    lane_end = "shift" if again or t.lane_axis in dict(t.run_time) else "peel"
    lane_out, lane_in = s.split(outer[t.lane_axis], lane_factor, tail=lane_end)
    block_out = order[t.block_axis]
    if lane_extent == lane_factor and rank > 1:
        order.pop(t.lane_axis)
        inside.append(lane_out)
    else:
        order[t.lane_axis] = lane_out
        peeled.append(lane_out)
    parts = lane_out if lane_out in order else "" if same else block_out
    at = t.walk
    if part is not None:
        at = 0
    elif lane_out in order:
        at = _walked_once(store, path, t, caches) if at is None else at
    elif at is None and parts in order and _rows_first(store, path, t, caches):
        at = len(order) - 2
    if at is not None and parts:
        order.remove(parts)
        order.insert(at, parts)
    s.reorder(*order, *inside, lane_in)
    s.compute_at(stage, order[-1])
    if row_bytes:
        pad_by_rows(s, stage, order, row_bytes)
    o_block, o_lane = s.split(lane_in, t.lanes)
    vector = [o_lane]
    if is_widened(reader) and t.widths:
        # Neighbouring pixels of a block lie together.
        x = inside[[k for k, _ in sorted(sizes.items())].index(t.widths[-1][0])]
        several, pixel = s.split(x, PIXELS)
        inside[inside.index(x)] = several
        s.reorder(*inside, o_block, pixel, o_lane)
        vector = [pixel, o_lane]
    # The reduction inside it. Sums that round keep their order: channels before taps.
    pinned = keeps_order(store) and any(f.extent != 1 for f in path[rank + 1 :])
    m_block, m_lane = s.split(axes[t.lane_axis], t.lanes)
    if (t.dot is not None or t.copy is not None) and (lane_extent or 0) % t.lanes:
        s.fill(stage, m_lane, t.lanes)
    # Vectors of one pixel follow each other, so that its broadcast is used up at once.
    apart = [k for k in range(rank) if k not in (t.lane_axis, t.block_axis)]
    tile = [axes[k] for k in apart]
    tile += [columns] if columns else []
    tile += [] if same else [axes[t.block_axis]]
    if t.skew[0]:
        nest, tile, tail, steps = _skewed(s, t, axes, reduce)
    elif t.turned:
        tail, steps = [], list(s.split(reduce[-1], t.lanes))
        nest = [*reduce[:-1], *steps]
    else:
        variables = [f.var for f in path[rank:]]
        block = max((channel_block(x, variables) for x in loads(store.value)), default=0)
        steps, tail = _reduction(s, t, reduce, pinned, block)
        nest = [*steps, *reduce[1:]] if pinned else reduce_order(reduce, steps)
    s.reorder(*nest, *tile, m_block, m_lane, *tail)
    s.decompose_reduction(stage, nest[0])
    known = {f.var.name for f in s.init_loops(stage)}
    inits = [n for n in (f"{x}.init" for x in (*tile, m_block)) if n in known]
    if t.pack is not None:
        if part is not None:  # the packed operand is laid out as parts walk it
            walk_parts(s, stage, part)
        packed = s.pack(stage, t.pack)
        nbytes = (packed.size.constant() or 0) * packed.dtype.nbytes
        ahead = t.ahead
        if ahead is None and t.lanes > 1 and nbytes > caches.near:
            ahead = _ahead(t, path, rank, packed.dtype.nbytes, caches)
        if ahead:
            s.prefetch(packed, ahead)
    # LLVM has no fma of float16 in one rounding.
    floats = store.buffer.dtype in (FLOAT32, FLOAT64)
    if fma and floats and store.update == "Add" and is_product(store) and not t.turned:
        s.contract(stage)
    if t.dot is not None:
        s.tensorize(stage, t.dot)
        s.vectorize(m_lane + ".init")
    else:
        s.vectorize(m_lane, m_lane + ".init")
    s.vectorize(*vector)
    s.unroll(*tile, m_block, *inits, o_block, *inside)
    if pinned and (path[-1].extent.constant() or UNROLLED_STEPS + 1) <= UNROLLED_STEPS:
        s.unroll(reduce[-1])
    for name in (*steps[:-1], *peeled):
        s.peel(name)
    if len(steps) > 1 and not pinned:
        _unroll_known(s, steps[-1])
    if t.turned:
        turn_terms(s, stage, steps[-1], m_block, m_lane, t.lanes)
    if columns:
        # Which taps of a column lie in the padding is known at build time in the outermost tiles.
        s.unroll(reduce[-1])
        if is_product(store):  # other loads are few enough to be merged across taps
            data = _data(store, path, t).buffer
            s.opaque(reduce[-1], data, fence=store.buffer.dtype.is_float)
    elif (has_select(store) and not t.skew[0]) or _few_taps(store, path, t):
        s.unroll(reduce[-1])
        if _reads_too_much(store, path, t, registers):
            s.opaque(reduce[-1], _data(store, path, t).buffer, fence=True)
    if outer_x in s.loops(reader.stage):  # several tiles in a row
        s.isolate(outer_x)
    if t.widths and not is_widened(reader):
        x = inside[[k for k, _ in sorted(sizes.items())].index(t.widths[-1][0])]
        _narrow(s, reader.stage, t, [x, *inside[inside.index(x) + 1 :], o_block, o_lane])
    if t.group is not None:
        _walk_groups(s, [n for n in order if n != parts], parts, t.group)
    if part is not None and t.pack is None:
        if len(order) == 1:  # threads share out tiles of rows
            several, _ = s.split(order[0], TILES)
            s.peel(several)
        walk_parts(s, stage, part)


def _walk_groups(s: Schedule, rows: Sequence[str], parts: str, tiles: int) -> None:
    """Let so many `tiles` along one axis walk the same part of the packed operand before the next
    part is fetched, and all parts before the next such group: both then stay in caches.

    Raises:
        ScheduleError: there are not as many tiles, or other statements between the loops.
    """
    every = {n: [f for f, _, _ in s.find(n)] for n in rows if n in s.loops_named()}
    several = [n for n, found in every.items() if (found[0].extent.constant() or 0) > tiles]
    if parts not in s.loops_named() or not several:
        raise ScheduleError(f"there are no groups of {tiles} tiles")
    far, near = s.split(several[0], tiles)
    s.reorder(far, parts, near)


def _unroll_known(s: Schedule, name: str) -> None:
    """Unroll a loop of a reduction, but for the last steps of one whose extent is a symbolic
    dimension."""
    for loop, _, _ in s.find(name):
        if all(v.extent is not None for v in loop.extent.vars()):
            loop.kind = "unroll"


def _walked_once(store: Store, path: Sequence[For], t: Tile, caches: Caches) -> int | None:
    """Where among the loops over tiles that over the lanes' blocks goes, if all tiles should walk a
    part of the operand laid out in lanes before the next part is fetched, rather than all of it for
    every row of tiles: where it does not stay in the cache, if that moves fewer bytes.

    A copied operand that has a matrix for each of a batch is walked so within a matrix."""
    held = t.pack if t.pack is not None else t.copy
    if held is None:
        return None
    operands = list(loads(store.value))
    if t.pack is not None:
        weight = next(x for x in operands if x.buffer is held)
    else:  # the copy is what the lanes' axis reads
        weight = next(x for x in operands if path[t.lane_axis].var in index_vars_of(x))
    data = next((x for x in operands if x is not weight), weight)
    extents = [f.extent.constant() for f in path]
    rows = [k for k in range(len(store.idx)) if k not in (t.lane_axis, t.block_axis)]
    batch = []
    if t.copy is not None:
        batch = [k for k in rows if path[k].var in index_vars_of(weight)]
        rows = [k for k in rows if k not in batch]
        if batch != [*range(len(batch))]:
            return None
    each = math.prod(extents[k] or 1 for k in batch)
    size, others = weight.buffer.size.constant() or 0, data.buffer.size.constant()
    if size // each * weight.dtype.nbytes <= caches.next:
        return None
    if others is None or any(extents[k] is None for k in rows):
        return len(batch)
    widths = dict(t.widths)
    tiles = math.prod(-(-(extents[k] or 1) // widths.get(k, 1)) for k in rows)
    parts = -(-(extents[t.lane_axis] or 1) // (t.lanes * t.blocks))
    stays = others // each * data.dtype.nbytes <= caches.next
    again = others * data.dtype.nbytes * (1 if stays else parts)
    return len(batch) if size * weight.dtype.nbytes * (tiles - 1) > again else None


def _rows_first(store: Store, path: Sequence[For], t: Tile, caches: Caches) -> bool:
    """Whether a row of windows takes every part of the packed operand before the next row, rather
    than all rows one part before the next: where the data would be fetched from far away for each
    of many parts, and weights, which are fetched for each row, are far fewer. Windows that share
    most of their data with others compute for so long on it that neither matters."""
    rank, skipping = len(store.idx), guards(path)
    extents = [f.extent.constant() for f in path if f not in skipping]
    rows = [k for k in range(t.block_axis + 1, rank) if k != t.lane_axis and extents[k] != 1]
    operands = list(loads(store.value))
    weight = next((x for x in operands if x.buffer is t.pack), None)
    data = next((x for x in operands if x is not weight), None)
    if weight is None or data is None or t.dot is not None or None in extents or len(rows) < 2:
        return False
    size, weights = data.buffer.size.constant(), weight.buffer.size.constant()
    if size is None or weights is None:
        return False
    size //= math.prod(extents[k] or 1 for k in range(t.block_axis))
    shared = math.prod(extents[k] or 1 for k in (*rows, *range(rank, len(extents)))) / size
    parts = -(-(extents[t.block_axis] or 1) // t.blocks)
    far = size * data.dtype.nbytes > FAR * caches.next and FEWER * weights <= size
    return far and shared <= SHARED and parts >= PARTS


def _ahead(t: Tile, path: Sequence[For], rank: int, nbytes: int, caches: Caches) -> int:
    """Bytes by which the packed operand is fetched ahead. Where many tiles walk the same part of
    it, one after another, there is time to fetch all of the next part, if the next cache holds
    it. Vectors that are shorter than a line of the cache take a load for every few products: theirs
    leave no time to fetch what will be used so late. Three vectors for four outputs, or what fills
    sixteen registers, leave no register or no time for fetches at all. But in a window of several
    taps LLVM moves so much across them, if no fetch is between them, that sums leave registers."""
    taps = sum(f.extent != 1 for f in path[rank:]) > 1
    if t.widths and (t.blocks == 3 or (_fills_sixteen(t) and not taps)):
        return 0
    if t.lanes * nbytes < LINE:
        return AHEAD
    extents = [f.extent.range()[1] or 0 for f in path]
    tiles = math.prod(extents[k] for k in range(rank) if k not in (t.lane_axis, t.block_axis))
    part = t.lanes * t.blocks * math.prod(extents[rank:]) * nbytes
    many = tiles >= WALKS * math.prod(width for _, width in t.spatial)
    return part if many and AHEAD < part <= caches.next else AHEAD


def _fills_sixteen(t: Tile) -> bool:
    """Whether a tile of dot products of 32 bytes has 12 sums, which take every register of AVX2
    with what they are multiplied from."""
    short = t.dot is not None and t.lanes == 8
    return short and t.blocks * math.prod(width for _, width in t.spatial) >= 12


def _data(store: Store, path: Sequence[For], t: Tile) -> Load:
    """What is multiplied by the weights."""
    lanes = path[t.lane_axis].var
    return next(
        n
        for n in loads(store.value)
        if n.buffer is not t.pack and not (t.copy is not None and lanes in index_vars_of(n))
    )


def _reads_too_much(store: Store, path: Sequence[For], t: Tile, registers: int) -> bool:
    """Whether the numbers that several taps of a row read would all be kept in registers, and sums
    be stored and loaded again for that. Where registers are few, one vector of sums has room for
    them: there that is quicker still."""
    if not is_product(store) or not store.buffer.dtype.is_float or t.dot is not None:
        return False
    if (
        t.pack is None
        or not t.widths
        or path[t.lane_axis].var in index_vars_of(_data(store, path, t))
    ):
        return False
    outputs, taps = math.prod(w for _, w in t.widths), path[-1].extent.constant() or 1
    beside = outputs // t.widths[-1][1] * (t.widths[-1][1] + taps - 1)
    return t.blocks * outputs + beside > registers > 0 and (t.blocks > 1 or registers >= MANY)


def _few_taps(store: Store, path: Sequence[For], t: Tile) -> bool:
    """Whether neighbouring windows share the data that the taps of a row read."""
    few = (path[-1].extent.constant() or 8) < 8
    return bool(t.widths) and not t.reduce_block and few and not is_product(store)


def _narrow(s: Schedule, stage: str, t: Tile, loops: list[str]) -> None:
    """Store neighbouring vectors together, by the tile's instructions for it; `loops` go from that
    over the neighbours to that over a vector's lanes."""
    x, *between, lane = loops
    fits = [i for i in t.narrow if i.loops["o"] == t.lanes]
    whole = all(f.extent.constant() is not None for f, _, _ in s.find(x))
    if not fits or not whole or any(f.extent != t.lanes for f, _, _ in s.find(lane)):
        return
    several, pixel = s.split(x, max(i.loops["p"] for i in fits))
    s.unroll(several)
    s.peel(several)
    s.reorder(*between, pixel, lane)
    s.tensorize(stage, *fits)


def _skewed(
    s: Schedule, t: Tile, axes: list[str], reduce: list[str]
) -> tuple[list[str], list[str], list[str], list[str]]:
    """The window's last axis as dot products: (reduction loops, tile loops, innermost loop,
    steps)."""
    outputs, stride, filled = t.skew
    ((x_axis, _),) = t.widths
    pair, within = s.split(axes[x_axis], outputs)
    taps = s.skew(reduce[-1], within, stride, filled, reduce[-1] + "t")
    assert t.dot is not None
    several, step = s.split(taps, t.dot.steps)
    tile = [n for k, n in enumerate(axes) if k not in (t.lane_axis, t.block_axis, x_axis)]
    blocks = [] if t.block_axis == t.lane_axis else [axes[t.block_axis]]
    return reduce[:-1], [*tile, pair, several, within, *blocks], [step], []


def _reduction(
    s: Schedule, t: Tile, reduce: list[str], pinned: bool, block: int
) -> tuple[list[str], list[str]]:
    """Split the first reduction axis; returns (its loops, the dot product's innermost loop).
    `pinned`: others stay inside it, so that it is not split for the innermost loop's body. A step
    of several blocks of channels, which are of `block` (0: of none), is walked by these: where in
    one it is, no loop has to compute then."""
    if not reduce:
        return [], []
    steps, size = [reduce[0]], t.reduce_block
    if size:
        steps = list(s.split(reduce[0], size))
    each = t.dot.steps if t.dot is not None else 1
    if not pinned and size > block > each * t.unrolled and size % block == 0:
        steps, size = [steps[0], *s.split(steps[-1], block)], block
    if t.dot is not None:
        outer, inner = s.split(steps[-1], t.dot.steps)
        steps = [*steps[:-1], outer]
        if size > t.dot.steps * t.unrolled:
            steps = [*steps[:-1], *s.split(outer, t.unrolled)]
        return steps, [inner]
    if size > t.unrolled and not pinned:
        return [*steps[:-1], *s.split(steps[-1], t.unrolled)], []
    return steps, []


def reduce_order(reduce: list[str], steps: list[str]) -> list[str]:
    """Blocks of channels, then the taps, then the channels of a block."""
    if len(steps) < 2:
        return [*steps, *reduce[1:]]
    return [steps[0], *reduce[1:], *steps[1:]]
