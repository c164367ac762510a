"""nn.conv2d: convolution of NCHW or NCHW[x]c data with OIHW weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from compiler.arithmetic.arrays import Arithmetic
from compiler.op.accumulate import accumulation, check_mode, finished, staged, sums
from compiler.op.common import need_constant, require, require_rank, type_of
from compiler.op.contraction import check_bias, check_bits, low_bits, result_dtype
from compiler.op.facts import Contraction, Summation, Zeros
from compiler.op.gradients import windows as rules
from compiler.op.layout import block_of, blocked, unblocked
from compiler.op.opdef import Fusion, OpDef, Quantized, register_op
from compiler.op.staged_sums import staged_sum
from compiler.op.stored import Stored, zero_points
from compiler.op.sum_bounds import (
    Known,
    SumBounds,
    constant,
    of_weights,
    taps_of_both,
    taps_of_positions,
    taps_seen,
)
from compiler.op.window import LOOPS, Skip, Window, source, windows
from compiler.symbolic import Dim, Index, IntLike, dim, product
from compiler.tensor.builder import PrimBuilder
from compiler.tensor.expr import Buffer, Expr, const
from compiler.types.dtypes import Array, DType
from compiler.types.tensor_types import TensorType, require_equal, shape_text


@dataclass(frozen=True)
class Conv2dAttrs:
    """Attributes of nn.conv2d.

    Attributes:
        padding: (top, left, bottom, right), in elements.
        groups: channels are split into this many independent convolutions.
        out_dtype: dtype of products, accumulator and result; empty: that of the operands.
        input_zero_point: integer that stands for zero in integer data; padding has this value.
        padding_value: what padding holds when that is not the zero point (integer data).
        data_layout, out_layout: NCHW or NCHW[x]c. Blocked data may hold more channels than the
            weights read (a filled-up last block); a blocked result has whole blocks only. Each
            group of blocked data starts a block, unless groups have one channel (depthwise).
        accumulate: how sums are formed (see `compiler.op.accumulate`).
        input_bits: low bits of uint8 data that are multiplied; 0: all.
    """

    strides: tuple[int, int] = (1, 1)
    padding: tuple[int, int, int, int] = (0, 0, 0, 0)
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1
    out_dtype: str = ""
    input_zero_point: int = 0
    padding_value: int = 0
    data_layout: str = "NCHW"
    out_layout: str = "NCHW"
    accumulate: str = "sequential"
    input_bits: int = 0


def _windows(a: Conv2dAttrs, kernel: Sequence[Any]) -> tuple[Window, Window]:
    size = [need_constant("nn.conv2d", "the kernel size", k) for k in kernel]
    return windows("nn.conv2d", size, a.strides, a.padding, a.dilation)


def _infer(a: Conv2dAttrs, types: Sequence[TensorType]) -> TensorType:
    x, w = types[:2]
    xb, ob = block_of(a.data_layout), block_of(a.out_layout)
    require_rank("nn.conv2d", "data", x, 4 if xb == 1 else 5)
    require_rank("nn.conv2d", "weight", w, 4)
    out_channels = need_constant("nn.conv2d", "the number of output channels", w.shape[0])
    text = (
        f"nn.conv2d: data {shape_text(x.shape)} and weight {shape_text(w.shape)} do not fit with "
        f"{a.groups} groups and layouts {a.data_layout}, {a.out_layout}"
    )
    require(out_channels % a.groups == 0 and out_channels % ob == 0, text)
    if xb == 1:
        require_equal([(x.shape[1], dim(w.shape[1] * a.groups))], text)
    else:
        require(_blocks_fit(a, x, w, xb), text)
    dtype = result_dtype("nn.conv2d", x.dtype, w.dtype, a.out_dtype, a.input_zero_point)
    out = [v.outputs(n) for v, n in zip(_windows(a, w.shape[2:]), x.shape[2:4], strict=True)]
    require(
        all(not isinstance(n, int) or n >= 1 for n in out),
        f"nn.conv2d: the kernel of {shape_text(w.shape)} does not fit into data "
        f"{shape_text(x.shape)} padded by {a.padding}",
    )
    check_bias("nn.conv2d", types, out_channels, dtype)
    check_mode("nn.conv2d", a.accumulate, dtype, x.dtype)
    check_bits("nn.conv2d", x.dtype, a.input_bits, a.padding_value or a.input_zero_point)
    if ob == 1:
        return TensorType((x.shape[0], out_channels, *out), dtype)
    return TensorType((x.shape[0], out_channels // ob, *out, ob), dtype)


def _blocks_fit(a: Conv2dAttrs, x: TensorType, w: TensorType, block: int) -> bool:
    need: Dim = dim(w.shape[1] * a.groups)
    held = x.shape[1] * block
    if x.shape[4] != block or not isinstance(need, int) or not isinstance(held, int):
        return False
    if _apart(a, w.shape[1], block):
        return held % (a.groups * block) == 0 and need <= held
    return need <= held


def _apart(a: Conv2dAttrs, per_group: Dim, block: int) -> bool:
    """Whether every group of the data starts a block of its own."""
    return block > 1 and a.groups > 1 and per_group != 1


def _reference(ar: Arithmetic, a: Conv2dAttrs, x: Array, w: Array, *bias: Array) -> Array:
    """acc = +0; for ic, kh, kw ascending: acc = acc + x * w; then bias last.

    Taps in the padding contribute nothing, or padding_value * w. Integer data counts from
    input_zero_point; integers accumulate exactly and wrap to the result's dtype, or as
    `accumulate` says.
    """
    s = accumulation(a.accumulate, ar.of(DType.parse(a.out_dtype)) if a.out_dtype else ar)
    g, o = a.groups, w.shape[0] // a.groups
    x = low_bits(x, a.input_bits)
    if _apart(a, w.shape[1], block_of(a.data_layout)):
        n, held, height, width = (x := unblocked(x)).shape
        x = x.reshape(n, g, held // g, height, width)[:, :, : w.shape[1]]
        x = x.reshape(n, g * w.shape[1], height, width)
    x = unblocked(x, w.shape[1] * g)
    if a.padding_value:
        (top, left, bottom, right), value = a.padding, a.padding_value
        edges = ((0, 0), (0, 0), (top, bottom), (left, right))
        x, a = np.pad(x, edges, constant_values=value), _unpadded(a)
    n, channels, *size = x.shape
    wy, wx = _windows(a, w.shape[2:])
    height, width = wy.outputs(size[0]), wx.outputs(size[1])
    assert isinstance(height, int)
    assert isinstance(width, int)
    xs = s.operand(x, ar.dtype, a.input_zero_point).reshape(n, g, 1, channels // g, *size)
    ws = s.operand(w, ar.dtype).reshape(1, g, o, *w.shape[1:])
    acc = np.broadcast_to(s.start(), (n, g, o, height, width)).copy()
    positions = np.arange(acc.size).reshape(acc.shape)
    for ic, kh, kw in np.ndindex(*w.shape[1:]):
        ys, rows = wy.valid(size[0], height, kh)
        zs, columns = wx.valid(size[1], width, kw)
        data, weight = xs[:, :, :, ic, rows, columns], ws[:, :, :, ic, kh, kw, None, None]
        if s.counts_padding:
            whole = np.zeros((n, g, 1, height, width), data.dtype)
            whole[..., ys, zs] = data
            acc = s.step(acc, whole, weight)
            continue
        here = s.at(positions[..., ys, zs])
        acc[..., ys, zs] = here.step(acc[..., ys, zs], data, weight)
    y = s.result(acc.reshape(n, g * o, height, width), *(v.reshape(1, -1, 1, 1) for v in bias))
    return blocked(y, block_of(a.out_layout))


def _unpadded(a: Conv2dAttrs) -> Conv2dAttrs:
    return replace(a, padding=(0, 0, 0, 0), padding_value=0)


def _lower(b: PrimBuilder, a: Conv2dAttrs, x: Buffer, w: Buffer, *bias: Buffer) -> Buffer:
    t = _infer(a, [type_of(v) for v in (x, w, *bias)])
    across = _windows(a, type_of(w).shape[2:])
    filling = a.padding_value or a.input_zero_point
    skip = Skip.NEVER
    planes = a.data_layout == "NCHW" and x.dtype.is_integer  # dot products go along a padded row
    if a.out_layout != "NCHW" and not a.padding_value and not planes:
        # Lanes that are channels skip together.
        skip = Skip.TAPS if type_of(w).shape[1] != 1 else Skip.ROWS
    how = staged(a.accumulate)
    skip = skip if how is None else Skip.NEVER
    s = source(
        b, x, across, t.shape[2:4], lambda d: const(filling, d), skip, w.finite, how is not None
    )
    per_group = w.shape[0] // a.groups
    xb, ob = block_of(a.data_layout), block_of(a.out_layout)
    rank, apart = t.rank, _apart(a, type_of(w).shape[1], xb)

    def channel(idx: Sequence[Index], oc: Index, ic: Index) -> tuple[IntLike, tuple[IntLike, ...]]:
        """(index of the second axis, indices within the block) of input channel `ic`."""
        if apart:  # the group, from the block's number if that says it
            group = idx[1] // (per_group // ob) if per_group % ob == 0 else oc // per_group
            return group * (x.shape[1] // a.groups) + ic // xb, (ic % xb,)
        c = ic if a.groups == 1 else (oc // per_group) * w.shape[1] + ic
        return (c, ()) if xb == 1 else (c // xb, (c % xb,))

    def out_channel(idx: Sequence[Index]) -> Index:
        return idx[1] if ob == 1 else idx[1] * ob + idx[4]

    def body(*v: Index) -> tuple[tuple[Index, ...], Expr]:
        idx, (ic, kh, kw) = v[:rank], v[rank:]
        n, _, y, z = idx[:4]
        oc = out_channel(idx)
        c, within = channel(idx, oc, ic)
        read = s.read(n, c, [(y, kh), (z, kw)], *within)
        data = low_bits(read, a.input_bits).astype(t.dtype)
        if a.input_zero_point:
            data = data - a.input_zero_point
        weight = w[oc, ic, kh, kw].astype(t.dtype)
        return idx, held.factor(data) * held.factor(weight)

    def begin(*i: Index) -> Expr:
        return bias[0][out_channel(i)] if early else const(0, held.held)

    if how is not None:
        held = sums("sequential", t.dtype, 0)
        last = (lambda *i: bias[0][out_channel(i)]) if bias else None
        return staged_sum(
            b, "conv", t.shape, w.shape[1:], lambda *v: body(*v)[1], how, t.dtype, last
        )
    held = sums(a.accumulate, t.dtype, product(type_of(w).shape[1:]) + 1)
    early = bool(bias) and held.any_order  # the sum starts from the bias
    out = b.buffer("conv", t.shape, held.held)
    s.accumulate(b, out, LOOPS[:rank], body, {"ic": w.shape[1]}, held.update, begin, "mac")
    last = (lambda *i: bias[0][out_channel(i)]) if bias and not early else None
    return finished(b, held, "conv_bias", out, last)


def _macs(_: Conv2dAttrs, types: Sequence[TensorType], result: TensorType) -> Any:
    return product([*result.shape, *types[1].shape[1:]])


def _integer_sums(a: Conv2dAttrs, known: Sequence[Known]) -> SumBounds:
    data, weights, *bias = known
    data, w = data.low_bits(a.input_bits), constant("weights", weights)
    wy, wx = _windows(a, w.shape[2:])
    sizes = data.type.shape[2:4]
    if a.padding_value:  # which is one more number in the data
        value = a.padding_value
        data = replace(data, low=min(data.low, value), high=max(data.high, value))
        seen = None
    elif data.positions is not None:
        seen = taps_of_positions(wy, wx, data.positions)
    else:
        masks = (taps_seen(v, n, v.outputs(n)) for v, n in zip((wy, wx), sizes, strict=True))
        seen = taps_of_both(*masks)
    last = constant("bias", bias[0]) if bias else None
    return of_weights(data, a.input_zero_point, w, last, seen)


def _stored(a: Conv2dAttrs, types: Sequence[TensorType]) -> Stored:
    return Stored(zero_points((a.input_zero_point, types[0].dtype)))


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
        lambda a, types: product(types[1].shape[1:]) + 1,
        numbered=True,
        stored=_stored,
        contraction=Contraction(data=1, weights=1, units=0, channels=1, kernel=2),
        zeros=Zeros(("input_zero_point",), holds=lambda a: not a.input_bits),
        integer_sums=_integer_sums,
        summation=Summation((0, 1), products=True, itself=False),
        gradient=rules.conv2d,
        doc="data NCHW or NCHW[x]c, weight OIHW, optional bias [O] of the result's dtype",
    )
)
