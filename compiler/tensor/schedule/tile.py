"""Register tiles for reductions with an elementwise consumer: sums of products, and others.

The tile is lanes along the output axis that only the constant operand follows (output channels, or
the channels of a block), times a few vectors along the next such axis, times several neighbouring
outputs that only the other operand follows (pixels). The whole reduction stays in registers, and
the constant operand is packed in traversal order. Bytes are multiplied by the target's dot product
instruction, several reduction steps at a time. Other reductions (pooling, means) only get lanes
along the last output axis, where that is contiguous in the data.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from compiler.symbolic import Index, Quasi, Var
from compiler.target import Target
from compiler.tensor.expr import (
    BinOp,
    Cast,
    Gather,
    IndexValue,
    Load,
    Select,
    index_condition,
    loads,
    walk,
)
from compiler.tensor.intrinsics import for_target
from compiler.tensor.intrinsics.intrinsic import Intrinsic
from compiler.tensor.schedule import Schedule
from compiler.tensor.stmt import SLACK, Buffer, For, Store, stores

_CONTIGUOUS_STEP = 16
"""How a reduction along the data's innermost axis is split first."""
SHARED_COPY = 8
"""Outputs that must share an element of an operand for a copy of it to pay."""
RUN_TIME = 8
"""Neighbouring outputs along an axis of any extent."""
ROWS = 8
"""Reductions that run side by side where neighbours cannot be the lanes of a vector."""
UNROLLED_STEPS = 4
"""Reduction steps in the body of the innermost loop."""
CHAINS = 12
"""Sums side by side where each step of a sum waits for a look-up."""


@dataclass(frozen=True)
class Axis:
    """An output axis: its position, extent (None: symbolic) and which operands follow it."""

    index: int
    extent: int | None
    constant: bool
    other: bool


@dataclass(frozen=True)
class Tile:
    """A register tile of stage `mac`; axes are positions in the output.

    Attributes:
        lane_axis, lanes: the vectorized axis, and elements a vector.
        block_axis, blocks: vectors along another axis of the constant operand (or along the lane
            axis itself).
        spatial: (axis, width) of neighbouring outputs, outermost first.
        pack: the constant operand, if there is one.
        copy: the operand that is copied in blocks of lanes first, if none is constant.
        reduce_block: the reduction's first axis is split by this first (blocked data); 0: not.
        dot: the dot product instruction, if the operands are bytes.
        skew: for a dot product over the taps of a window: (neighbouring outputs that share the
            data they read, stride of the window, taps filled up to whole dot products).
        run_time: (axis, width) of neighbouring outputs along an axis whose extent is known at run
            time only; the last tile overlaps the one before, and extents below the width have a
            nest of their own (see `versions`).
        unrolled: reduction steps in the body of the innermost loop; a dot product is one step.
        narrow: instructions that store several neighbouring vectors as bytes.
    """

    lane_axis: int
    lanes: int
    block_axis: int
    blocks: int
    spatial: tuple[tuple[int, int], ...]
    pack: Buffer | None
    reduce_block: int
    dot: Intrinsic | None
    skew: tuple[int, int, int] = (0, 0, 0)
    unrolled: int = UNROLLED_STEPS
    narrow: tuple[Intrinsic, ...] = ()
    copy: Buffer | None = None
    run_time: tuple[tuple[int, int], ...] = ()


def tileable(s: Schedule, stage: str) -> bool:
    """Whether a stage is a reduction whose form `choose_tile` knows (but perhaps not its shape)."""
    found = s.stage_stores(stage)
    ((store, path, _), *more) = found
    if more or not store.update or store.init is None or not store.idx:
        return False
    own = [next(iter(i.vars()), None) for i in store.idx]
    if any(v is None or i != v for v, i in zip(own, store.idx, strict=True)):
        return False
    return is_product(store) or _last_is_contiguous(store, path) or _rows(store, path) is not None


def is_product(store: Store) -> bool:
    """Whether a reduction adds up products of two elements."""
    v = store.value
    two = len([n for n in walk(v) if isinstance(n, Load)]) == 2
    return store.update in ("Add", "Fma") and isinstance(v, BinOp) and v.op == "Mul" and two


def _last_is_contiguous(store: Store, path: Sequence[For]) -> bool:
    """Whether neighbours along the last output axis read neighbouring data."""
    (v,) = store.idx[-1].vars()
    n = v.extent.constant() if v.extent is not None else None
    reads = [n for n in walk(store.value) if isinstance(n, (Load, Gather, IndexValue))]
    plain = all(isinstance(x, Load) and _stride(x, v) in (0, 1) for x in reads)
    return n is not None and n >= 4 and plain and len(path) > len(store.idx)


