"""Pooling over NCHW or NCHW[x]c data: nn.max_pool2d, nn.avg_pool2d, nn.global_avg_pool2d."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from compiler.arithmetic.arrays import Arithmetic
from compiler.op.accumulate import accumulation, check_mode, finished, staged, sums
from compiler.op.common import known_shape, require, require_rank, shared, shared_expr, type_of
from compiler.op.facts import Average, Division, Shape, Summation, Undivided, onnx_node
from compiler.op.gradients import windows as rules
from compiler.op.gradients.reductions import mean_over
from compiler.op.opdef import Fusion, OpDef, Quantized, register_ops
from compiler.op.reduce import lower_mean, mean
from compiler.op.staged_sums import staged_sum
from compiler.op.window import LOOPS, Skip, Window, source, windows
from compiler.symbolic import Dim, Index, IntLike, product
from compiler.tensor.builder import PrimBuilder
from compiler.tensor.expr import Buffer, const, lowest
from compiler.types.dtypes import Array
from compiler.types.tensor_types import TensorType, shape_text


@dataclass(frozen=True)
class MaxPool2dAttrs:
    """Attributes of pooling; `padding` is (top, left, bottom, right).

    With `ceil_mode` a partial window at the end counts if it starts inside the data or its leading
    padding. With `partial` the first window counts where it reaches beyond the padded data, but by
    less than a stride.
    """

    pool_size: tuple[int, int]
    strides: tuple[int, int] = (1, 1)
    padding: tuple[int, int, int, int] = (0, 0, 0, 0)
    dilation: tuple[int, int] = (1, 1)
    ceil_mode: bool = False
    partial: bool = False


@dataclass(frozen=True)
class AvgPool2dAttrs(MaxPool2dAttrs):
    """Pooling attributes; `count_include_pad`: the divisor counts padding positions too;
    `accumulate`: how sums are formed (`compiler.op.accumulate`)."""

    count_include_pad: bool = False
    accumulate: str = "sequential"


@dataclass(frozen=True)
class GlobalPoolAttrs:
    """`accumulate`: how sums are formed (`compiler.op.accumulate`)."""

    accumulate: str = "sequential"


def pool_windows(a: MaxPool2dAttrs) -> tuple[Window, Window]:
    """The windows along height and width."""
    return windows("pooling", a.pool_size, a.strides, a.padding, a.dilation)


def outputs(a: MaxPool2dAttrs, across: Sequence[Window], sizes: Sequence[Dim]) -> list[Dim]:
    """How many windows there are along each axis."""
    return [w.outputs(n, a.ceil_mode, a.partial) for w, n in zip(across, sizes, strict=True)]


def _infer(a: MaxPool2dAttrs, types: Sequence[TensorType]) -> TensorType:
    (x,) = types
    require_rank("pooling", "data", x, 4, 5)  # rank 5: NCHW[x]c
    require(x.dtype.kind != "bool", "pooling is not defined for bool; cast the data first")
    if isinstance(a, AvgPool2dAttrs):
        check_mode("nn.avg_pool2d", a.accumulate, x.dtype)
    across = pool_windows(a)
    for w in across:
        require(
            max(w.before, w.after) < w.span,
            f"pooling: padding {a.padding} must be smaller than the window {a.pool_size}",
        )
    out = outputs(a, across, x.shape[2:4])
    require(
        all(not isinstance(n, int) or n >= 1 for n in out),
        f"pooling: a window of {a.pool_size} does not fit into data {shape_text(x.shape)} "
        f"padded by {a.padding}",
    )
    return TensorType((*x.shape[:2], *out, *x.shape[4:]), x.dtype)


def _slide(
    a: MaxPool2dAttrs, step: Any, start: Array, x: Array, counts_padding: bool = False
) -> Array:
    """acc = start; for kh, kw ascending: acc = step(acc, x, positions); padding contributes
    nothing, or zeros."""
    wy, wx = pool_windows(a)
    height, width = outputs(a, (wy, wx), x.shape[2:4])
    assert isinstance(height, int)
    assert isinstance(width, int)
    acc = np.broadcast_to(start, (*x.shape[:2], height, width, *x.shape[4:])).astype(start.dtype)
    positions = np.arange(acc.size).reshape(acc.shape)
    for kh, kw in np.ndindex(*a.pool_size):
        ys, rows = wy.valid(x.shape[2], height, kh)
        xs, columns = wx.valid(x.shape[3], width, kw)
        here = positions[:, :, ys, xs]
        if counts_padding:
            whole = np.zeros(acc.shape, x.dtype)
            whole[:, :, ys, xs] = x[:, :, rows, columns]
            acc = step(acc, whole, positions)
            continue
        acc[:, :, ys, xs] = step(acc[:, :, ys, xs], x[:, :, rows, columns], here)
    return acc


def _lower_slide(b: PrimBuilder, a: MaxPool2dAttrs, x: Buffer, name: str, update: str) -> Buffer:
    t = _infer(a, [type_of(x)])
    start = lowest if update == "Max" else lambda d: const(0, d)
    skip = Skip.TAPS if t.rank == 5 else Skip.NEVER  # lanes that are channels skip together
    mode = a.accumulate if isinstance(a, AvgPool2dAttrs) else "sequential"
    how = staged(mode)
    skip, mode = (skip, mode) if how is None else (Skip.NEVER, "sequential")
    s = source(b, x, pool_windows(a), t.shape[2:4], start, skip, filled=how is not None)
    held = sums(mode, t.dtype, a.pool_size[0] * a.pool_size[1], products=False)
    out = b.buffer(name, t.shape, held.held)

    def body(n: Index, c: Index, y: Index, x: Index, *rest: Index) -> Any:
        *block, kh, kw = rest
        return (n, c, y, x, *block), held.factor(s.read(n, c, [(y, kh), (x, kw)], *block))

    if how is not None:
        b.temps.remove(out)
        taps = [w.kernel for w in pool_windows(a)]
        return staged_sum(b, name, t.shape, taps, lambda *v: body(*v)[1], how, t.dtype)
    loops = LOOPS[: t.rank]
    s.accumulate(b, out, loops, body, {}, update, start(held.held), f"{name}_taps")
    return finished(b, held, f"{name}_round", out, None)


def _max_pool(ar: Arithmetic, a: MaxPool2dAttrs, x: Array) -> Array:
    """acc = least value (-inf, if there is one); for kh, kw ascending: acc = max(acc, x)."""
    return _slide(a, lambda acc, x, _: ar.maximum(acc, x), ar.lowest(), x)


def _lower_max_pool(b: PrimBuilder, a: MaxPool2dAttrs, x: Buffer) -> Buffer:
    return _lower_slide(b, a, x, "max_pool", "Max")


def _taps(a: AvgPool2dAttrs, w: Window, size: IntLike, y: IntLike) -> Any:
    """How many taps of window `y` count."""
    if a.count_include_pad:
        return w.end_tap(size, y, slack=w.after)
    return w.end_tap(size, y) - w.first_tap(size, y)


def _avg_pool(ar: Arithmetic, a: AvgPool2dAttrs, x: Array) -> Array:
    """acc = +0; for kh, kw ascending: acc = acc + x; then one division by the count."""
    s = accumulation(a.accumulate, ar)

    def add(acc: Array, x: Array, at: Array) -> Array:
        return s.at(at).add(acc, x)

    data = s.operand(x, ar.dtype)
    total = s.result(_slide(a, add, s.start(), data, s.counts_padding))
    count = divisors(a, x.shape[2:4], total.shape[2:4])
    count = count.reshape(*total.shape[2:4], *(1 for _ in x.shape[4:]))
    return shared(ar, total, count)


def divisors(a: AvgPool2dAttrs, sizes: Sequence[int], outputs: Sequence[int]) -> Array:
    """How many elements the mean under each window is of: int64 [rows, columns]."""
    rows, columns = (
        np.array([_taps(a, w, size, y).const for y in range(count)])
        for w, size, count in zip(pool_windows(a), sizes, outputs, strict=True)
    )
    return np.asarray(rows[:, None] * columns)


def _lower_avg_pool(b: PrimBuilder, a: AvgPool2dAttrs, x: Buffer) -> Buffer:
    total = _lower_slide(b, a, x, "pool_sum", "Add")
    wy, wx = pool_windows(a)

    def value(n: Any, c: Any, i: Any, j: Any, *block: Any) -> Any:
        count = _taps(a, wy, x.shape[2], i) * _taps(a, wx, x.shape[3], j)
        return shared_expr(total[n, c, i, j, *block], count, x.dtype)

    return b.compute("avg_pool", total.shape, x.dtype, value)


def _infer_global(a: GlobalPoolAttrs, types: Sequence[TensorType]) -> TensorType:
    (x,) = types
    require(x.dtype.kind != "bool", "pooling is not defined for bool; cast the data first")
    check_mode("nn.global_avg_pool2d", a.accumulate, x.dtype)
    require(
        x.rank >= 3, f"nn.global_avg_pool2d: data {shape_text(x.shape)} has no spatial dimensions"
    )
    return TensorType((*x.shape[:2], *(1 for _ in x.shape[2:])), x.dtype)


def _global(ar: Arithmetic, a: GlobalPoolAttrs, x: Array) -> Array:
    """acc = +0; over the spatial positions, row-major: acc = acc + x; then one division."""
    return mean(ar, x, range(2, x.ndim), a.accumulate)


def _lower_global(b: PrimBuilder, a: GlobalPoolAttrs, x: Buffer) -> Buffer:
    return lower_mean(b, "global_avg_pool", x, range(2, len(x.shape)), mode=a.accumulate)


# ---- what of it is a sum, or is done on integers -------------------------------------------------
def _sums_under_windows(a: AvgPool2dAttrs, x: Shape, out: Shape) -> Undivided:
    """Sums under sliding windows: a convolution of each channel with ones."""
    channels, *sizes = known_shape(x[1:4])
    # The last window may reach beyond the padding, or not as far.
    after = [
        max(0, (n - 1) * s + (k - 1) * d + 1 - size - before)
        for n, s, k, d, size, before in zip(
            known_shape(out[2:4]),
            a.strides,
            a.pool_size,
            a.dilation,
            sizes,
            a.padding[:2],
            strict=True,
        )
    ]
    how = {"strides": a.strides, "padding": (*a.padding[:2], *after), "dilation": a.dilation}
    return Undivided("nn.conv2d", {**how, "groups": channels}, (channels, 1, *a.pool_size))


def _divisors(a: AvgPool2dAttrs, x: Shape, out: Shape) -> Array:
    return divisors(a, known_shape(x[2:4]), known_shape(out[2:4]))


def _sums_of_positions(_: GlobalPoolAttrs, x: Shape, __: Shape) -> Undivided:
    return Undivided("sum", {"axis": tuple(range(2, len(x))), "keepdims": True})


_WINDOW: dict[str, Any] = {
    "kernel_shape": "pool_size",
    "strides": "strides",
    "pads": "padding",
    "dilations": "dilation",
    "ceil_mode": "ceil_mode",
}
MAX_POOL2D, AVG_POOL2D, GLOBAL_AVG_POOL2D = register_ops(
    OpDef(
        "nn.max_pool2d",
        _infer,
        _max_pool,
        _lower_max_pool,
        MaxPool2dAttrs,
        fusion=Fusion.ANCHOR,
        quantized=Quantized.SAME,
        homogeneous=True,
        blocked=True,
        onnx=onnx_node("MaxPool", **_WINDOW),
        gradient=rules.max_pool2d,
        doc="largest value under a sliding window; padding is ignored",
    ),
    OpDef(
        "nn.avg_pool2d",
        _infer,
        _avg_pool,
        _lower_avg_pool,
        AvgPool2dAttrs,
        terms=lambda a, types: product(a.pool_size),
        fusion=Fusion.ANCHOR,
        quantized=Quantized.INTEGER,
        numbered=True,
        summation=Summation(division=Division(_sums_under_windows, _divisors)),
        average=Average(None, "qnn.avg_pool2d"),
        homogeneous=True,
        blocked=True,
        onnx=onnx_node("AveragePool", "count_include_pad", **_WINDOW),
        gradient=rules.mean_pool2d(divisors),
        doc="mean under a sliding window",
    ),
    OpDef(
        "nn.global_avg_pool2d",
        _infer_global,
        _global,
        _lower_global,
        GlobalPoolAttrs,
        terms=lambda a, types: product(types[0].shape[2:]),
        fusion=Fusion.ANCHOR,
        quantized=Quantized.INTEGER,
        numbered=True,
        summation=Summation(division=Division(_sums_of_positions)),
        average=Average(lambda a, rank: (tuple(range(2, rank)), True), "qnn.mean"),
        homogeneous=True,
        onnx=onnx_node("GlobalAveragePool"),
        gradient=mean_over(lambda rank: range(2, rank)),
        doc="mean over all spatial positions, which stay with length 1",
    ),
)
