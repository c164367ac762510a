"""Register tiles for reductions with an elementwise consumer: sums of products, and others.

The tile is lanes along the output axis that only the constant operand follows (output channels, or
the channels of a block), times a few vectors along the next such axis, times several neighbouring
outputs that only the other operand follows (pixels). The whole reduction stays in registers, and
the constant operand is packed in traversal order. Bytes are multiplied by the target's dot product
instruction, several reduction steps at a time. Other reductions (pooling, means) get lanes along
the last output axis, where that is contiguous in the data, and windows side by side.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import replace

from compiler.scheduling import Schedule
from compiler.scheduling.dot_tile import along_data, dot_product_for, over_windows, window_of
from compiler.scheduling.matrix_products import extent_of
from compiler.scheduling.tile import (
    Axis,
    Tile,
    axes_of,
    channel_block,
    column_guard,
    few_registers,
    four_pixels,
    guards,
    has_select,
    is_product,
    is_wide,
    many_registers,
    pixel_tile,
    reads_of,
    registers,
    spatial_tile,
    step_of_channels,
    threes,
    tileable_axis,
)
from compiler.scheduling.turned_sums import row_axis, side_of_square
from compiler.scheduling.unpacked_tiles import (
    APART,
    copied,
    last_is_contiguous,
    row_tile,
    scalar_tile,
    side_by_side,
    without_packing,
)
from compiler.symbolic import Quasi, Var
from compiler.target.intrinsics import for_target
from compiler.target.registry import Target
from compiler.tensor.expr import Buffer, Load, loads, walk
from compiler.tensor.intrinsic import Intrinsic
from compiler.tensor.stmt import For, Store, stores
from compiler.types.dtypes import DType


def tileable(s: Schedule, stage: str) -> bool:
    """Whether a stage is a reduction whose form `choose_tile` knows (but perhaps not its shape)."""
    found = s.stage_stores(stage)
    ((store, path, _), *more) = found
    if more or not store.update or store.init is None or not store.idx:
        return False
    own = [next(iter(i.vars()), None) for i in store.idx]
    if any(v is None or i != v for v, i in zip(own, store.idx, strict=True)):
        return False
    return is_product(store) or last_is_contiguous(store, path) or row_axis(store, path) is not None


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


Widths = tuple[tuple[int, int], ...]
SHORT = 64
"""Terms of a sum up to which a tile has four vectors of a line of the cache by six outputs, not two
by fourteen: what is loaded for each step is less (eleven loads for 24 products, sixteen for 28)."""
ALONE = 4
"""Steps in the body of a window whose tile has one vector, where that fills a line of the cache.
With one step it is slower (1.1 to 1.7 times, as measured)."""


def _accumulators(
    blocks: int,
    vectors: int,
    taps: bool,
    terms: int,
    pixels: list[Axis],
    dtype: DType,
    target: Target,
) -> tuple[int, Widths, Widths]:
    """A tile's sums: vectors, by neighbouring outputs along axes of known extents, or along one of
    an extent that is known at run time.

    Args:
        blocks: one or two vectors, of so many `vectors` that there are.
        taps: whether each is a sum over several taps of a window.
        terms: what each adds up; 0: that is not known.
        pixels: the axes of neighbouring outputs.
        dtype, target: of the sums.
    """
    spatial, run_time = pixel_tile(pixels, registers(target) // blocks)
    wide = many_registers(dtype, target) and blocks == 2 and vectors >= 4
    if wide and spatial and not taps and 0 < terms <= SHORT:
        six = spatial_tile(pixels, 6)
        if math.prod(width for _, width in six) == 6:
            return 4, six, ()
    if blocks < 2 or run_time or not few_registers(dtype, target):
        return blocks, spatial, run_time
    if not spatial:
        return (4 if vectors >= 4 else blocks), (), ()  # two alone wait for each other
    four = four_pixels(pixels) if threes(vectors, taps) else ()
    return (3, four, ()) if four else (blocks, spatial, ())


def _tile_for(
    s: Schedule,
    store: Store,
    path: Sequence[For],
    target: Target,
    constants: Collection[Buffer],
) -> Tile | None:
    if store.buffer.dtype.form == "table":
        return scalar_tile(store, path, constants)
    rows = row_axis(store, path)
    turned = rows is not None and side_of_square(store, path, rows, target)
    if not is_product(store) or turned:
        if turned or not last_is_contiguous(store, path, 1 if target.scalar else APART):
            return row_tile(store, path, target)
        last = len(store.idx) - 1
        n = path[last].extent.constant() or 1
        lanes = min(target.vector_bytes // store.buffer.dtype.nbytes, n)
        return Tile(last, lanes, last, 1, side_by_side(store, path, target), None, 0, None)
    operands = [n for n in walk(store.value) if isinstance(n, Load)]
    weight = next((x for x in operands if x.buffer in constants), None)
    data = next(x for x in operands if x is not weight)
    axes = axes_of(store, weight or operands[1], data)
    if weight is None:
        found = copied(store, path, operands, target)
        return found or without_packing(store, path, axes, operands, target)
    skipping = guards(path)
    reduction = [f.var for f in path[len(store.idx) :] if f not in skipping]
    lane = next((a for a in reversed(axes) if a.constant and not a.other and is_wide(a)), None)
    if lane is None:
        ours = data.buffer in s.func.temps or has_select(store)
        return along_data(store, path, axes, target, data, weight, reduction, ours)
    most = target.vector_bytes // store.buffer.dtype.nbytes
    dot = dot_product_for(store, target, reduction, data, weight)
    over_taps = dot is None and data.buffer in s.func.temps  # it may be read beyond its last row
    dot = dot_product_for(store, target, [], data, weight) if over_taps else dot
    pixels = [a for a in axes if a.other and not a.constant and tileable_axis(path, a.index)]
    window = window_of(store, pixels, data, reduction, dot.steps) if over_taps and dot else None
    if over_taps and (window is None or window[2] != 1 or reduction[-1] not in data.idx[-1].vars()):
        dot = window = None
    lanes = dot.loops["o"] if dot else min(most, lane.extent or 1)
    block, blocks = lane.index, 1
    partner = next(
        (a for a in axes if a.index != lane.index and a.constant and not a.other and a.extent), None
    )
    several = registers(target) >= 4  # fewer are better spent on neighbouring outputs
    vectors = (lane.extent or 1) // lanes
    if several and vectors >= 2:
        blocks = 2
    elif several and partner is not None and (partner.extent or 1) >= 2:
        block, blocks, vectors = partner.index, 2, partner.extent or 1
    if dot is not None and window is not None:
        # Few channels that lie apart: the taps of a row are multiplied together.
        taps, stride, _ = window
        x = pixels[-1]
        skew = (1, stride, -(-taps // dot.steps) * dot.steps)
        tile = Tile(lane.index, lanes, block, blocks, (), weight.buffer, 0, dot, skew)
        return over_windows(tile, x, registers(target) // blocks)
    dtype, taps = store.buffer.dtype, sum(v.extent != 1 for v in reduction) > 1
    terms = math.prod(map(extent_of, reduction))
    blocks, spatial, run_time = _accumulators(blocks, vectors, taps, terms, pixels, dtype, target)
    step = step_of_channels(data, reduction)
    tile = Tile(lane.index, lanes, block, blocks, spatial, weight.buffer, step, dot)
    parts = taps and dot is None and few_registers(dtype, target)
    tile = replace(tile, run_time=() if skipping else run_time, in_parts=parts)
    # A step of several blocks of channels is walked by blocks: places in them are constants then.
    channels = channel_block(data, reduction)
    a_block = channels // (dot.steps if dot else 1)
    by_blocks = a_block if channels and step > channels and step % channels == 0 else 0
    if not column_guard(path, tile):
        if not target.architecture.unrolled:
            if by_blocks and store.buffer.dtype.is_custom:
                return replace(tile, unrolled=1)  # many instructions a product: several spill
            return replace(tile, unrolled=max(tile.unrolled, by_blocks))
        # Of a block of channels places are constants; what has none needs no loop of few steps.
        unrolled = max(target.architecture.unrolled, a_block)
        return replace(tile, unrolled=unrolled, reduce_block=tile.reduce_block if channels else 0)
    # With a guard the body repeats the taps: that is long enough, but for dot products of few
    # accumulators or several blocks of channels, and for short vectors, which are many loads.
    if dot is None:
        if blocks == 1 and many_registers(dtype, target) and step and step % ALONE == 0:
            return replace(tile, unrolled=ALONE)
        if not by_blocks or target.architecture.unrolled:
            return replace(tile, unrolled=1)
        return replace(tile, unrolled=by_blocks if few_registers(dtype, target) else 2)
    if registers(target) < 8:
        return replace(tile, unrolled=max(1, step // dot.steps))  # a loop's end costs as much
    few = blocks * math.prod(w for _, w in spatial) <= registers(target) // 2
    return replace(tile, unrolled=max(2 if few else 1, by_blocks))


def consumer(s: Schedule, store: Store) -> Store | None:
    """The one elementwise stage that reads the store's buffer, over the same axes; else None."""
    buffer = store.buffer
    readers = [x for x in stores(s.func.body) if any(n.buffer is buffer for n in reads_of(x))]
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
