"""layout_transform: NCHW <-> NCHW[x]c, where x channels lie together as the innermost axis.

Blocked channels may be in groups, each filled up to whole blocks, as grouped convolutions want
them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from compiler.arithmetic.arrays import Arithmetic
from compiler.op.common import need_constant, require, type_of
from compiler.op.gradient import LOWERED
from compiler.op.opdef import Fusion, OpDef, Quantized, register_op
from compiler.symbolic import Index, IntLike, ceil_div, imin
from compiler.tensor.builder import PrimBuilder
from compiler.tensor.expr import Buffer, Expr
from compiler.types.dtypes import Array
from compiler.types.tensor_types import TensorType, shape_text

_LAYOUT = re.compile(r"NCHW(?:(\d+)c)?")


def block_of(layout: str) -> int:
    """Channels in a block of `layout`: x of NCHW[x]c, 1 for NCHW.

    Raises:
        compiler.errors.TypeInferenceError: it is no such layout.
    """
    found = _LAYOUT.fullmatch(layout)
    require(found is not None, f"layout must be NCHW or NCHW[x]c, not {layout!r}")
    assert found is not None
    return int(found[1] or 1)


def blocked(x: Array, block: int) -> Array:
    """NCHW -> NCHW[x]c; missing channels of the last block repeat the last channel."""
    if block == 1:
        return x
    n, c, h, w = x.shape
    x = np.pad(x, ((0, 0), (0, -c % block), (0, 0), (0, 0)), mode="edge")
    return np.ascontiguousarray(x.reshape(n, -1, block, h, w).transpose(0, 1, 3, 4, 2))


def unblocked(x: Array, channels: int | None = None) -> Array:
    """NCHW[x]c -> NCHW with the first `channels` channels (all, if not given); NCHW is sliced."""
    if x.ndim == 5:
        n, cb, h, w, block = x.shape
        x = x.transpose(0, 1, 4, 2, 3).reshape(n, cb * block, h, w)
    return np.ascontiguousarray(x[:, :channels])


@dataclass(frozen=True)
class LayoutAttrs:
    """Attributes of layout_transform.

    Attributes:
        src_layout, dst_layout: NCHW or NCHW[x]c; if both are blocked, x is the same.
        channels: channels of the data without filling, where src_layout is blocked.
        src_groups, dst_groups: equal groups of channels, each filled up to whole blocks by its last
            channel.
        shuffle: the result's channel c is the data's channel c % shuffle * (channels / shuffle) +
            c // shuffle (from blocks to blocks).
    """

    src_layout: str = "NCHW"
    dst_layout: str = "NCHW"
    channels: int = 0
    src_groups: int = 1
    dst_groups: int = 1
    shuffle: int = 1


def filled_channels(channels: int, block: int, groups: int) -> int:
    """Channels that blocked data holds, filling included."""
    return groups * -(-(channels // groups) // block) * block


def _infer(a: LayoutAttrs, types: Sequence[TensorType]) -> TensorType:
    (x,) = types
    src, dst = block_of(a.src_layout), block_of(a.dst_layout)
    fits = x.rank == (4 if src == 1 else 5) and (src == 1 or x.shape[4] == src)
    require(fits, f"layout_transform: {shape_text(x.shape)} is not {a.src_layout}")
    held = need_constant("layout_transform", "the number of channels", x.shape[1]) * src
    channels = held if src == 1 else a.channels
    require(src == 1 or dst == 1 or src == dst, "layout_transform: blocks must have the same size")
    require(
        src > 1 or a.shuffle == a.src_groups == 1,
        "layout_transform: data in NCHW has no groups, and is not shuffled",
    )
    require(
        dst > 1 or a.shuffle == a.dst_groups == 1,
        "layout_transform: a result in NCHW has no groups, and is not shuffled",
    )
    divided = all(channels % n == 0 for n in (a.src_groups, a.dst_groups, a.shuffle))
    require(divided, f"layout_transform: {channels} channels do not divide into the groups")
    fits = src == 1 or 0 < filled_channels(channels, src, a.src_groups) <= held
    require(fits, f"layout_transform: there are {held} channels, not {channels}")
    if dst == 1:
        return TensorType((x.shape[0], channels, *x.shape[2:4]), x.dtype)
    blocks = filled_channels(channels, dst, a.dst_groups) // dst
    return TensorType((x.shape[0], blocks, *x.shape[2:4], dst), x.dtype)


def _reference(_: Arithmetic, a: LayoutAttrs, x: Array) -> Array:
    src, dst = block_of(a.src_layout), block_of(a.dst_layout)
    if src == 1:
        return _grouped(x, dst, a.dst_groups)
    x = unblocked(x)
    held = -(-(a.channels // a.src_groups) // src) * src
    at = np.arange(a.channels)
    per = a.channels // a.src_groups
    x = x[:, at // per * held + at % per]
    if dst == 1:
        return np.ascontiguousarray(x)
    x = x[:, at % a.shuffle * (a.channels // a.shuffle) + at // a.shuffle]
    return _grouped(x, dst, a.dst_groups)


def _grouped(x: Array, block: int, groups: int) -> Array:
    """NCHW -> NCHW[x]c, group by group."""
    return np.concatenate([blocked(p, block) for p in np.split(x, groups, axis=1)], axis=1)


def _lower(b: PrimBuilder, a: LayoutAttrs, x: Buffer) -> Buffer:
    t = _infer(a, [type_of(x)])
    src, dst = block_of(a.src_layout), block_of(a.dst_layout)
    if dst == 1:
        if src == 1:
            return b.compute("slice", t.shape, t.dtype, lambda *i: x[i])
        out = b.buffer("plain", t.shape, t.dtype)
        _to_plain(b, a, x, out, src)
        return out
    out = b.buffer("blocked", t.shape, t.dtype)
    if src > 1:
        _between(b, a, x, out, dst)
        return out
    channels = int(str(type_of(x).shape[1]))
    per = channels // a.dst_groups
    n, _, h, w, _ = t.shape
    for group in range(a.dst_groups):
        last = per // dst
        for name, first, blocks, lane0, lanes in (
            ("whole", 0, last, 0, dst),
            ("rest", last, 1, 0, per % dst),
            ("fill", last, 1, per % dst, -per % dst),
        ):
            if not blocks or not lanes:
                continue

            def body(
                n: Index, c: Index, y: Index, z: Index, lane: Index, group: int = group,
                first: int = first, lane0: int = lane0, fills: bool = name == "fill",
            ) -> tuple[tuple[IntLike, ...], Expr]:  # fmt: skip
                k = c + first
                channel = group * per + (per - 1 if fills else k * dst + lane)
                to = (n, k + group * ceil_div(per, dst), y, z, lane + lane0)
                return to, x[n, channel, y, z]

            b.stage(out, {"n": n, "c": blocks, "y": h, "x": w, "b": lanes}, body, name=name)
    return out


def _to_plain(b: PrimBuilder, a: LayoutAttrs, x: Buffer, out: Buffer, block: int) -> None:
    """From blocks to NCHW, group by group: whole blocks, then what the last one holds."""
    n, _, h, w = out.shape
    per = a.channels // a.src_groups
    for group in range(a.src_groups):
        for name, first, blocks in (("whole", 0, per // block), ("rest", per // block, 1)):
            lanes = block if name == "whole" else per % block
            if not blocks or not lanes:
                continue

            def body(
                n: Index, c: Index, lane: Index, y: Index, z: Index, group: int = group,
                first: int = first,
            ) -> tuple[tuple[IntLike, ...], Expr]:  # fmt: skip
                k = c + first
                from_block = x[n, k + group * ceil_div(per, block), y, z, lane]
                return (n, k * block + lane + group * per, y, z), from_block

            b.stage(out, {"n": n, "c": blocks, "b": lanes, "y": h, "x": w}, body, name=name)


def _between(b: PrimBuilder, a: LayoutAttrs, x: Buffer, out: Buffer, block: int) -> None:
    """From blocks to blocks: a stage for each block of the result, so that it is known at build
    time where its lanes come from."""
    n, blocks, h, w, _ = out.shape
    to, of = a.channels // a.dst_groups, a.channels // a.src_groups
    held = -(-of // block)
    for k in range(int(str(blocks))):
        group, first = divmod(k, -(-to // block))

        def body(
            n: Index, y: Index, z: Index, lane: Index, k: int = k, g: int = group, p: int = first
        ) -> tuple[tuple[IntLike, ...], Expr]:
            c = imin(lane + p * block, to - 1) + g * to  # filling repeats the last channel
            c = c % a.shuffle * (a.channels // a.shuffle) + c // a.shuffle
            at = c % of
            return (n, k, y, z, lane), x[n, c // of * held + at // block, y, z, at % block]

        b.stage(out, {"n": n, "y": h, "x": w, "b": block}, body, name="move")


LAYOUT_TRANSFORM = register_op(
    OpDef(
        "layout_transform",
        _infer,
        _reference,
        _lower,
        LayoutAttrs,
        fusion=Fusion.OPAQUE,
        quantized=Quantized.SAME,
        gradient=LOWERED,
        doc="the same values with channels in blocks, or no longer",
    )
)
