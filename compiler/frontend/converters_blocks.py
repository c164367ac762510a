"""Converters of operators that rearrange blocks of images: Col2Im, DepthToSpace, SpaceToDepth."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np

from compiler.frontend.converters_conv import spread
from compiler.frontend.node import Node, converts
from compiler.frontend.run_time import Integer, checked, found, integers, number, positions
from compiler.frontend.values import Imported, scalar
from compiler.frontend.windows import spatial
from compiler.ir.expr import Atom, Constant, Match, tensor_type
from compiler.symbolic import Dim
from compiler.types.dtypes import BOOL, INT64
from compiler.types.tensor_types import TensorType


@converts("DepthToSpace")
def depth_to_space(n: Node) -> Imported:
    """Channels become blocks of an image: depth first (DCR) or column first (CRD)."""
    n.rank_of(0, 4)
    batch, channels, rows, columns = n.type(0).shape
    size, mode = _block(n), n.expect("mode", "DCR", "DCR", "CRD")
    if not isinstance(channels, int) or channels % size**2:
        raise n.unsupported(f"{channels} channels and blocksize={size}")
    rest = channels // size**2
    inner = (size, size, rest) if mode == "DCR" else (rest, size, size)
    x = n.step("reshape", n.atom(0), newshape=(batch, *inner, rows, columns))
    axes = (0, 3, 4, 1, 5, 2) if mode == "DCR" else (0, 1, 4, 2, 5, 3)
    x = n.step("transpose", x, axes=axes)
    return n.call("reshape", x, newshape=(batch, rest, rows * size, columns * size))


@converts("SpaceToDepth")
def space_to_depth(n: Node) -> Imported:
    """Blocks of an image become channels: depth first (DCR) or column first (CRD)."""
    n.rank_of(0, 4)
    batch, channels, rows, columns = n.type(0).shape
    size, mode = _block(n), n.expect("mode", "DCR", "DCR", "CRD")
    if any(isinstance(d, int) and d % size for d in (rows, columns)):
        raise n.unsupported(f"an image of {rows} x {columns} and blocksize={size}")
    split = (batch, channels, rows // size, size, columns // size, size)
    axes = (0, 3, 5, 1, 2, 4) if mode == "DCR" else (0, 1, 3, 5, 2, 4)
    x = n.step("transpose", n.step("reshape", n.atom(0), newshape=split), axes=axes)
    shape = (batch, channels * size**2, rows // size, columns // size)
    return n.call("reshape", x, newshape=shape)


def _block(n: Node) -> int:
    size = int(n.need("blocksize"))
    if size < 1:
        raise n.unsupported(f"blocksize={size}")
    return size


@converts("Col2Im")
def col2im(n: Node) -> Imported:
    """Columns of blocks added up where the blocks lie in the image: what im2col took apart."""
    n.rank_of(0, 3)
    batch, rows, length = n.type(0).shape
    if any(n.constant(i) is None for i in (1, 2)):
        return _computed(n)
    image, block = (tuple(int(d) for d in n.known(i, "sizes")) for i in (1, 2))
    count = len(image)
    strides, dilation = spatial(n, "strides", count, 1), spatial(n, "dilations", count, 1)
    pads = tuple(n.attr("pads", (0,) * (2 * count)))
    if len(block) != count or len(pads) != 2 * count or min((*block, *pads, 0)) < 0:
        raise n.unsupported(f"an image {image}, blocks {block} and pads {pads}")
    taps = math.prod(block)
    whole = [d + pads[i] + pads[count + i] for i, d in enumerate(image)]
    spans = [(k - 1) * d + 1 for k, d in zip(block, dilation, strict=True)]
    places = [(w - s) // q + 1 for w, s, q in zip(whole, spans, strides, strict=True)]
    if not isinstance(rows, int) or rows % taps or length != math.prod(places):
        raise n.unsupported(f"columns {n.type(0)} for blocks {block} at {tuple(places)} places")
    shape = (batch, rows // taps, taps, *places)
    columns = n.step("reshape", n.atom(0), newshape=shape)
    total: Atom | None = None
    for k, tap in enumerate(itertools.product(*map(range, block))):
        part = n.step("take", columns, Constant.of(np.int64(k), INT64), axis=2)
        edges = [(0, 0), (0, 0)]
        for axis, (i, stride) in enumerate(zip(tap, strides, strict=True)):
            first, width = i * dilation[axis], (places[axis] - 1) * stride + 1
            part = spread(n, part, 2 + axis, stride)  # with zeros after the last one too
            part = n.step("strided_slice", part, begin=(0,), end=(width,), axes=(2 + axis,))
            edges.append((first, whole[axis] - first - width))
        part = n.step("nn.pad", part, pad_width=tuple(edges), mode="constant", value=0.0)
        total = part if total is None else n.step("add", total, part)
    if total is None:
        raise n.unsupported(f"blocks {block}")
    return n.call(
        "strided_slice", total, begin=pads[:count], axes=tuple(range(2, 2 + count)),
        end=tuple(p + d for p, d in zip(pads, image, strict=False)),
    )  # fmt: skip


def _computed(n: Node) -> Atom:
    """Col2Im of an image or blocks whose sizes are symbolic, or computed by the program."""
    t, image, block = n.type(0), integers(n, 1), integers(n, 2)
    batch, rows, length = t.shape
    count = len(image)
    strides, dilation = spatial(n, "strides", count, 1), spatial(n, "dilations", count, 1)
    pads = tuple(n.attr("pads", (0,) * (2 * count)))
    if len(block) != count or len(pads) != 2 * count or min((*pads, 0)) < 0:
        raise n.unsupported(f"{count} sizes of an image, {len(block)} of blocks and pads {pads}")

    def do(op: str, *args: Integer) -> Atom:
        return n.step(op, *(number(n, a) for a in args))

    def multiplied(parts: Sequence[Integer]) -> Atom:
        out = number(n, 1)
        for p in parts:
            out = do("multiply", out, p)
        return out

    channels = found(n, do("divide", number(n, rows), multiplied(block)))
    taps, places, ways = [], [], []
    for k, (size, width) in enumerate(zip(image, block, strict=True)):
        whole = do("add", size, pads[k] + pads[count + k])
        span = do("add", do("multiply", do("subtract", width, 1), dilation[k]), 1)
        steps = do("add", do("divide", do("subtract", whole, span), strides[k]), 1)
        taps.append(found(n, number(n, width)))
        places.append(found(n, steps))
        tap, place = (
            n.step("reshape", do("multiply", positions(n, d), by), newshape=_at(j, 2 * count, d))
            for d, by, j in ((taps[k], dilation[k], k), (places[k], strides[k], count + k))
        )
        ways.append(do("subtract", do("add", tap, place), pads[k]))
    flat = number(n, 0)
    inside: Atom = Constant.of(np.asarray(True), BOOL)
    for way, size in zip(ways, image, strict=True):
        flat = do("add", do("multiply", flat, size), way)
        for op, end in (("greater_equal", 0), ("less", size)):
            inside = n.step("logical_and", inside, do(op, way, end))
    total = multiplied(image)
    at = n.step("where", inside, flat, total)  # outside, which is nowhere
    wide = (batch, channels, found(n, multiplied([*taps, *places])))
    checked(n, multiplied([channels, *taps]), rows, "rows")
    checked(n, multiplied(places), length, "columns")
    at = _as(n, at, (1, 1, wide[2]))
    updates = _as(n, n.atom(0), wide)
    zeros = n.step("broadcast_to", scalar(0, t), shape=(batch, channels, found(n, total)))
    at = n.step("broadcast_to", at, shape=wide)
    y = n.step("scatter_elements", zeros, at, updates, axis=2, reduction="add")
    sizes = [found(n, number(n, size)) for size in image]
    return _as(n, y, (batch, channels, *sizes))


def _at(axis: int, rank: int, size: Dim) -> tuple[Dim, ...]:
    return tuple(size if k == axis else 1 for k in range(rank))


def _as(n: Node, x: Atom, shape: tuple[Dim, ...]) -> Atom:
    """`x` with another shape of as many elements, which the program checks."""
    flat = n.step("reshape", x, newshape=(*shape[:-1], -1))
    t = TensorType.of(shape, tensor_type(x).dtype)
    return n.graph.bind(Match(flat, t), n.graph.intermediate("matched"), n.origin)