def _rows(store: Store, path: Sequence[For]) -> int | None:
    """The last output axis of several elements, of a reduction."""
    if guards(path):
        return None
    extents = [f.extent.constant() or 0 for f in path[: len(store.idx)]]
    several = [k for k, n in enumerate(extents) if n > 1]
    return several[-1] if several and len(path) > len(store.idx) else None


def _side_by_side(store: Store, path: Sequence[For], target: Target) -> tuple[tuple[int, int], ...]:
    """Neighbouring windows along a row, whose sums stay in registers together."""
    x = len(store.idx) - 2
    n = path[x].extent.constant() if x >= 0 else None
    at = path[x].var if x >= 0 else None
    windows = n is not None and all(at in _index_vars(r) for r in _reads(store))
    if n is None or n < 2 or not windows or not tileable_axis(path, x):
        return ()
    return ((x, best_width(n, _registers(target) // 2)),)


def _row_tile(store: Store, path: Sequence[For]) -> Tile | None:
    """Neighbouring reductions side by side, one element at a time: each keeps its order, and none
    waits for its own last addition."""
    axis = _rows(store, path)
    if axis is None:
        return None
    rows = path[axis].extent.constant() or 1
    width = -(-rows // -(-rows // ROWS))
    last = path[-1]
    along = all(_stride(x, last.var) == 1 for x in _reads(store) if last.var in _index_vars(x))
    alone = len(path) == len(store.idx) + 1
    return Tile(axis, 1, axis, width, (), None, _CONTIGUOUS_STEP if along and alone else 0, None)


def _scalar_tile(store: Store, path: Sequence[For], constants: Collection[Buffer]) -> Tile | None:
    """Several reductions side by side, one element at a time, as look-ups go: some along an axis of
    the constant operand, others along one of the data, so that both are used more than once."""
    reads = [n for n in walk(store.value) if isinstance(n, Load)]
    weight = next((x for x in reads if x.buffer in constants), None)
    data = next((x for x in reads if x is not weight), None)
    if data is None or len(path) == len(store.idx):
        return None
    axes = [
        a
        for a in _axes(store, weight or data, data)
        if (a.extent or 1) > 1 and tileable_axis(path, a.index)
    ]
    apart = next((a for a in reversed(axes) if weight and a.constant and not a.other), None)
    moved = next((a for a in reversed(axes) if a.other and a is not apart), None)
    lane = apart or moved
    if lane is None:
        return None
    blocks = best_width(lane.extent or 1, CHAINS)
    pack = weight.buffer if weight else None
    if apart is None or moved is None:
        still = next((k for k in range(len(store.idx)) if k != lane.index), lane.index)
        return Tile(still, 1, still, 1, ((lane.index, blocks),), pack, 0, None)
    widths = ((moved.index, best_width(moved.extent or 1, CHAINS // blocks)),)
    return Tile(lane.index, 1, lane.index, blocks, widths, pack, 0, None, unrolled=1)


def choose_tile(
    s: Schedule, stage: str, target: Target, constants: Collection[Buffer]
) -> Tile | None:
    """The register tile for a stage, or None where it is no sum of products of that form."""
    ((store, path, _),) = s.stage_stores(stage)
    reader = consumer(s, store)
    tile = _tile_for(s, store, path, target, constants) if reader is not None else None
    if reader is None or tile is None:
        return None
    if any(path[tile.lane_axis].var in f.extent.vars() for f in guards(path)):
        return None  # lanes are skipped together or not at all
    return replace(tile, narrow=_narrowing(reader, target))


def _narrowing(reader: Store, target: Target) -> tuple[Intrinsic, ...]:
    """The target's instructions that store what `reader` stores, several vectors at a time."""
    every = (i for i in for_target(target) if list(i.loops) == ["p", "o"])
    return tuple(i for i in every if i.computes(reader.value))


def _tile_for(
    s: Schedule,
    store: Store,
    path: Sequence[For],
    target: Target,
    constants: Collection[Buffer],
) -> Tile | None:
    if store.buffer.dtype.form == "table":
        return _scalar_tile(store, path, constants)
    if not is_product(store):
        if not _last_is_contiguous(store, path):
            return _row_tile(store, path)
        last = len(store.idx) - 1
        n = path[last].extent.constant() or 1
        lanes = min(target.vector_bytes // store.buffer.dtype.nbytes, n)
        return Tile(last, lanes, last, 1, _side_by_side(store, path, target), None, 0, None)
    operands = [n for n in walk(store.value) if isinstance(n, Load)]
    weight = next((x for x in operands if x.buffer in constants), None)
    data = next(x for x in operands if x is not weight)
    axes = _axes(store, weight or operands[1], data)
    if weight is None:
        found = None if guards(path) else _copied(store, operands, target)
        return found or _without_packing(store, axes, operands, target)
    skipping = guards(path)
    reduction = [f.var for f in path[len(store.idx) :] if f not in skipping]
    lane = next((a for a in reversed(axes) if a.constant and not a.other and _wide(a)), None)
    if lane is None:
        ours = data.buffer in s.func.temps or has_select(store)
        return _along_data(store, path, axes, target, data, weight, reduction, ours)
    most = target.vector_bytes // store.buffer.dtype.nbytes
    dot = _dot(store, target, reduction, data, weight)
    over_taps = dot is None and data.buffer in s.func.temps  # it may be read beyond its last row
    dot = _dot(store, target, [], data, weight) if over_taps else dot
    pixels = [a for a in axes if a.other and not a.constant and tileable_axis(path, a.index)]
    window = _window(store, pixels, data, reduction, dot.steps) if over_taps and dot else None
    if over_taps and (window is None or window[2] != 1 or reduction[-1] not in data.idx[-1].vars()):
        dot = window = None
    lanes = dot.loops["o"] if dot else min(most, lane.extent or 1)
    block, blocks = lane.index, 1
    partner = next(
        (a for a in axes if a.index != lane.index and a.constant and not a.other and a.extent), None
    )
    if (lane.extent or 1) >= 2 * lanes:
        blocks = 2
    elif partner is not None and (partner.extent or 1) >= 2:
        block, blocks = partner.index, 2
    if dot is not None and window is not None:
        # Few channels that lie apart: the taps of a row are multiplied together.
        taps, stride, _ = window
        x = pixels[-1]
        width = best_width(x.extent or 1, _registers(target) // blocks)
        skew = (1, stride, -(-taps // dot.steps) * dot.steps)
        tiles = ((x.index, width),)
        return Tile(lane.index, lanes, block, blocks, tiles, weight.buffer, 0, dot, skew)
    spatial = _spatial_tile(pixels, _registers(target) // blocks)
    step = _reduce_block(data, reduction)
    tile = Tile(lane.index, lanes, block, blocks, spatial, weight.buffer, step, dot)
    unknown = [a for a in axes if a.other and not a.constant and a.extent is None]
    if unknown and not spatial and not skipping:
        width = min(RUN_TIME, _registers(target) // blocks)
        tile = replace(tile, run_time=((unknown[-1].index, width),))
    # With a guard the body repeats the taps: that is long enough.
    return replace(tile, unrolled=1) if column_guard(path, tile) else tile


def guards(path: Sequence[For]) -> list[For]:
    """Loops of one or no iteration that skip what the loops around them must not reach."""
    return [f for k, f in enumerate(path) if f.extent.vars() & {g.var for g in path[:k]}]


def tileable_axis(path: Sequence[For], axis: int) -> bool:
    """Whether a tile may be wider than one along an output axis: tiles along x unroll the guards of
    x, but a row's guard is decided at run time for all of its tile."""
    mine = [f for f in guards(path) if path[axis].var in f.extent.vars()]
    return not mine or (mine[-1] is path[-1] and path[axis].extent.constant() is not None)


def has_select(store: Store) -> bool:
    """Whether selects by an index decide what a product reads."""
    found = (n for n in walk(store.value) if isinstance(n, Select))
    return is_product(store) and any(index_condition(n) is not None for n in found)


def column_guard(path: Sequence[For], t: Tile) -> str:
    """Name of the guard that is decided for each of the neighbouring outputs of a tile, if any."""
    x = path[t.spatial[-1][0]].var if t.spatial else None
    return next((f.var.name for f in guards(path) if x in f.extent.vars()), "")


def _registers(target: Target) -> int:
    """Accumulating vectors of a tile."""
    return 28 if target.vector_bytes == 64 else 12


def _axes(store: Store, weight: Load, data: Load) -> list[Axis]:
    out = []
    for k, i in enumerate(store.idx):
        (v,) = i.vars()
        extent = v.extent.constant() if v.extent is not None else None
        out.append(Axis(k, extent, v in _index_vars(weight), v in _index_vars(data)))
    return out


def _wide(a: Axis) -> bool:
    return a.extent is not None and a.extent >= 4


def _along_data(
    store: Store,
    path: Sequence[For],
    axes: list[Axis],
    target: Target,
    data: Load,
    weight: Load,
    reduction: list[Var],
    ours: bool,
) -> Tile | None:
    """Both operands follow the channels (depthwise): lanes along the last axis."""
    last = axes[-1]
    if not _wide(last):
        return None
    lanes = min(target.vector_bytes // store.buffer.dtype.nbytes, last.extent or 1)
    if not last.constant:
        return Tile(last.index, lanes, last.index, 1, (), None, 0, None)
    # Channels are innermost: neighbouring pixels share the weights.
    pixels = [a for a in axes if a.other and not a.constant and tileable_axis(path, a.index)]
    # Taps filled up to whole dot products read past the last row, which only our own memory allows
    # or a select.
    dot = _dot(store, target, [], data, weight) if ours else None
    steps = dot.steps if dot is not None else 0
    window = _window(store, pixels, data, reduction, steps)
    if dot is None or window is None or (last.extent or 0) % dot.loops["o"]:
        return Tile(
            last.index, lanes, last.index, 1, _spatial_tile(pixels, 8), weight.buffer, 0, None
        )
    taps, stride, dilation = window
    # Outputs that read the same pixels share one load and byte transpose.
    outputs = -taps % steps + 1 if stride == dilation == 1 else 1
    filled = -(-(taps + (outputs - 1) * stride) // steps) * steps
    x = pixels[-1]
    # Data that several outputs share leave registers free for more of them.
    most = _registers(target) if outputs > 1 else _registers(target) // 2
    width = best_width(-(-(x.extent or 1) // outputs), max(1, most // outputs)) * outputs
    tile = ((x.index, width),)
    lanes, skew = dot.loops["o"], (outputs, stride, filled)
    return Tile(last.index, lanes, last.index, 1, tile, weight.buffer, 0, dot, skew)


def _window(
    store: Store, pixels: list[Axis], data: Load, reduction: list[Var], steps: int
) -> tuple[int, int, int] | None:
    """(taps, stride, dilation) of the last reduction axis, if the data is read at
    stride * pixel + dilation * tap there, and taps can be filled up to a multiple of `steps`."""
    if not pixels or pixels[-1].extent is None or not reduction:
        return None
    (x,), tap = store.idx[pixels[-1].index].vars(), reduction[-1]
    taps = tap.extent.constant() if tap.extent is not None else None
    at = next((i for i in data.idx if tap in i.vars()), None)
    if at is None or taps is None or taps < 2 or at.vars() != {x, tap}:
        return None
    at = _unclamped(at)
    stride, dilation = at.terms.get(x), at.terms.get(tap)
    reach = (steps - 1) * (dilation or 0) * (store.buffer.shape[-1].range()[1] or 0)
    if not stride or not dilation or len(at.terms) != 2 or reach > SLACK:
        return None
    return taps, stride, dilation


def _copied(store: Store, operands: list[Load], target: Target) -> Tile | None:
    """No operand is constant: one of them is copied in blocks, if enough outputs share a copy."""
    most = target.vector_bytes // store.buffer.dtype.nbytes
    for weight, data in (operands, operands[::-1]):
        axes = _axes(store, weight, data)
        lane = axes[-1]
        rows = [a for a in axes if a.other and not a.constant and a.extent]
        shared = math.prod(a.extent or 1 for a in rows)
        if not _wide(lane) or lane.other or not lane.constant or shared < SHARED_COPY:
            continue
        blocks = min(4, -(-(lane.extent or 1) // most))
        spatial = _spatial_tile(rows, _registers(target) // blocks)
        step = _CONTIGUOUS_STEP
        return Tile(
            lane.index, most, lane.index, blocks, spatial, None, step, None, copy=weight.buffer
        )
    return None


def _unclamped(i: Index) -> Index:
    """`i` without bounds that keep it inside the data."""
    if len(i.terms) != 1:
        return i
    ((atom, c),) = i.terms.items()
    if isinstance(atom, Var) or atom.op != "min" or abs(c) != 1 or atom.b.terms:
        return i
    return _unclamped(atom.a) * c


def _without_packing(
    store: Store, axes: list[Axis], operands: list[Load], target: Target
) -> Tile | None:
    """No operand is constant or worth a copy: lanes along an axis that one of them follows
    contiguously."""
    for k, i in reversed(list(enumerate(store.idx))):
        (v,) = i.vars()
        mine = [x for x in operands if v in _index_vars(x)]
        if _wide(axes[k]) and len(mine) == 1 and _stride(mine[0], v) == 1:
            lanes = min(target.vector_bytes // store.buffer.dtype.nbytes, axes[k].extent or 1)
            return Tile(k, lanes, k, 1, (), None, 0, None)
    return None


def _spatial_tile(axes: list[Axis], most: int) -> tuple[tuple[int, int], ...]:
    """Widths along the last one or two axes, together at most `most`."""
    known = [a for a in axes if a.extent is not None and a.extent > 1]
    if not known:
        return ()
    x = known[-1]
    width = best_width(x.extent or 1, most)
    if len(known) > 1 and width == x.extent and 2 * width <= most:
        y = known[-2]
        return ((y.index, best_width(y.extent or 1, most // width)), (x.index, width))
    return ((x.index, width),)


def best_width(extent: int, most: int) -> int:
    """The tile width <= `most` that wastes least of `extent`; the widest among equals."""
    return max(range(1, min(extent, most) + 1), key=lambda w: (extent / (-(-extent // w) * w), w))


def _reduce_block(data: Load, reduction: list[Var]) -> int:
    """x where the first reduction axis reads the data as [c // x, ..., c % x]; else 0."""
    if not reduction:
        return 0
    first = reduction[0]
    inner = data.idx[-1]
    for a in inner.terms:
        if not isinstance(a, Var) and a.op == "%" and a.a == first:
            n = first.extent.constant() if first.extent is not None else None
            return (
                a.b.const if n is not None and n <= a.b.const else max(a.b.const, _CONTIGUOUS_STEP)
            )
    return _CONTIGUOUS_STEP if inner == first else 0


def _dot(
    store: Store, target: Target, reduction: list[Var], data: Load, weight: Load
) -> Intrinsic | None:
    """The target's dot product of such operands whose steps divide the first reduction axis."""
    casts = [n.value for n in walk(store.value) if isinstance(n, Cast)]
    if [n.a if isinstance(n, Select) else n for n in casts] != [data, weight]:
        return None
    first = reduction[0].extent if reduction else Index()
    n = first.constant() if first is not None else None
    if n is None:
        return None
    for i in for_target(target):
        alike = i.steps and i.operand_dtypes == [data.dtype, weight.dtype]
        if alike and n % i.steps == 0 and i.pattern.value.dtype == store.buffer.dtype:
            return i
    return None


def consumer(s: Schedule, store: Store) -> Store | None:
    """The one elementwise stage that reads the store's buffer, over the same axes; else None."""
    buffer = store.buffer
    readers = [x for x in stores(s.func.body) if any(n.buffer is buffer for n in _reads(x))]
    readers = [x for x in readers if x is not store]
    if len(readers) != 1 or readers[0].update or buffer not in s.func.temps:
        return None
    (reader,) = readers
    positions = {n.idx for n in loads(reader.value) if n.buffer is buffer}
    if len(positions) != 1 or len(reader.idx) != len(store.idx):
        return None
    ((_, path, _),) = s.stage_stores(reader.stage)
    (position,) = positions
    variables = [f.var for f in path]
    if list(position) != variables:
        return None
    return reader if list(reader.idx) == variables or is_widened(reader) else None


def is_widened(reader: Store) -> bool:
    """Whether `widen` made the stage: several blocks lie side by side in its last loop."""
    last = reader.idx[-1]
    return any(isinstance(a, Quasi) and a.op == "%" for a in last.terms)


def widen_blocks(s: Schedule, stage: str, target: Target, constants: Collection[Buffer]) -> None:
    """Small blocks of channels, side by side, fill a vector."""
    ((store, path, _),) = s.stage_stores(stage)
    reader = consumer(s, store)
    operands = [n for n in walk(store.value) if isinstance(n, Load)]
    lanes = target.vector_bytes // 4
    if reader is None or not is_product(store) or len(store.idx) != 5:
        return
    blocks, size = (path[k].extent.constant() for k in (1, 4))
    if size not in (2, 4, 8) or size >= lanes or not blocks or blocks % (lanes // size):
        return
    if not any(x.buffer in constants for x in operands):
        return
    c = path[1].var
    uses = [a for x in operands for i in x.idx for a in i.terms if not isinstance(a, Var)]
    if any(c in a.leaves() for a in uses):
        return  # a group of channels may end within a vector
    s.widen(stage, reader.stage, 1, lanes // size)


def _reads(s: Store) -> list[Load]:
    exprs = [s.value] + ([s.init] if s.init is not None else [])
    return [n for e in exprs for n in walk(e) if isinstance(n, Load)]


def _index_vars(x: Load) -> set[Var]:
    return set().union(*(i.vars() for i in x.idx))


def _stride(x: Load, v: Var) -> int | None:
    flat = x.buffer.flat(x.idx)
    if any(v in a.leaves() for a in flat.terms if not isinstance(a, Var)):
        return None
    return flat.terms.get(v, 0)
