"""Converters of convolutions."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from compiler.frontend.node import Node, converts
from compiler.frontend.values import Imported, scalar
from compiler.frontend.windows import Emit, Pair, Windows, expanded, spatial, windows
from compiler.ir.expr import Atom, Constant, tensor_type
from compiler.symbolic import Dim, dim
from compiler.types.dtypes import INT64

CONVOLUTIONS = {
    2: "nn.conv2d",
}
"""Axes of a kernel -> the operator."""


@converts("Conv")
def conv(n: Node) -> Imported:
    """1-D (as height 1), 2-D and 3-D, with groups, dilation and asymmetric padding."""
    return convolution(n, n.atom(0), n.atom(1), [n.atom(2)] if n.has(2) else [], n.call)


def convolution(n: Node, x: Atom, w: Atom, bias: Sequence[Atom], emit: Emit) -> Atom:
    """The convolution that the attributes of `n` describe; `emit` makes the last call."""
    n.rank_of(0, 3, 4, 5)
    t, weight = tensor_type(x), tensor_type(w)
    if weight.rank != t.rank:
        raise n.unsupported(f"weights of shape {weight.shape}")
    kernel = weight.static_shape[2:]
    if tuple(n.attr("kernel_shape", kernel)) != kernel:
        raise n.unsupported(f"kernel_shape={n.attr('kernel_shape')} and weights of {kernel}")
    return convolved(n, x, w, bias, windows(n, t, kernel), int(n.attr("group", 1)), emit)


def convolved(
    n: Node, x: Atom, w: Atom, bias: Sequence[Atom], at: Windows, groups: int, emit: Emit
) -> Atom:
    """The operator of as many axes, if there is one. Else a 1-D signal is an image of height 1, and
    3-D data are a sum over the depth of the kernel of 2-D convolutions."""
    axes = len(at.kernel)
    if axes in CONVOLUTIONS:
        return emit(CONVOLUTIONS[axes], x, w, *bias, **at.attrs(axes), groups=groups)
    attrs = at.attrs() | {"groups": groups}
    if axes == 1:
        y = n.step("nn.conv2d", expanded(n, x), expanded(n, w), *bias, **attrs)
        return emit("squeeze", y, axis=(2,))
    edges = ((0, 0), (0, 0), at.pads[0], (0, 0), (0, 0))
    if any(at.pads[0]):
        x = n.step("nn.pad", x, pad_width=edges, mode="constant", value=0.0)
    t = tensor_type(x)
    planes = n.step("transpose", x, axes=(0, 2, 1, 3, 4))
    depth, step, apart = t.shape[2], at.strides[0], at.dilation[0]
    if not isinstance(depth, int):
        raise n.unsupported(f"the symbolic depth {depth}; use shapes=...")
    count = (depth - (at.kernel[0] - 1) * apart - 1) // step + 1
    total: Atom | None = None
    for k in range(at.kernel[0]):
        begin, end = k * apart, k * apart + (count - 1) * step + 1
        cut = n.step(
            "strided_slice", planes, begin=(begin,), end=(end,), strides=(step,), axes=(1,)
        )
        images = n.step("reshape", cut, newshape=(-1, *(t.shape[i] for i in (1, 3, 4))))
        tap = n.step("take", w, Constant.of(np.int64(k), INT64), axis=2)
        part = n.step("nn.conv2d", images, tap, **attrs)
        total = part if total is None else n.step("add", total, part)
    assert total is not None
    total = n.step("nn.bias_add", total, bias[0], axis=1) if bias else total
    channels, *size = tensor_type(total).shape[1:]
    y = n.step("reshape", total, newshape=(-1, count, channels, *size))
    return emit("transpose", y, axes=(0, 2, 1, 3, 4))


# ---- transposed convolution ----------------------------------------------------------------------
@converts("ConvTranspose")
def conv_transpose(n: Node) -> Imported:
    """The convolution, with flipped kernels, of data between which stride - 1 zeros lie."""
    rank = n.rank_of(0, 3, 4, 5)
    x, w, t, weight = n.atom(0), n.atom(1), n.type(0), n.type(1)
    if weight.rank != rank:
        raise n.unsupported(f"weights of shape {weight.shape}")
    kernel, groups = weight.static_shape[2:], int(n.attr("group", 1))
    if tuple(n.attr("kernel_shape", kernel)) != kernel:
        raise n.unsupported(f"kernel_shape={n.attr('kernel_shape')} and weights of {kernel}")
    count = len(kernel)
    strides, dilation = spatial(n, "strides", count, 1), spatial(n, "dilations", count, 1)
    more = tuple(n.attr("output_padding", (0,) * count))
    spans = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
    pads = _transposed_pads(n, t.shape[2:], spans, strides, more)
    known = n.constant(1)
    if known is not None and not np.isfinite(known).all():
        return _by_taps(n, pads, strides, dilation, more)
    for i, stride in enumerate(strides):
        x = spread(n, x, 2 + i, stride)
    # of the zeros after each element, those of the last one are part of the padding
    edges = [
        (span - 1 - before, span - after + extra - stride)
        for span, (before, after), extra, stride in zip(spans, pads, more, strides, strict=True)
    ]
    size = tensor_type(x).shape[2:]
    cut = [i for i, e in enumerate(edges) if min(e) < 0]
    if cut:
        if any(not isinstance(size[i], int) for i in cut):
            raise n.unsupported("these pads of a symbolic size; use shapes=...")
        x = n.step(
            "strided_slice", x, axes=tuple(2 + i for i in cut), strides=(1,) * len(cut),
            begin=tuple(max(0, -edges[i][0]) for i in cut),
            end=tuple(size[i] + min(0, edges[i][1]) for i in cut),
        )  # fmt: skip
    kept = [(max(0, before), max(0, after)) for before, after in edges]
    ones = (1,) * count
    bias = [n.atom(2)] if n.has(2) else []
    flipped = _flipped(n, w, weight.static_shape, groups)
    return convolved(n, x, flipped, bias, Windows(kernel, ones, dilation, kept), groups, n.call)


def _by_taps(
    n: Node,
    pads: Sequence[Pair],
    strides: Sequence[int],
    dilation: Sequence[int],
    more: Sequence[int],
) -> Imported:
    """The result as the sum of what each weight of the kernel adds: of weights that are infinite or
    NaN, those that meet no element must not be multiplied by the zeros between and around."""
    x, w, groups = n.atom(0), n.atom(1), int(n.attr("group", 1))
    size = [d for d in n.type(0).shape[2:] if isinstance(d, int)]
    shape = n.type(1).static_shape
    if len(size) != len(shape) - 2:
        raise n.unsupported("infinite weights and a symbolic size; use shapes=...")
    flipped, kernel = _flipped(n, w, shape, groups), shape[2:]
    ones, none = (1,) * len(kernel), [(0, 0)] * len(kernel)
    axes = tuple(range(2, 2 + len(kernel)))
    total: Atom | None = None
    for at in itertools.product(*map(range, kernel)):
        begin = tuple(k - 1 - i for k, i in zip(kernel, at, strict=True))
        end = tuple(b + 1 for b in begin)
        tap = n.step("strided_slice", flipped, begin=begin, end=end, strides=ones, axes=axes)
        part = convolved(n, x, tap, [], Windows(ones, ones, ones, none), groups, n.step)
        # Element j of it lies at j * stride + i * dilation of the whole result, pads included.
        for k, i in enumerate(at):
            whole = (size[k] - 1) * strides[k] + (kernel[k] - 1) * dilation[k] + 1 + more[k]
            part = spread(n, part, 2 + k, strides[k])
            part = _moved(n, part, 2 + k, i * dilation[k] - pads[k][0], whole - sum(pads[k]))
        total = part if total is None else n.step("add", total, part)
    assert total is not None
    return n.call("nn.bias_add", total, n.atom(2), axis=1) if n.has(2) else total


def _moved(n: Node, x: Atom, axis: int, before: int, size: int) -> Atom:
    """`size` elements along an axis: `before` zeros (negative: as many elements of x are cut), then
    those of x, then zeros."""
    own, rank = tensor_type(x).static_shape[axis], tensor_type(x).rank
    first, last = max(0, -before), min(own, size - before)
    if first >= last:  # none of them is part of the result
        shape = [size if k == axis else d for k, d in enumerate(tensor_type(x).shape)]
        return n.step("broadcast_to", scalar(0, tensor_type(x)), shape=tuple(shape))
    x = n.step("strided_slice", x, begin=(first,), end=(last,), strides=(1,), axes=(axis,))
    start = max(0, before)
    edges = (start, size - start - (last - first))
    width = tuple(edges if k == axis else (0, 0) for k in range(rank))
    return n.step("nn.pad", x, pad_width=width, mode="constant", value=0.0)


def _transposed_pads(
    n: Node, size: Sequence[Dim], spans: Sequence[int], strides: Sequence[int], more: Sequence[int]
) -> list[tuple[int, int]]:
    """What is cut from both ends of the whole result, of (size - 1) * stride + span elements."""
    count = len(spans)
    auto = n.expect("auto_pad", "NOTSET", "NOTSET", "", "VALID", "SAME_UPPER", "SAME_LOWER")
    wanted = n.attr("output_shape")
    if wanted is None and auto in ("NOTSET", "", "VALID"):
        pads = (0,) * (2 * count) if auto == "VALID" else tuple(n.attr("pads", (0,) * (2 * count)))
        if len(pads) != 2 * count:
            raise n.unsupported(f"pads={pads} for an input of {count} spatial dimensions")
        return list(zip(pads[:count], pads[count:], strict=True))
    out = []
    for i, (d, span, stride, extra) in enumerate(zip(size, spans, strides, more, strict=True)):
        if wanted is None:  # size * stride elements remain
            total = max(0, span + extra - stride)
        elif isinstance(d, int):
            total = (d - 1) * stride + extra + span - int(tuple(wanted)[-count:][i])
        else:
            raise n.unsupported(f"output_shape and the symbolic size {d}; use shapes=...")
        half = total // 2
        if total < 0:  # more than there is: zeros at the end
            out.append((0, total))
        else:
            out.append((half, total - half) if auto == "SAME_UPPER" else (total - half, half))
    return out


def spread(n: Node, x: Atom, axis: int, stride: int) -> Atom:
    """`x` with stride - 1 zeros after each element along `axis`."""
    if stride == 1:
        return x
    shape = tensor_type(x).shape
    apart = n.step("expand_dims", x, axes=(axis + 1,))
    width = tuple((0, stride - 1 if k == axis + 1 else 0) for k in range(len(shape) + 1))
    apart = n.step("nn.pad", apart, pad_width=width, mode="constant", value=0.0)
    return n.step(
        "reshape", apart, newshape=(*shape[:axis], dim(shape[axis] * stride), *shape[axis + 1 :])
    )


def _flipped(n: Node, w: Atom, shape: Sequence[int], groups: int) -> Atom:
    """Weights [inputs, outputs of a group, ...] as [outputs, inputs of a group, ...], mirrored."""
    ins, outs, *kernel = shape
    if ins % groups:
        raise n.unsupported(f"group={groups} and weights of shape {tuple(shape)}")
    split = n.step("reshape", w, newshape=(groups, ins // groups, outs, *kernel))
    axes = (0, 2, 1, *range(3, 3 + len(kernel)))
    w = n.step("transpose", split, axes=axes)
    w = n.step("reshape", w, newshape=(groups * outs, ins // groups, *kernel))
    return n.step(
        "strided_slice", w, begin=(-1,) * len(kernel), end=tuple(-k - 1 for k in kernel),
        strides=(-1,) * len(kernel), axes=tuple(range(2, 2 + len(kernel))),
    )  # fmt: skip
