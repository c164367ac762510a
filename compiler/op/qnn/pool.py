"""Integer averages: qnn.mean over axes and qnn.avg_pool2d under a sliding window.

Both sum x - input_zero_point exactly, in int32 (of int16 in int64), then scale the sum as
qnn.requantize does: by ratio / count, one quotient in float32 (in float64, unless `rounding` is
"float32"), which sums of equally many elements share. `ratio` is the input's scale over the
output's. Padding contributes nothing to the sum. No shift divides by a count: "shift" scales as
"fixed_upward" does.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from compiler.arithmetic.arrays import Arithmetic
from compiler.op.common import axes_of, index_expr, require, require_rank, type_of
from compiler.op.facts import Average, Zeros
from compiler.op.gradient import INTEGERS
from compiler.op.nn.pool import AvgPool2dAttrs, outputs
from compiler.op.opdef import Fusion, OpDef, register_op
from compiler.op.qnn.quantize import centred, clipped, integer_dtype, require_integer
from compiler.op.qnn.requantize import ROUNDINGS, multiplier_bits, rescaled, scaled
from compiler.op.reduce import over_axes
from compiler.op.stored import Stored, zero_points
from compiler.op.sum_bounds import (
    Known,
    SumBounds,
    counted,
    of_terms,
    taps_of_both,
    taps_seen,
)
from compiler.op.window import LOOPS, Skip, Window, source, windows
from compiler.symbolic import IntLike, product
from compiler.tensor.builder import PrimBuilder
from compiler.tensor.expr import Buffer, Expr, cast, const
from compiler.types.dtypes import FLOAT32, FLOAT64, INT16, INT32, INT64, Array, DType
from compiler.types.tensor_types import TensorType


@dataclass(frozen=True)
class QuantizedMeanAttrs:
    """Attributes of qnn.mean: axes (empty: all), `keepdims`, and how the sum is scaled."""

    axis: tuple[int, ...] = ()
    keepdims: bool = False
    ratio: float = 1.0
    input_zero_point: int = 0
    output_zero_point: int = 0
    out_dtype: str = "uint8"
    qmin: int = 0
    qmax: int = 255
    rounding: str = "float32"


@dataclass(frozen=True)
class QuantizedAvgPool2dAttrs(AvgPool2dAttrs):
    """Attributes of qnn.avg_pool2d: those of the window, and how the sum is scaled."""

    ratio: float = 1.0
    input_zero_point: int = 0
    output_zero_point: int = 0
    out_dtype: str = "uint8"
    qmin: int = 0
    qmax: int = 255
    rounding: str = "float32"


def _arithmetic(attrs: Any) -> tuple[str, DType]:
    """The rounding, and the dtype of the quotient."""
    rounding = "fixed_upward" if attrs.rounding == "shift" else str(attrs.rounding)
    return rounding, FLOAT32 if rounding == "float32" else FLOAT64


def _scaled(attrs: Any, total: Expr, count: IntLike) -> Expr:
    rounding, held = _arithmetic(attrs)
    return scaled(attrs, rounding, total, const(attrs.ratio, held) / index_expr(count, held))


def _averaged(attrs: Any, total: Array, count: Any) -> Array:
    rounding, held = _arithmetic(attrs)
    scale = held.storage.type(attrs.ratio) / np.asarray(count, held.storage)
    return clipped(rescaled(total, scale, rounding), attrs)


def _check(op: str, a: Any, x: TensorType, count: IntLike) -> None:
    """Check the operand of an average of `count` elements, and its rounding.

    Raises:
        TypeInferenceError: it is none of integers, or sums need more than fixed point has.
    """
    require_integer(op, "the operand", x)
    require(
        a.rounding in ROUNDINGS, f"{op}: rounding must be one of {ROUNDINGS}, not {a.rounding!r}"
    )
    small = x.dtype != INT16 or (isinstance(count, int) and count < 1 << 15)
    require(
        small or a.rounding.startswith("float"),
        f"{op}: rounding {a.rounding!r} is for averages of less than 32768 elements of 16 bits; "
        "use float32 or float64",
    )


def _stored(a: Any, types: Sequence[TensorType]) -> Stored:
    zeros = zero_points(
        (a.input_zero_point, types[0].dtype), (a.output_zero_point, DType.parse(a.out_dtype))
    )
    return Stored(zeros + multiplier_bits(_arithmetic(a)[0]))


# ---- mean ----------------------------------------------------------------------------------------
def _axes(a: QuantizedMeanAttrs, rank: int) -> tuple[int, ...]:
    return axes_of("qnn.mean", a.axis, rank) if a.axis else tuple(range(rank))


def _mean_type(a: QuantizedMeanAttrs, types: Sequence[TensorType]) -> TensorType:
    (x,) = types
    axes = _axes(a, x.rank)
    _check("qnn.mean", a, x, product(x.shape[k] for k in axes))
    kept = [1 if k in axes else n for k, n in enumerate(x.shape) if a.keepdims or k not in axes]
    return TensorType(tuple(kept), integer_dtype("qnn.mean", a))


def _mean(ar: Arithmetic, a: QuantizedMeanAttrs, x: Array) -> Array:
    axes = _axes(a, x.ndim)
    total = (x.astype(np.int64) - a.input_zero_point).sum(axes, keepdims=a.keepdims)
    return _averaged(a, total, np.prod([x.shape[k] for k in axes]))


def _lower_mean(b: PrimBuilder, a: QuantizedMeanAttrs, x: Buffer) -> Buffer:
    t = _mean_type(a, [type_of(x)])
    axes = _axes(a, len(x.shape))

    def element(*v: IntLike) -> Expr:
        kept, reduced = iter(v[: t.rank]), iter(v[t.rank :])
        idx = []
        for k in range(len(x.shape)):
            if k in axes and a.keepdims:
                next(kept)
            idx.append(next(reduced if k in axes else kept))
        return centred(x[tuple(idx)], a.input_zero_point)

    extents = {f"r{k}": x.shape[k] for k in axes}
    held = INT64 if x.dtype == INT16 else INT32
    total = b.reduce(
        "total", t.shape, held, extents, lambda *v: cast(element(*v), held), const(0, held)
    )
    count = product(type_of(x).shape[k] for k in axes)
    return b.compute("mean", t.shape, t.dtype, lambda *i: _scaled(a, total[i], count))


# ---- avg_pool2d ----------------------------------------------------------------------------------
def _windows(a: QuantizedAvgPool2dAttrs) -> tuple[Window, Window]:
    return windows("qnn.avg_pool2d", a.pool_size, a.strides, a.padding, a.dilation)


def _pool_type(a: QuantizedAvgPool2dAttrs, types: Sequence[TensorType]) -> TensorType:
    (x,) = types
    _check("qnn.avg_pool2d", a, x, math.prod(a.pool_size))
    require_rank("qnn.avg_pool2d", "data", x, 4, 5)  # rank 5: NCHW[x]c
    sizes = outputs(a, _windows(a), x.shape[2:4])
    return TensorType((*x.shape[:2], *sizes, *x.shape[4:]), integer_dtype("qnn.avg_pool2d", a))


def _pool(ar: Arithmetic, a: QuantizedAvgPool2dAttrs, x: Array) -> Array:
    if x.ndim == 5:  # the block as leading axis: NCHW[x]c -> NC[x]HW
        out = _pool(ar, a, np.moveaxis(x, 4, 2).reshape(x.shape[0], -1, *x.shape[2:4]))
        apart = out.reshape(*x.shape[:2], x.shape[4], *out.shape[2:])
        return np.ascontiguousarray(np.moveaxis(apart, 2, 4))
    height, width = _pool_type(a, [TensorType.of(x.shape, str(x.dtype))]).static_shape[2:]
    inside = np.ones((1, 1, *x.shape[2:]), np.int64)
    total = _window_sums(a, x.astype(np.int64) - a.input_zero_point, height, width, 0)
    return _averaged(a, total, _window_sums(a, inside, height, width, int(a.count_include_pad)))


def _window_sums(
    a: QuantizedAvgPool2dAttrs, x: Array, height: int, width: int, border: int
) -> Array:
    """Sums under the window, over data padded with `border` and, beyond the padding, with zeros."""
    top, left, bottom, right = a.padding
    x = np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)), constant_values=border)
    (sy, sx), (dy, dx) = a.strides, a.dilation
    rows, columns = (height - 1) * sy + 1, (width - 1) * sx + 1
    x = np.pad(
        x, ((0, 0), (0, 0), (0, rows + a.pool_size[0] * dy), (0, columns + a.pool_size[1] * dx))
    )
    taps = np.ndindex(*a.pool_size)
    parts = [x[..., i * dy : i * dy + rows : sy, j * dx : j * dx + columns : sx] for i, j in taps]
    return np.asarray(sum(parts))


def _sum_dtype(a: QuantizedAvgPool2dAttrs, x: DType) -> DType:
    """The narrowest dtype that holds the sum of a window's codes."""
    codes = np.iinfo(x.storage)
    extremes = [math.prod(a.pool_size) * int(n) for n in (codes.min, codes.max)]
    for name in ("uint16", "int16", "int32"):
        held = DType.parse(name)
        room = np.iinfo(held.storage)
        if all(room.min <= n <= room.max for n in extremes):
            return held
    return INT64


