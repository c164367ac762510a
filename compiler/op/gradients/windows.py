"""Rules of convolutions and pooling: to data, a convolution of the cotangent with the weights the
other way round; to weights, products of the data under each tap with the cotangent (Dumoulin and
Visin, A guide to convolution arithmetic for deep learning, 2016, chapter 4)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from compiler.op.common import known_shape
from compiler.op.gradient import Parts, Step, Value
from compiler.op.gradients.common import in_cotangents_dtype, last_two_turned, reshaped, turned
from compiler.op.gradients.moves import padded, stretch
from compiler.op.gradients.transposed_convolution import data_gradient
from compiler.symbolic import Dim
from compiler.symbolic import product as count
from compiler.types.dtypes import Array

_SIDE_BY_SIDE = 4
"""Columns of a product that are computed side by side, on any CPU: of groups with fewer outputs, as
in depthwise convolutions, the taps are the columns instead."""
Divisors = Callable[[Any, Sequence[int], Sequence[int]], Array]


def conv2d(s: Step) -> Parts:
    """To data a transposed convolution of the cotangent (`data_gradient`); to weights the sum over
    batch, rows and columns of products of the cotangent with the data under it; to the bias the
    sums of channels."""
    a = s.attrs
    if a.input_zero_point or a.padding_value or a.data_layout != "NCHW" or a.out_layout != "NCHW":
        raise s.refuse("it works on integers, or on channels in blocks")
    x, w = (in_cotangents_dtype(s, v) for v in s.args[:2])
    parts: list[Value | None] = [None] * len(s.args)
    if s.wants[0]:
        parts[0] = data_gradient(
            s, w, s.type(x).shape[2:4], a.strides, a.padding, a.dilation, a.groups
        )
    if s.wants[1]:
        parts[1] = _weight_gradient(s, x, known_shape(s.type(w).shape))
    if len(s.args) > 2 and s.wants[2]:
        parts[2] = s.call("sum", s.cotangent, axis=(0, 2, 3))
    return parts


def _weight_gradient(s: Step, x: Value, shape: Sequence[int]) -> Value:
    """(O, I / groups, KH, KW): for each group a matrix of the data under every tap, a row for each
    tap and channel, times the cotangent's channels. Sums go over batch, rows and columns."""
    out, per_group, high, wide = shape
    a, groups = s.attrs, s.attrs.groups
    axes = [
        _Taps(n, *of_one)
        for n, *of_one in zip(
            s.type(s.cotangent).shape[2:4], a.strides, a.dilation, (high, wide), strict=True
        )
    ]
    top, left, bottom, right = a.padding
    ends = [(top, bottom + axes[0].spare), (left, right + axes[1].spare)]
    data = padded(s, turned(s, x, [1, 0, 2, 3]), [(0, 0), (0, 0), *ends])
    taps = []
    for kh, kw in product(range(high), range(wide)):
        rows = axes[0].seen(s, data, 2, kh)
        taps.append(axes[1].seen(s, rows, 3, kw))
    terms = count(s.type(s.cotangent).shape[k] for k in (0, 2, 3))
    dy = reshaped(s, turned(s, s.cotangent, [1, 0, 2, 3]), [out, terms])
    seen = s.call("concatenate", *taps, axis=0) if len(taps) > 1 else taps[0]
    how = {"accumulate": a.accumulate}
    if groups == 1:
        under = reshaped(s, seen, [high * wide * per_group, terms])
        made = s.call("nn.dense", under, dy, **how)
        return turned(s, reshaped(s, made, [high, wide, per_group, out]), [3, 2, 0, 1])
    parted = reshaped(s, seen, [high * wide, groups, per_group, terms])
    flows = reshaped(s, dy, [groups, out // groups, terms])
    if out // groups < min(_SIDE_BY_SIDE, high * wide * per_group):
        under = turned(s, parted, [1, 3, 0, 2])
        under = reshaped(s, under, [groups, terms, high * wide * per_group])
        made = s.call("nn.matmul", flows, under, **how)
        apart = reshaped(s, made, [out, high, wide, per_group])
        return turned(s, apart, [0, 3, 1, 2])
    under = reshaped(s, turned(s, parted, [1, 0, 2, 3]), [groups, high * wide * per_group, terms])
    made = s.call("nn.matmul", under, last_two_turned(s, flows), **how)
    apart = reshaped(s, made, [groups, high, wide, per_group, out // groups])
    return reshaped(s, turned(s, apart, [0, 4, 3, 1, 2]), shape)


@dataclass(frozen=True)
class _Taps:
    """What the taps of all windows lie on along an axis: how many windows, their stride, how far
    apart taps are, and how many."""

    windows: Dim
    stride: int
    dilation: int
    kernel: int

    @property
    def spare(self) -> int:
        """Zeros behind padded data of an open size, so that something is behind every tap."""
        return 0 if isinstance(self.windows, int) or self.kernel == self.stride == 1 else 1

    def seen(self, s: Step, data: Value, axis: int, tap: int) -> Value:
        """What one tap lies on."""
        behind = (self.kernel - 1 - tap) * self.dilation + self.spare
        first = tap * self.dilation
        return stretch(s, data, axis, first, self.windows, self.stride, behind)


def max_pool2d(s: Step) -> Parts:
    """To the first of the largest elements under each window what flows back into it, added up in
    the order of the windows."""
    (x,), t = s.args, s.type(s.args[0])
    if t.rank != 4:
        raise s.refuse("its channels are in blocks")
    batch, channels, *sizes = t.shape
    places = s.call("nn.max_pool2d_positions", x, **vars(s.attrs))
    plane, windows = count(sizes), count(s.type(s.cotangent).shape[2:])
    total = s.call(
        "scatter_elements",
        s.full(0, (batch, channels, plane)),
        reshaped(s, places, [batch, channels, windows]),
        reshaped(s, s.cotangent, [batch, channels, windows]),
        axis=2,
        reduction="add",
    )
    return [reshaped(s, total, t.shape)]


def mean_pool2d(divisors: Divisors) -> Callable[[Step], Parts]:
    """Of a mean under a window: dy over the number of terms, to each of them. `divisors`: (attrs,
    sizes of the data, sizes of the result) -> how many terms each has."""

    def rule(s: Step) -> Parts:
        (x,), a = s.args, s.attrs
        t = s.type(x)
        sizes, windows = t.shape[2:4], s.type(s.result).shape[2:4]
        if t.rank != 4 or not isinstance(t.shape[1], int):
            raise s.refuse("its channels are in blocks, or not a known number")
        if all(isinstance(n, int) for n in (*sizes, *windows)):
            counts = s.numbers(divisors(a, known_shape(sizes), known_shape(windows)))
        elif a.ceil_mode or a.partial:
            raise s.refuse(
                "its last windows may be partial, and its size is open: give it fixed sizes"
            )
        else:
            counts = _counts(s, sizes)
        share = s.cotangent / counts
        ones = s.full(1, (t.shape[1], 1, *a.pool_size))
        how = (a.strides, a.padding, a.dilation, t.shape[1], share)
        return [data_gradient(s, ones, sizes, *how)]

    return rule


def _counts(s: Step, sizes: Sequence[Dim]) -> Value:
    """How many elements the mean under each window is of, where sizes are open: the sum of ones."""
    a = s.attrs
    if a.count_include_pad:
        return s.number(a.pool_size[0] * a.pool_size[1])
    how = {"strides": a.strides, "padding": a.padding, "dilation": a.dilation}
    plane = s.full(1, (1, 1, *sizes))
    return s.call("nn.conv2d", plane, s.full(1, (1, 1, *a.pool_size)), **how)
