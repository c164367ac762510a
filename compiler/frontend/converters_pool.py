"""Converters of pooling."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from compiler.frontend.computed_moves import bordered
from compiler.frontend.converters_conv import convolved
from compiler.frontend.node import Node, converts
from compiler.frontend.run_time import found, integers, number
from compiler.frontend.values import Imported, constant_of, scalar
from compiler.frontend.widening import in_dtype_of, widened
from compiler.frontend.windows import Emit, Windows, expanded, two, windows
from compiler.ir.expr import Atom, Constant, tensor_type
from compiler.op.window import Window
from compiler.symbolic import Index
from compiler.types.dtypes import BOOL, INT64, Array
from compiler.types.tensor_types import TensorType


def pooled(n: Node, t: TensorType) -> Windows:
    """The windows of a pooling node over data of type `t`.

    ONNX's inference of shapes and its runtimes round the number of steps towards zero: where the
    first window reaches beyond the data, but by less than a stride, there is one all the same. Of
    sizes that are known it is padding here; of open ones, see `reaching`.
    """
    at, pads = _described(n, t), []
    for w, size in zip(_axes(at), t.shape[2:], strict=True):
        missing = w.span - w.before - w.after - size if isinstance(size, int) else 0
        pads.append((w.before, w.after + (missing if 0 < missing < w.stride else 0)))
    return Windows(at.kernel, at.strides, at.dilation, pads)


def reaching(n: Node, t: TensorType) -> tuple[Windows, dict[str, Any]]:
    """The same for our pooling operators, and what else they have to be told: whether there are
    first windows that may reach beyond the data.

    Since opset 19, means over such a window leave out what is beyond the padding too; before, those
    that include padding did not, and such windows are refused where sizes are open.
    """
    ceil, include = bool(n.attr("ceil_mode", 0)), bool(n.attr("count_include_pad", 0))
    more = {"ceil_mode": ceil}
    at = _described(n, t)
    rooms = (
        Index.of(size + (w.before + w.after - w.span))
        for w, size in zip(_axes(at), t.shape[2:], strict=True)
    )
    short = any((low := room.range()[0]) is None or low < 0 for room in rooms) and not ceil
    if short and include and n.opset >= 19:
        return at, more | {"partial": True}
    if short and not include and not all(isinstance(d, int) for d in t.shape[2:]):
        more["partial"] = True
    return pooled(n, t), more


def _described(n: Node, t: TensorType) -> Windows:
    kernel = tuple(int(k) for k in n.need("kernel_shape"))
    if len(kernel) != t.rank - 2:
        raise n.unsupported(f"kernel_shape={kernel} for an input of rank {t.rank}")
    return windows(n, t, kernel)


@converts("MaxPool", "AveragePool")
def pool(n: Node) -> Sequence[Imported]:
    """1-D (as height 1), 2-D, and 3-D (planes first, then along the depth)."""
    rank = n.rank_of(0, 3, 4, 5)
    x, t = n.atom(0), n.type(0)
    at, more = reaching(n, t)
    op = "nn.max_pool2d"
    if n.op == "AveragePool":
        op = "nn.avg_pool2d"
        more["count_include_pad"] = bool(n.attr("count_include_pad", 0))
    attrs = at.attrs() | more | {"pool_size": two(at.kernel[-2:], 1)}
    if rank == 4:
        y = n.call(op, x, **attrs)
    elif rank == 3:
        y = n.call("squeeze", n.step(op, expanded(n, x), **attrs), axis=(2,))
    else:
        y = _deep(n, op, x, at, attrs, more)
    return [y, _positions(n, x, at)] if n.wants(1) else [y]


def _deep(
    n: Node, op: str, x: Atom, at: Windows, attrs: dict[str, Any], more: dict[str, Any]
) -> Atom:
    """Both the maximum and the average over a box, also a clipped one, are taken axis by axis."""
    batch, channels, depth, *size = tensor_type(x).shape
    planes = n.step("reshape", x, newshape=(batch, channels * depth, *size))
    planes = n.step(op, planes, **attrs)
    *_, height, width = tensor_type(planes).shape
    columns = n.step("reshape", planes, newshape=(batch, channels, depth, height * width))
    (before, after), (kernel, stride, apart) = (
        at.pads[0],
        (v[0] for v in (at.kernel, at.strides, at.dilation)),
    )
    y = n.step(
        op, columns, pool_size=(kernel, 1), strides=(stride, 1), dilation=(apart, 1),
        padding=(before, 0, after, 0), **more,
    )  # fmt: skip
    return n.call("reshape", y, newshape=(batch, channels, tensor_type(y).shape[2], height, width))


# ---- positions of maxima -------------------------------------------------------------------------
def _positions(n: Node, x: Atom, at: Windows) -> Atom:
    """int64 position in the whole input of each maximum: of equal elements, of the first.

    Taps are compared one after the other, in row-major order.
    """
    t = tensor_type(x)
    shape = t.static_shape
    size = shape[2:]
    across = _axes(at)
    ceil = bool(n.attr("ceil_mode", 0))
    counts = [_count(w, s, ceil) for w, s in zip(across, size, strict=True)]
    ends = [
        max(0, (c - 1) * w.stride + w.span - s - w.before)
        for c, w, s in zip(counts, across, size, strict=True)
    ]
    n.reserve(*counts)
    n.reserve(*shape[:2])
    lowest = -math.inf if t.dtype.is_float else float(np.iinfo(t.dtype.storage).min)
    edges = tuple(zip([w.before for w in across], ends, strict=True))
    padded = n.step("nn.pad", x, pad_width=((0, 0), (0, 0), *edges), mode="constant", value=lowest)
    strides = [math.prod(size[k + 1 :]) for k in range(len(size))]
    if n.attr("storage_order", 0):
        strides = [math.prod(size[:k]) for k in range(len(size))]
    best: Atom | None = None
    where: Atom | None = None
    found = np.zeros(counts, bool)
    for tap in itertools.product(*(range(w.kernel) for w in across)):
        inside, place = _tap(tap, across, counts, size, strides)
        value = n.step(
            "strided_slice", padded, axes=tuple(range(2, len(shape))),
            begin=tuple(k * w.dilation for k, w in zip(tap, across, strict=True)),
            end=tuple(
                k * w.dilation + (c - 1) * w.stride + 1
                for k, w, c in zip(tap, across, counts, strict=True)
            ),
            strides=tuple(w.stride for w in across),
        )  # fmt: skip
        here = Constant.of(place[None, None], INT64)
        if best is None or where is None:
            full = (*shape[:2], *counts)
            best, where = value, n.step("broadcast_to", here, shape=full)
        else:
            first = Constant((inside & ~found)[None, None], BOOL)
            better = n.step("logical_or", n.step("greater", value, best), first)
            where = n.step("where", better, here, where)
            best = n.step("maximum", value, best)
        found |= inside
    planes = np.arange(shape[0] * shape[1]) * math.prod(size)
    base = Constant.of(planes.reshape(*shape[:2], *(1 for _ in size)), INT64)
    assert where is not None
    return n.result(1, "add", where, base)


def _count(w: Window, size: int, ceil: bool) -> int:
    return Index.of(w.outputs(size, ceil)).const


def _axes(at: Windows) -> list[Window]:
    sides = zip(at.kernel, at.strides, at.pads, at.dilation, strict=True)
    return [Window(k, s, *p, d) for k, s, p, d in sides]


def _tap(
    tap: Sequence[int],
    across: Sequence[Window],
    counts: Sequence[int],
    size: Sequence[int],
    strides: Sequence[int],
) -> tuple[Array, Array]:
    """Whether a tap lies inside the data, and its position in a plane, for every window."""
    inside, place = np.ones(counts, bool), np.zeros(counts, np.int64)
    for axis, (k, w) in enumerate(zip(tap, across, strict=True)):
        at = np.arange(counts[axis]) * w.stride - w.before + k * w.dilation
        line = at.reshape([-1 if i == axis else 1 for i in range(len(counts))])
        inside &= (line >= 0) & (line < size[axis])
        place += line * strides[axis]
    return inside, place


@converts("MaxUnpool")
def max_unpool(n: Node) -> Imported:
    """Values at the positions that MaxPool gave; zeros elsewhere."""
    shape = n.type(0).static_shape
    at = windows(n, n.type(0), tuple(int(k) for k in n.need("kernel_shape")))
    whole = list(shape[:2])
    for s, k, stride, pads in zip(shape[2:], at.kernel, at.strides, at.pads, strict=True):
        whole.append((s - 1) * stride + k - sum(pads))
    flat = [n.step("reshape", n.atom(i), newshape=(-1,)) for i in (1, 0)]
    n.reserve(*whole)
    zeros = Constant.of(np.zeros(math.prod(whole)), n.type(0).dtype)
    spread = n.step("scatter_elements", zeros, *flat, axis=0, reduction="none")
    if n.has(2) and n.constant(2) is None:
        return _unpooled(n, n.step("reshape", spread, newshape=tuple(whole)))
    wanted = tuple(int(d) for d in n.known(2, "output_shape")) if n.has(2) else tuple(whole)
    if wanted == tuple(whole):
        return n.call("reshape", spread, newshape=wanted)
    if len(wanted) != len(whole) or any(a < b for a, b in zip(wanted, whole, strict=True)):
        raise n.unsupported(f"output_shape={wanted}, smaller than {tuple(whole)}")
    inner = n.step("reshape", spread, newshape=tuple(whole))
    edges = tuple((0, a - b) for a, b in zip(wanted, whole, strict=True))
    return n.call("nn.pad", inner, pad_width=edges, mode="constant", value=0.0)


def _unpooled(n: Node, x: Atom) -> Atom:
    """`x` continued with zeros up to the output_shape that the program computes."""
    for axis, (size, wanted) in enumerate(zip(tensor_type(x).shape, integers(n, 2), strict=True)):
        after = n.step("subtract", number(n, wanted), number(n, size))
        after = number(n, found(n, after))  # a smaller shape is refused
        x = bordered(n, x, axis, (0, after), "constant", scalar(0, n.type(0)))
    return x


# ---- norms ---------------------------------------------------------------------------------------
def powers(n: Node, x: Atom, p: float) -> Atom:
    """|x|^p."""
    if p == 2:
        return n.step("multiply", x, x)
    size = n.step("abs", x)
    return size if p == 1 else n.step("power", size, scalar(p, tensor_type(x)))


def root(n: Node, x: Atom, p: float, last: Emit) -> Atom:
    """x^(1/p)."""
    if p == 2:
        return last("sqrt", x)
    return last("power", x, scalar(1 / p, tensor_type(x)))


@converts("LpPool")
def lp_pool(n: Node) -> Imported:
    """(sum of |x|^p)^(1/p) in each window: a depthwise convolution with ones."""
    n.rank_of(0, 3, 4, 5)
    x, p = n.atom(0), float(n.attr("p", 2))
    x = x if p == 1 else widened(n, x)
    t = tensor_type(x)
    at = pooled(n, t)
    channels = t.shape[1]
    if not isinstance(channels, int):
        raise n.unsupported(f"{channels} channels; use shapes=...")
    if n.attr("ceil_mode", 0):
        at = _with_partial_windows(at, t.static_shape[2:])
    n.reserve(channels, *at.kernel)
    ones = constant_of(np.ones((channels, 1, *at.kernel)), t.dtype)
    total = convolved(n, powers(n, x, p), ones, (), at, channels, n.call if p == 1 else n.step)
    return total if p == 1 else root(n, total, p, partial(in_dtype_of, n, 0))


def _with_partial_windows(at: Windows, size: Sequence[int]) -> Windows:
    """`at` with so much padding at the end that windows which reach beyond it fit."""
    pads = []
    for w, s in zip(_axes(at), size, strict=True):
        count = _count(w, s, ceil=True)
        pads.append((w.before, max(w.after, (count - 1) * w.stride + w.span - s - w.before)))
    return Windows(at.kernel, at.strides, at.dilation, pads)