def _lower_pool(b: PrimBuilder, a: QuantizedAvgPool2dAttrs, x: Buffer) -> Buffer:
    t = _pool_type(a, [type_of(x)])
    wy, wx = _windows(a)
    skip = Skip.TAPS if t.rank == 5 else Skip.NEVER  # lanes that are channels skip together
    s = source(b, x, (wy, wx), t.shape[2:4], lambda d: const(0, d), skip)
    held = _sum_dtype(a, x.dtype)
    total = b.buffer("pool_sum", t.shape, held)

    def element(n: Any, c: Any, i: Any, j: Any, *rest: Any) -> tuple[tuple[Any, ...], Expr]:
        *block, kh, kw = rest
        tap = s.read(n, c, [(i, kh), (j, kw)], *block)
        return (n, c, i, j, *block), cast(tap, held)

    loops = LOOPS[: t.rank]
    s.accumulate(b, total, loops, element, {}, "Add", const(0, held), "pool_sum_taps")

    def inside(w: Window, size: IntLike, at: IntLike) -> Any:
        return w.end_tap(size, at) - w.first_tap(size, at)

    def counted(w: Window, size: IntLike, at: IntLike) -> Any:
        return w.end_tap(size, at, slack=w.after) if a.count_include_pad else inside(w, size, at)

    def mean(n: Any, c: Any, i: Any, j: Any, *block: Any) -> Expr:
        at = (wy, x.shape[2], i), (wx, x.shape[3], j)
        wide = INT64 if x.dtype == INT16 else INT32
        above = cast(total[n, c, i, j, *block], wide)
        if a.input_zero_point:
            taps = inside(*at[0]) * inside(*at[1])
            above = above - index_expr(taps * a.input_zero_point, wide)
        return _scaled(a, above, counted(*at[0]) * counted(*at[1]))

    return b.compute("avg_pool", t.shape, DType.parse(a.out_dtype), mean)


