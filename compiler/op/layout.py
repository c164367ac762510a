"""layout_transform: NCHW <-> NCHW[x]c, where x channels lie together as the innermost axis."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from compiler.dtypes import Array
from compiler.ir.types import TensorType, shape_text
from compiler.op.arithmetic import Arithmetic
from compiler.op.common import need_constant, require, type_of
from compiler.op.opdef import Fusion, OpDef, Quantized, register_op
from compiler.symbolic import ceil_div
from compiler.tensor.builder import PrimBuilder
from compiler.tensor.expr import const
from compiler.tensor.stmt import Buffer

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


def blocked(x: Array, block: int, fill: int = 0) -> Array:
    """NCHW -> NCHW[x]c; missing channels of the last block hold `fill`."""
    if block == 1:
        return x
    n, c, h, w = x.shape
    missing = -c % block
    x = np.pad(x, ((0, 0), (0, missing), (0, 0), (0, 0)), constant_values=fill)
    return np.ascontiguousarray(x.reshape(n, -1, block, h, w).transpose(0, 1, 3, 4, 2))


def unblocked(x: Array, channels: int | None = None) -> Array:
    """NCHW[x]c -> NCHW with the first `channels` channels (all, if not given); NCHW is sliced."""
    if x.ndim == 5:
        n, cb, h, w, block = x.shape
        x = x.transpose(0, 1, 4, 2, 3).reshape(n, cb * block, h, w)
    return np.ascontiguousarray(x[:, :channels])


@dataclass(frozen=True)
class LayoutAttrs:
    """Layouts of operand and result; `channels` of a result in NCHW (the rest was filling)."""

    src_layout: str = "NCHW"
    dst_layout: str = "NCHW"
    channels: int = 0
    fill: int = 0


def _infer(a: LayoutAttrs, types: Sequence[TensorType]) -> TensorType:
    (x,) = types
    src, dst = block_of(a.src_layout), block_of(a.dst_layout)
    fits = x.rank == (4 if src == 1 else 5) and (src == 1 or x.shape[4] == src)
    require(fits, f"layout_transform: {shape_text(x.shape)} is not {a.src_layout}")
    require(src == 1 or dst == 1, "layout_transform: one of the layouts must be NCHW")
    channels = need_constant("layout_transform", "the number of channels", x.shape[1]) * src
    if dst == 1:
        require(0 < a.channels <= channels, f"layout_transform: there are {channels} channels")
        return TensorType((x.shape[0], a.channels, *x.shape[2:4]), x.dtype)
    return TensorType((x.shape[0], ceil_div(channels, dst), *x.shape[2:4], dst), x.dtype)


def _reference(_: Arithmetic, a: LayoutAttrs, x: Array) -> Array:
    if a.dst_layout == "NCHW":
        return unblocked(x, a.channels)
    return blocked(x, block_of(a.dst_layout), a.fill)


def _lower(b: PrimBuilder, a: LayoutAttrs, x: Buffer) -> Buffer:
    t = _infer(a, [type_of(x)])
    src, dst = block_of(a.src_layout), block_of(a.dst_layout)
    if dst == 1:
        if src == 1:
            return b.compute("slice", t.shape, t.dtype, lambda *i: x[i])
        return b.compute(
            "plain", t.shape, t.dtype, lambda n, c, h, w: x[n, c // src, h, w, c % src]
        )
    out = b.buffer("blocked", t.shape, t.dtype)
    channels = type_of(x).shape[1]
    n, _, h, w, _ = t.shape
    if int(str(channels)) % dst:
        full = dict(zip("ncyxb", t.shape, strict=True))
        b.stage(out, full, lambda *i: (i, const(a.fill, t.dtype)), name="fill")
    whole = int(str(channels)) // dst
    for name, first, blocks, lanes in (
        ("whole", 0, whole, dst),
        ("rest", whole, 1, int(str(channels)) % dst),
    ):
        if blocks and lanes:
            b.stage(
                out,
                {"n": n, "c": blocks, "y": h, "x": w, "b": lanes},
                lambda n, c, y, x_, k, first=first: (
                    (n, c + first, y, x_, k),
                    x[n, (c + first) * dst + k, y, x_],
                ),
                name=name,
            )
    return out


LAYOUT_TRANSFORM = register_op(
    OpDef(
        "layout_transform",
        _infer,
        _reference,
        _lower,
        LayoutAttrs,
        fusion=Fusion.OPAQUE,
        quantized=Quantized.SAME,
        doc="the same values with channels in blocks, or no longer",
    )
)
