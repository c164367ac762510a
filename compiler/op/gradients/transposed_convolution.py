"""What flows back into a convolution's data: a transposed convolution, as convolutions of stride 1.

Along an axis of stride s, positions of the data that differ by multiples of s have been read by the
same taps. For each remainder there is a convolution of the cotangent with just these, and the
results are put between each other; no zeros are multiplied (Shi et al., Is the deconvolution layer
the same as a convolutional layer?, 2016).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd

from compiler.op.common import known_shape
from compiler.op.gradient import Step, Value
from compiler.op.gradients.common import reshaped, turned
from compiler.op.gradients.moves import cut


@dataclass(frozen=True)
class Taps:
    """The taps that have read the positions of one remainder along an axis.

    Attributes:
        last, step, count: the last of them, how far apart they are, and how many: none, 0.
        dilation: how far apart their windows are.
        before: how many rows of zeros the cotangent needs before it, or (negative) has too many.
        after: the same behind it.
    """

    last: int
    step: int
    count: int
    dilation: int
    before: int
    after: int


def taps_of(
    remainder: int, kernel: int, stride: int, before: int, dilation: int, rows: int, windows: int
) -> Taps:
    """The taps that read positions stride * a + remainder, of `rows` numbers a, from 0 on.

    Tap k of window o reads position o * stride + k * dilation - before; so a position is read by
    the taps for which remainder + before - k * dilation is a multiple of the stride.
    """
    read = [k for k in range(kernel) if (remainder + before - k * dilation) % stride == 0]
    step = stride // gcd(stride, dilation)
    apart = step * dilation // stride
    if not read:
        return Taps(0, step, 0, apart, 0, 0)
    first = (remainder + before - read[-1] * dilation) // stride  # window of the last tap, a = 0
    end = rows - 1 + first + (len(read) - 1) * apart
    return Taps(read[-1], step, len(read), apart, -first, end - (windows - 1))


def data_gradient(
    s: Step,
    w: Value,
    sizes: Sequence[int],
    strides: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    dy: Value | None = None,
) -> Value:
    """What flows back into data of these sizes through a convolution with `w`.

    Each position gets, in the order of output channels and of windows, the sum of the cotangents of
    the windows that have read it, times the weights with which they have.
    """
    dy = s.cotangent if dy is None else dy
    windows = known_shape(s.type(dy).shape[2:4])
    kernel = known_shape(s.type(w).shape)[2:]
    rows = [-(-n // stride) for n, stride in zip(sizes, strides, strict=True)]
    lines = []
    for r in range(strides[0]):
        parts = []
        for c in range(strides[1]):
            taps = [
                taps_of(rest, kernel[k], strides[k], padding[k], dilation[k], rows[k], windows[k])
                for k, rest in enumerate((r, c))
            ]
            parts.append(_of_taps(s, w, dy, taps, rows, groups))
        lines.append(_between(s, parts, 3))
    whole = _between(s, lines, 2)
    for k in range(2):
        whole = cut(s, whole, 2 + k, 0, sizes[k])
    return whole


def _of_taps(
    s: Step, w: Value, dy: Value, taps: Sequence[Taps], rows: Sequence[int], groups: int
) -> Value:
    """What flows back into the positions of one remainder along each axis."""
    out, per_group, *kernel = known_shape(s.type(w).shape)
    windows = known_shape(s.type(dy).shape[2:4])
    kept = [(max(0, -t.before), n + min(0, t.after)) for t, n in zip(taps, windows, strict=True)]
    if not all(t.count for t in taps) or any(begin >= end for begin, end in kept):
        return s.full(0, (s.type(dy).shape[0], groups * per_group, *rows))
    axes = [k for k in range(2) if kernel[k] > 1]
    if axes:
        w = s.call(
            "strided_slice",
            w,
            begin=tuple(taps[k].last for k in axes),
            end=tuple(taps[k].last - taps[k].step * taps[k].count - kernel[k] for k in axes),
            strides=tuple(-taps[k].step for k in axes),
            axes=tuple(2 + k for k in axes),
        )
    for k, (begin, end) in enumerate(kept):
        dy = cut(s, dy, 2 + k, begin, end)
    return s.call(
        "nn.conv2d",
        dy,
        _exchanged(s, w, groups, out, per_group, [t.count for t in taps]),
        padding=(*(max(0, t.before) for t in taps), *(max(0, t.after) for t in taps)),
        dilation=tuple(t.dilation for t in taps),
        groups=groups,
        accumulate=getattr(s.attrs, "accumulate", "sequential"),
    )


def _between(s: Step, parts: Sequence[Value], axis: int) -> Value:
    """Position a of part r becomes position a * len(parts) + r along an axis."""
    if len(parts) == 1:
        return parts[0]
    shape = s.type(parts[0]).shape
    apart = [s.call("expand_dims", p, axes=(axis + 1,)) for p in parts]
    both = s.call("concatenate", *apart, axis=axis + 1)
    return reshaped(s, both, [*shape[:axis], shape[axis] * len(parts), *shape[axis + 1 :]])


def _exchanged(
    s: Step, w: Value, groups: int, out: int, per_group: int, kernel: Sequence[int]
) -> Value:
    """Weights (O, I / groups, ...) as (I, O / groups, ...)."""
    if groups == 1:
        return turned(s, w, [1, 0, 2, 3])
    apart = reshaped(s, w, [groups, out // groups, per_group, *kernel])
    return reshaped(
        s, turned(s, apart, [0, 2, 1, 3, 4]), [groups * per_group, out // groups, *kernel]
    )