def _sums_over_axes(a: QuantizedMeanAttrs, known: Sequence[Known]) -> SumBounds:
    (x,) = known
    terms = counted("a mean has elements", *(x.type.shape[k] for k in _axes(a, x.type.rank)))
    return of_terms(x.above(a.input_zero_point), terms, terms)


def _sums_under_windows(a: QuantizedAvgPool2dAttrs, known: Sequence[Known]) -> SumBounds:
    (x,) = known
    across, sizes = _windows(a), x.type.shape[2:4]
    masks = (taps_seen(*v) for v in zip(across, sizes, outputs(a, across, sizes), strict=True))
    counts = taps_of_both(*masks).sum(axis=1)
    return of_terms(x.above(a.input_zero_point), int(counts.min()), int(counts.max()))


MEAN = register_op(
    OpDef(
        "qnn.mean", _mean_type, _mean, _lower_mean, QuantizedMeanAttrs, fusion=Fusion.ANCHOR,
        stored=_stored,
        zeros=Zeros(("input_zero_point",), "output_zero_point"),
        average=Average(over_axes, ""), integer_sums=_sums_over_axes,
        gradient=INTEGERS,
        doc="mean of integers over axes, on the result's grid",
    )
)  # fmt: skip
AVG_POOL2D = register_op(
    OpDef(
        "qnn.avg_pool2d", _pool_type, _pool, _lower_pool, QuantizedAvgPool2dAttrs,
        fusion=Fusion.ANCHOR, stored=_stored,
        zeros=Zeros(("input_zero_point",), "output_zero_point"),
        average=Average(None, ""), blocked=True,
        integer_sums=_sums_under_windows,
        gradient=INTEGERS,
        doc="mean of integers under a window, on the result's grid",
    )
)  # fmt: skip
