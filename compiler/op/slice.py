"""Operators that read at computed positions: strided_slice, take, nn.pad."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from compiler.arithmetic.arrays import Arithmetic
from compiler.op.common import axis_of, require, type_of
from compiler.op.concatenate import copy_into
from compiler.op.facts import Moves, onnx_node
from compiler.op.gradients import moves as rules
from compiler.op.gradients import positions
from compiler.op.opdef import Fusion, OpDef, Quantized, register_ops
from compiler.symbolic import Dim, Index, ceil_div, dim, imax, imin
from compiler.tensor.builder import PrimBuilder
from compiler.tensor.expr import Buffer, Gather, const, index_value, maximum, minimum, select
from compiler.types.dtypes import INT64, Array
from compiler.types.tensor_types import TensorType, shape_text


# ---- strided_slice -------------------------------------------------------------------------------
@dataclass(frozen=True)
class StridedSliceAttrs:
    """Attributes of strided_slice, one entry per sliced axis; bounds count and clamp as numpy's do.

    Attributes:
        begin, end: bounds; negative ones count from the end. With a negative stride, an `end`
            before the first element is written -size - 1 or less.
        strides: steps, not zero; empty: all 1.
        axes: the axes that are sliced; empty: the first len(begin).
    """

    begin: tuple[int, ...]
    end: tuple[int, ...]
    strides: tuple[int, ...] = ()
    axes: tuple[int, ...] = ()


def _cuts(a: StridedSliceAttrs, shape: Sequence[Dim]) -> dict[int, tuple[Index, int, Dim]]:
    """Axis -> (first position, step, number of elements)."""
    axes = a.axes or tuple(range(len(a.begin)))
    steps = a.strides or (1,) * len(a.begin)
    require(
        len(a.begin) == len(a.end) == len(steps) == len(axes) and 0 not in steps,
        f"strided_slice: begin {a.begin}, end {a.end}, strides {steps}, axes {axes} do not match",
    )
    out: dict[int, tuple[Index, int, Dim]] = {}
    for begin, end, step, axis in zip(a.begin, a.end, steps, axes, strict=True):
        k = axis_of("strided_slice", axis, len(shape))
        require(k not in out, f"strided_slice: axes {axes} name an axis twice")
        size = Index.of(shape[k])
        lowest, highest = (Index(), size) if step > 0 else (Index.of(-1), size - 1)

        def bound(i: int, size: Index = size, lo: Index = lowest, hi: Index = highest) -> Index:
            return imax(size + i, lo) if i < 0 else imin(i, hi)

        first, last = bound(begin), bound(end)
        span = last - first if step > 0 else first - last
        out[k] = (first, step, ceil_div(imax(span, 0), abs(step)))
    return out


def _infer_slice(a: StridedSliceAttrs, types: Sequence[TensorType]) -> TensorType:
    (x,) = types
    shape = list(x.shape)
    for k, (_, _, count) in _cuts(a, x.shape).items():
        require(count != 0, f"strided_slice: nothing is left of axis {k} of {shape_text(x.shape)}")
        shape[k] = count
    return TensorType(tuple(shape), x.dtype)


def _slice(_: Arithmetic, a: StridedSliceAttrs, x: Array) -> Array:
    idx = [slice(None)] * x.ndim
    axes = a.axes or range(len(a.begin))
    strides = a.strides or (1,) * len(a.begin)
    for begin, end, step, axis in zip(a.begin, a.end, strides, axes, strict=True):
        idx[axis] = slice(begin, end, step)
    return x[tuple(idx)]


def _lower_slice(b: PrimBuilder, a: StridedSliceAttrs, x: Buffer) -> Buffer:
    t = _infer_slice(a, [type_of(x)])
    cuts = _cuts(a, type_of(x).shape)

    def value(*i: Any) -> Any:
        at = list(i)
        for k, (first, step, _) in cuts.items():
            at[k] = first + i[k] * step
        return x[tuple(at)]

    return b.compute("slice", t.shape, x.dtype, value)


# ---- take ----------------------------------------------------------------------------------------
@dataclass(frozen=True)
class TakeAttrs:
    """Attributes of take: the axis of the data that the indices count along."""

    axis: int = 0


def _infer_take(a: TakeAttrs, types: Sequence[TensorType]) -> TensorType:
    x, indices = types
    require(
        indices.dtype.is_integer, f"take: indices must be integers, not {indices.dtype}; cast them"
    )
    axis = axis_of("take", a.axis, x.rank)
    return TensorType((*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]), x.dtype)


def _take(_: Arithmetic, a: TakeAttrs, x: Array, indices: Array) -> Array:
    """Negative indices count from the end; after that, indices outside the axis meet its border."""
    size = x.shape[a.axis]
    at = indices.astype(np.int64)
    return np.take(x, np.clip(np.where(at < 0, at + size, at), 0, size - 1), a.axis)


def _lower_take(b: PrimBuilder, a: TakeAttrs, x: Buffer, indices: Buffer) -> Buffer:
    t = _infer_take(a, [type_of(x), type_of(indices)])
    axis, rank = a.axis % len(x.shape), len(indices.shape)
    size = index_value(x.shape[axis])
    stride = Index(const=1)
    for n in x.shape[axis + 1 :]:
        stride = stride * n

    def value(*i: Any) -> Any:
        at = indices[i[axis : axis + rank]].astype(INT64)
        if indices.dtype.kind == "int":
            at = select(at < 0, at + size, at)
            at = maximum(at, 0)
        at = minimum(at, size - 1)  # a position outside the buffer must never be read
        base = x.flat((*i[:axis], Index(), *i[axis + rank :]))
        return Gather(x, index_value(base) + at * index_value(stride))

    return b.compute("take", t.shape, x.dtype, value)


# ---- pad -----------------------------------------------------------------------------------------
@dataclass(frozen=True)
class PadAttrs:
    """Attributes of nn.pad.

    Attributes:
        pad_width: (before, after) per axis, not negative.
        mode: constant, reflect (without repeating the border) or edge.
        value: what `constant` fills with.
    """

    pad_width: tuple[tuple[int, int], ...]
    mode: str = "constant"
    value: float = 0.0


def _infer_pad(a: PadAttrs, types: Sequence[TensorType]) -> TensorType:
    (x,) = types
    require(
        a.mode in ("constant", "reflect", "edge"),
        f"nn.pad: mode must be constant, reflect or edge, not {a.mode!r}",
    )
    widths = [tuple(w) for w in a.pad_width]
    require(
        len(widths) == x.rank and all(len(w) == 2 and min(w) >= 0 for w in widths),
        f"nn.pad: pad_width {a.pad_width} must hold (before, after) for each axis of {x}",
    )
    for n, w in zip(x.shape, widths, strict=True):
        short = a.mode == "reflect" and isinstance(n, int) and max(w) >= n
        require(not short, f"nn.pad: cannot reflect {max(w)} elements of an axis of length {n}")
    shape = [dim(n + sum(w)) for n, w in zip(x.shape, widths, strict=True)]
    return TensorType(tuple(shape), x.dtype)


def _pad(ar: Arithmetic, a: PadAttrs, x: Array) -> Array:
    if a.mode == "constant":
        return np.pad(x, a.pad_width, constant_values=ar.const(a.value))
    return np.pad(x, a.pad_width, mode="reflect" if a.mode == "reflect" else "edge")


def _lower_pad(b: PrimBuilder, a: PadAttrs, x: Buffer) -> Buffer:
    t = _infer_pad(a, [type_of(x)])
    before = [w[0] for w in a.pad_width]
    if a.mode == "constant":
        out = b.compute("pad", t.shape, x.dtype, lambda *_: const(a.value, x.dtype))
        copy_into(b, out, x, before)
        return out

    def source(i: Index, k: int) -> Index:
        at, last = i - before[k], x.shape[k] - 1
        if a.mode == "edge":
            return imin(imax(at, 0), last)
        away = last - imax(at, -at)  # distance of the reflected position from the last element
        return last - imax(away, -away)

    return b.compute(
        "pad", t.shape, x.dtype, lambda *i: x[tuple(source(j, k) for k, j in enumerate(i))]
    )


STRIDED_SLICE, TAKE, PAD = register_ops(
    OpDef(
        "strided_slice",
        _infer_slice,
        _slice,
        _lower_slice,
        StridedSliceAttrs,
        fusion=Fusion.INJECTIVE,
        quantized=Quantized.SAME,
        moves=Moves.SELECT,
        gradient=rules.strided_slice,
        doc="every stride-th element between bounds, per axis",
    ),
    OpDef(
        "take",
        _infer_take,
        _take,
        _lower_take,
        TakeAttrs,
        (2, 2),
        quantized=Quantized.SAME,
        moves=Moves.SELECT,
        onnx=onnx_node("Gather", "axis"),
        gradient=positions.take,
        doc="elements of the data at integer indices along an axis",
    ),
    OpDef(
        "nn.pad",
        _infer_pad,
        _pad,
        _lower_pad,
        PadAttrs,
        fusion=Fusion.INJECTIVE,
        quantized=Quantized.INTEGER,
        moves=Moves.PAD,
        in_order=True,
        gradient=rules.pad,
        doc="borders of a constant, or reflected or repeated data",
    ),
)
