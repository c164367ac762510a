"""Register tiles where no operand is packed in vectors: reductions that are no products, look-ups
one at a time, and products of two computed operands."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import replace

from compiler.scheduling.dot_tile import dot_product_for
from compiler.scheduling.tile import (
    CONTIGUOUS_STEP,
    Axis,
    Tile,
    axes_of,
    best_width,
    column_guard,
    few_registers,
    four_pixels,
    guards,
    index_vars_of,
    is_wide,
    reads_of,
    registers,
    spatial_tile,
    step_of_channels,
    stride_of,
    threes,
    tileable_axis,
)
from compiler.scheduling.turned_sums import row_axis, side_of_square
from compiler.symbolic import Var
from compiler.target.registry import Target
from compiler.tensor.expr import Buffer, Gather, IndexValue, Load, walk
from compiler.tensor.stmt import For, Store
from compiler.types.dtypes import FLOAT32, FLOAT64

SHARED_COPY = 8
"""Outputs that must share an element of an operand for a copy of it to pay."""
APART = 4
"""Elements by which the data of neighbours may lie apart that are the lanes of a vector."""
ROWS = 8
"""Reductions that run side by side where neighbours cannot be the lanes of a vector."""
FEW_SUMS = 4
"""Sums side by side that do not wait for each other's additions."""
SHORT_ROW = 7
"""Windows side by side of sixteen short vectors: rows are often of 7, 14, 28 and 56."""
BYTES = 14
"""Sums of bytes, of which vectors are part full, that are side by side there."""
SUMS = 32
"""Sums side by side of numbers of formats, in lanes."""
CHAINS = 12
"""Sums side by side where each step of a sum waits for a look-up."""


def last_is_contiguous(store: Store, path: Sequence[For], most: int = 1) -> bool:
    """Whether neighbours along the last output axis read neighbouring data, or data at most so many
    elements apart."""
    (v,) = store.idx[-1].vars()
    n = v.extent.constant() if v.extent is not None else None
    nodes = walk(store.value)
    reads = [
        n
        for n in nodes
        if isinstance(n, Load | Gather) or (isinstance(n, IndexValue) and v in n.index.vars())
    ]
    steps = [stride_of(x, v) if isinstance(x, Load) else None for x in reads]
    plain = all(k is not None and 0 <= k <= most for k in steps)
    return n is not None and n >= 4 and plain and len(path) > len(store.idx)


