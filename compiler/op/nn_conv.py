"""nn.conv2d: convolution of NCHW data with OIHW weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from compiler.dtypes import Array, DType
from compiler.ir.types import TensorType, shape_text
from compiler.op.arithmetic import Arithmetic
from compiler.op.common import need_constant, require, require_rank, type_of
from compiler.op.contraction import check_bias, operand, result_dtype, start, step
from compiler.op.opdef import Fusion, OpDef, Quantized, register_op
from compiler.op.window import Window, source, windows
from compiler.symbolic import Index, product
from compiler.tensor.builder import PrimBuilder
from compiler.tensor.expr import const
from compiler.tensor.stmt import Buffer


@dataclass(frozen=True)
class Conv2dAttrs:
    """Attributes of nn.conv2d.

    Attributes:
        padding: (top, left, bottom, right), in elements.
        groups: channels are split into this many independent convolutions.
        out_dtype: dtype of products, accumulator and result; empty: that of the operands.
        input_zero_point: integer that stands for zero in integer data; padding has this value.
    """

    strides: tuple[int, int] = (1, 1)
    padding: tuple[int, int, int, int] = (0, 0, 0, 0)
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1
    out_dtype: str = ""
    input_zero_point: int = 0


def _windows(a: Conv2dAttrs, kernel: Sequence[Any]) -> tuple[Window, Window]:
    size = [need_constant("nn.conv2d", "the kernel size", k) for k in kernel]
    return windows("nn.conv2d", size, a.strides, a.padding, a.dilation)


def _infer(a: Conv2dAttrs, types: Sequence[TensorType]) -> TensorType:
    x, w = types[:2]
    require_rank("nn.conv2d", "data", x, 4)
    require_rank("nn.conv2d", "weight", w, 4)
    out_channels = need_constant("nn.conv2d", "the number of output channels", w.shape[0])
    fits = x.shape[1] == w.shape[1] * a.groups and out_channels % a.groups == 0
    require(
        fits,
        f"nn.conv2d: data {shape_text(x.shape)} and weight {shape_text(w.shape)} do not fit with "
        f"{a.groups} groups",
    )
    dtype = result_dtype("nn.conv2d", x.dtype, w.dtype, a.out_dtype, a.input_zero_point)
    out = [v.outputs(n) for v, n in zip(_windows(a, w.shape[2:]), x.shape[2:], strict=True)]
    require(
        all(not isinstance(n, int) or n >= 1 for n in out),
        f"nn.conv2d: the kernel of {shape_text(w.shape)} does not fit into data "
        f"{shape_text(x.shape)} padded by {a.padding}",
    )
    check_bias("nn.conv2d", types, out_channels, dtype)
    return TensorType((x.shape[0], out_channels, *out), dtype)


def _reference(ar: Arithmetic, a: Conv2dAttrs, x: Array, w: Array, *bias: Array) -> Array:
    """acc = +0; for ic, kh, kw ascending: acc = acc + x * w; then bias last.

    Taps in the padding contribute nothing. Integer data counts from input_zero_point; integers
    accumulate exactly and wrap to the result's dtype.
    """
    out = ar.of(DType.parse(a.out_dtype)) if a.out_dtype else ar
    n, channels, *size = x.shape
    g, o = a.groups, w.shape[0] // a.groups
    wy, wx = _windows(a, w.shape[2:])
    height, width = wy.outputs(size[0]), wx.outputs(size[1])
    assert isinstance(height, int)
    assert isinstance(width, int)
    xs = operand(out, x, ar.dtype, a.input_zero_point).reshape(n, g, 1, channels // g, *size)
    ws = operand(out, w, ar.dtype).reshape(1, g, o, *w.shape[1:])
    acc = np.broadcast_to(start(out), (n, g, o, height, width)).copy()
    for ic, kh, kw in np.ndindex(*w.shape[1:]):
        ys, rows = wy.valid(size[0], height, kh)
        zs, columns = wx.valid(size[1], width, kw)
        data, weight = xs[:, :, :, ic, rows, columns], ws[:, :, :, ic, kh, kw, None, None]
        acc[..., ys, zs] = step(out, acc[..., ys, zs], data, weight)
    y = acc.reshape(n, g * o, height, width).astype(out.dtype.storage)
    return out.add(y, bias[0].reshape(1, -1, 1, 1)) if bias else y


def _lower(b: PrimBuilder, a: Conv2dAttrs, x: Buffer, w: Buffer, *bias: Buffer) -> Buffer:
    t = _infer(a, [type_of(v) for v in (x, w, *bias)])
    across = _windows(a, type_of(w).shape[2:])
    s = source(b, x, across, t.shape[2:], lambda d: const(a.input_zero_point, d))
    per_group = w.shape[0] // a.groups
    out = b.buffer("conv", t.shape, t.dtype)

    def body(
        n: Index, oc: Index, y: Index, x: Index, ic: Index, kh: Index, kw: Index
    ) -> tuple[tuple[Index, ...], Any]:
        channel = ic if a.groups == 1 else (oc // per_group) * w.shape[1] + ic
        data = s.buffer[n, channel, s.y.at(y, kh), s.x.at(x, kw)].astype(t.dtype)
        if a.input_zero_point:
            data = data - a.input_zero_point
        return (n, oc, y, x), data * w[oc, ic, s.y.tap(y, kh), s.x.tap(x, kw)].astype(t.dtype)

    loops = ("n", "oc", "y", "x")
    s.accumulate(b, out, loops, body, {"ic": w.shape[1]}, "Add", const(0, t.dtype), "mac")
    if not bias:
        return out
    return b.compute("conv_bias", out.shape, t.dtype, lambda *i: out[i] + bias[0][i[1]])


def _macs(_: Conv2dAttrs, types: Sequence[TensorType], result: TensorType) -> Any:
    return product([*result.shape, *types[1].shape[1:]])


CONV2D = register_op(
    OpDef(
        "nn.conv2d",
        _infer,
        _reference,
        _lower,
        Conv2dAttrs,
        (2, 3),
        Fusion.ANCHOR,
        Quantized.WEIGHTED,
        _macs,
        doc="data NCHW, weight OIHW, optional bias [O] of the result's dtype",
    )
)
