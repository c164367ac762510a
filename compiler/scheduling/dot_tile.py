"""Dot products of bytes: the instruction that fits, and tiles over the taps of a window."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from compiler.scheduling.tile import (
    Axis,
    Tile,
    best_width,
    is_wide,
    keeps_order,
    many_registers,
    pixel_tile,
    registers,
    tileable_axis,
)
from compiler.symbolic import Index, Var
from compiler.target.intrinsics import for_target
from compiler.target.registry import Target
from compiler.tensor.expr import BinOp, Cast, Expr, IntImm, Load, Select, walk
from compiler.tensor.intrinsic import Intrinsic
from compiler.tensor.stmt import SLACK, For, Store


def along_data(
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
    if not is_wide(last):
        return None
    lanes = min(target.vector_bytes // store.buffer.dtype.nbytes, last.extent or 1)
    if not last.constant:
        return Tile(last.index, lanes, last.index, 1, (), None, 0, None)
    # Channels are innermost: neighbouring pixels share the weights.
    pixels = [a for a in axes if a.other and not a.constant and tileable_axis(path, a.index)]
    # Taps filled up to whole dot products read past the last row, which only our own memory allows
    # or a select.
    dot = dot_product_for(store, target, [], data, weight) if ours else None
    steps = dot.steps if dot is not None else 0
    window = window_of(store, pixels, data, reduction, steps)
    # One sum alone would gather its taps one by one.
    one = dot is not None and dot.loops["o"] == 1
    if dot is None or one or window is None or (last.extent or 0) % dot.loops["o"]:
        # Neighbours that share most of what they read, in as many registers as there are.
        shared = window is not None and window[1:] == (1, 1)
        most = 14 if shared and many_registers(store.buffer.dtype, target) else 8
        spatial, run_time = pixel_tile(pixels, most)
        tile = Tile(last.index, lanes, last.index, 1, spatial, weight.buffer, 0, None)
        return replace(tile, run_time=run_time)
    taps, stride, dilation = window
    # Outputs that read the same pixels share one load and byte transpose.
    outputs = -taps % steps + 1 if stride == dilation == 1 else 1
    filled = -(-(taps + (outputs - 1) * stride) // steps) * steps
    x = pixels[-1]
    # Data that several outputs share leave registers free for more of them.
    most = registers(target) if outputs > 1 else registers(target) // 2
    lanes, skew = dot.loops["o"], (outputs, stride, filled)
    tile = Tile(last.index, lanes, last.index, 1, (), weight.buffer, 0, dot, skew)
    return over_windows(tile, x, most)


def over_windows(tile: Tile, x: Axis, most: int) -> Tile:
    """A tile over the taps of a window, with a width along the windows' axis `x`: one even where
    there is a single window."""
    outputs = tile.skew[0]
    if x.extent is None:
        return replace(tile, run_time=pixel_tile([x], most, outputs)[1])
    width = best_width(-(-x.extent // outputs), max(1, most // outputs)) * outputs
    return replace(tile, spatial=((x.index, width),))


def window_of(
    store: Store, pixels: list[Axis], data: Load, reduction: list[Var], steps: int
) -> tuple[int, int, int] | None:
    """(taps, stride, dilation) of the last reduction axis, if the data is read at
    stride * pixel + dilation * tap there, and taps can be filled up to a multiple of `steps`."""
    if not pixels or not reduction:
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


def _unclamped(i: Index) -> Index:
    """`i` without bounds that keep it inside the data."""
    if len(i.terms) != 1:
        return i
    ((atom, c),) = i.terms.items()
    if isinstance(atom, Var) or atom.op != "min" or abs(c) != 1 or atom.b.terms:
        return i
    return _unclamped(atom.a) * c


def _plain(e: Expr) -> Expr:
    """What is read, without a mask of bits and what padding holds instead."""
    if isinstance(e, BinOp) and e.op == "And" and isinstance(e.b, IntImm):
        e = e.a
    return e.a if isinstance(e, Select) else e


def dot_product_for(
    store: Store, target: Target, reduction: list[Var], data: Load, weight: Load
) -> Intrinsic | None:
    """The target's dot product of such operands whose steps divide the first reduction axis. None
    where more is done to an operand than cast it, such as taking a zero point off it."""
    if keeps_order(store):
        return None
    casts = [n.value for n in walk(store.value) if isinstance(n, Cast)]
    if [_plain(n) for n in casts] != [data, weight]:
        return None
    first = reduction[0].extent if reduction else Index()
    n = first.constant() if first is not None else None
    if n is None:
        return None
    for i in for_target(target):
        alike = i.steps and i.operand_dtypes == [data.dtype, weight.dtype]
        if alike and n % i.steps == 0 and i.computes(store.value):
            return i
    return None