def side_by_side(store: Store, path: Sequence[For], target: Target) -> tuple[tuple[int, int], ...]:
    """Sums that stay in registers together: of neighbouring windows along a row, and, where these
    are few, of neighbours along another axis (blocks of channels, say): one alone waits for its own
    last addition."""
    short = target.short_vectors
    reads = reads_of(store)

    def width(axis: int, most: int) -> int:
        at, n = path[axis].var, path[axis].extent.constant() or 1
        apart = all(at in index_vars_of(r) for r in reads) and tileable_axis(path, axis)
        return best_width(n, most) if apart and n > 1 and most > 1 else 1

    row = len(store.idx) - 2
    if row < 0:
        return ()
    windows = width(row, SHORT_ROW if short else registers(target) // 2)
    found = ((row, windows),) if windows > 1 else ()
    if registers(target) < 2 * FEW_SUMS:
        return found
    sums = BYTES if short and all(r.dtype.nbytes == 1 for r in reads) else FEW_SUMS
    for axis in reversed(range(row)):
        if (blocks := width(axis, min(sums // windows, 2 * FEW_SUMS))) > 1:
            return ((axis, blocks), *found)
    return found


def row_tile(store: Store, path: Sequence[For], target: Target) -> Tile | None:
    """Neighbouring reductions side by side, one element at a time: each keeps its order, and none
    waits for its own last addition; or, where there are registers for it, in lanes, by squares that
    are turned. Numbers of formats, of which an addition takes many
    instructions, go in lanes, although their elements are then gathered one by one."""
    axis = row_axis(store, path)
    if axis is None:
        return None
    last = path[-1]
    along = all(
        stride_of(x, last.var) == 1 for x in reads_of(store) if last.var in index_vars_of(x)
    )
    alone = len(path) == len(store.idx) + 1
    step = CONTIGUOUS_STEP if along and alone else 0
    rows = path[axis].extent.constant()
    if rows is None:
        return Tile(axis, 1, axis, ROWS, (), None, step, None, run_time=((axis, ROWS),))
    if side := side_of_square(store, path, axis, target):
        return Tile(axis, side, axis, 1, (), None, side, None, unrolled=side, turned=True)
    lanes = target.vector_bytes // store.buffer.dtype.nbytes
    if store.buffer.dtype.is_custom and lanes > 1 and rows >= lanes:
        return Tile(
            axis, lanes, axis, min(max(1, SUMS // lanes), rows // lanes), (), None, step, None
        )
    return Tile(axis, 1, axis, -(-rows // -(-rows // ROWS)), (), None, step, None)


def scalar_tile(store: Store, path: Sequence[For], constants: Collection[Buffer]) -> Tile | None:
    """Several reductions side by side, one element at a time, as look-ups go: some along an axis of
    the constant operand, others along one of the data, so that both are used more than once."""
    reads = [n for n in walk(store.value) if isinstance(n, Load)]
    weight = next((x for x in reads if x.buffer in constants), None)
    data = next((x for x in reads if x is not weight), None)
    if data is None or len(path) == len(store.idx):
        return None
    axes = [
        a
        for a in axes_of(store, weight or data, data)
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
        still = next((k for k in range(len(store.idx)) if k != lane.index), None)
        if still is None:
            return Tile(lane.index, 1, lane.index, blocks, (), pack, 0, None)
        return Tile(still, 1, still, 1, ((lane.index, blocks),), pack, 0, None)
    widths = ((moved.index, best_width(moved.extent or 1, CHAINS // blocks)),)
    return Tile(lane.index, 1, lane.index, blocks, widths, pack, 0, None, unrolled=1)


def copied(store: Store, path: Sequence[For], operands: list[Load], target: Target) -> Tile | None:
    """No operand is constant: one of them is copied in blocks, if enough outputs share a copy.

    Where padding is skipped, sums are of floats that go by channels and taps as `step_of_channels`
    says, and lanes skip together."""
    most = target.vector_bytes // store.buffer.dtype.nbytes
    skipping = guards(path)
    skipped = {v for f in skipping for v in f.extent.vars()}
    if skipping and store.buffer.dtype not in (FLOAT32, FLOAT64):
        return None
    for weight, data in (operands, operands[::-1]):
        axes = axes_of(store, weight, data)
        lane = axes[-1]
        rows = [a for a in axes if a.other and not a.constant and a.extent]
        shared = math.prod(a.extent or 1 for a in rows)
        if not is_wide(lane) or lane.other or not lane.constant or shared < SHARED_COPY:
            continue
        if path[lane.index].var in skipped:
            continue
        rows = [a for a in rows if tileable_axis(path, a.index)]
        reduction = [f.var for f in path[len(store.idx) :] if f not in skipping]
        dot = None if skipping else dot_product_for(store, target, reduction, data, weight)
        most = dot.loops["o"] if dot is not None else most
        vectors = -(-(lane.extent or 1) // most)
        block, blocks = lane.index, min(4, registers(target), vectors)
        partner = next(
            (a for a in axes[:-1] if a.constant and not a.other and (a.extent or 1) >= 2), None
        )
        if blocks == 1 and partner is not None and registers(target) >= 4:
            block, blocks = partner.index, 2
        spatial = spatial_tile(rows, registers(target) // blocks)
        few = few_registers(store.buffer.dtype, target) and block == lane.index
        if few and threes(vectors, bool(skipping)) and (four := four_pixels(rows)):
            blocks, spatial = 3, four
        step = step_of_channels(data, reduction) if skipping else CONTIGUOUS_STEP
        tile = Tile(lane.index, most, block, blocks, spatial, None, step, dot, copy=weight.buffer)
        return replace(tile, unrolled=1) if column_guard(path, tile) else tile
    return None


def without_packing(
    store: Store, path: Sequence[For], axes: list[Axis], operands: list[Load], target: Target
) -> Tile | None:
    """No operand is constant or worth a copy: lanes along an axis that one of them follows
    contiguously, and that does not say what padding is skipped: lanes are skipped together."""
    skipped = {v for f in guards(path) for v in f.extent.vars()}
    for k, i in reversed(list(enumerate(store.idx))):
        (v,) = i.vars()
        if v in skipped:
            continue
        mine = [x for x in operands if v in index_vars_of(x)]
        alone = len(mine) == 1 and stride_of(mine[0], v) == 1
        most = target.vector_bytes // store.buffer.dtype.nbytes
        if alone and axes[k].extent is None and not guards(path):
            return Tile(k, most, k, 1, (), None, 0, None, run_time=((k, most),))
        if alone and is_wide(axes[k]):
            lanes = min(most, axes[k].extent or 1)
            return Tile(k, lanes, k, 1, (), None, 0, None)
    return _skipping(store, path, axes, skipped, target)


def _skipping(
    store: Store, path: Sequence[For], axes: list[Axis], skipped: set[Var], target: Target
) -> Tile | None:
    """Padding is skipped, which lanes do together: channels, whose weights lie apart, but are read
    once for several positions."""
    channels = (a for a in reversed(axes) if not a.other and is_wide(a))
    lane = next((a for a in channels if path[a.index].var not in skipped), None)
    if not skipped or lane is None or lane.extent is None:
        return None
    lanes = min(target.vector_bytes // store.buffer.dtype.nbytes, lane.extent)
    pixels = [a for a in axes if a.other and not a.constant and a.extent]
    pixels = [a for a in pixels if tileable_axis(path, a.index)]
    spatial = spatial_tile(pixels, registers(target))
    return Tile(lane.index, lanes, lane.index, 1, spatial, None, 0, None)
