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
from compiler.op.gradients.moves import stretch
from compiler.symbolic import Dim, dim


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


@dataclass(frozen=True)
class Axis:
    """How windows lie along an axis of the data.

    Attributes:
        size, windows: how many elements there are, and how many windows.
        kernel, stride, before, dilation: of the windows; zeros before the data.
        rows, more: how many positions are computed of each remainder, and how many more that is
            than there are windows.
    """

    size: Dim
    windows: Dim
    kernel: int
    stride: int
    before: int
    dilation: int
    rows: Dim
    more: int

    def taps(self, remainder: int) -> Taps:
        """See `taps_of`."""
        return taps_of(remainder, self.kernel, self.stride, self.before, self.dilation, self.more)


def taps_of(
    remainder: int, kernel: int, stride: int, before: int, dilation: int, more: int
) -> Taps:
    """The taps that read positions stride * a + remainder, of numbers a from 0 on, of which there
    are `more` than windows.

    Tap k of window o reads position o * stride + k * dilation - before; so a position is read by
    the taps for which remainder + before - k * dilation is a multiple of the stride.
    """
    read = [k for k in range(kernel) if (remainder + before - k * dilation) % stride == 0]
    step = stride // gcd(stride, dilation)
    apart = step * dilation // stride
    if not read:
        return Taps(0, step, 0, apart, 0, 0)
    first = (remainder + before - read[-1] * dilation) // stride  # window of the last tap, a = 0
    return Taps(read[-1], step, len(read), apart, -first, more + first + (len(read) - 1) * apart)


def _axis(
    size: Dim, windows: Dim, kernel: int, stride: int, ends: tuple[int, int], dilation: int
) -> Axis:
    """Of an open size, as many positions of each remainder as there may be at most; those behind
    the data are left out in the end."""
    before, after = ends
    how = (kernel, stride, before, dilation)
    if isinstance(size, int) and isinstance(windows, int):
        rows = -(-size // stride)
        return Axis(size, windows, *how, rows, rows - windows)
    # There are (size + room) // stride + 1 windows.
    room = before + after - (kernel - 1) * dilation - 1
    more = max((t > 0) - (t + room) // stride - 1 for t in range(stride))
    found = [taps_of(r, *how, 0) for r in range(stride)]
    more = max(more, *(-t.after for t in found))
    return Axis(size, windows, *how, dim(windows + more), more)


def data_gradient(
    s: Step,
    w: Value,
    sizes: Sequence[Dim],
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
    windows, kernel = s.type(dy).shape[2:4], known_shape(s.type(w).shape)[2:]
    ends = zip(padding[:2], padding[2:], strict=True)
    given = zip(sizes, windows, kernel, strides, ends, dilation, strict=True)
    down, across = (_axis(*of_one) for of_one in given)
    lines = []
    for r in range(strides[0]):
        parts = [
            _of_taps(s, w, dy, (down, across), (down.taps(r), across.taps(c)), groups)
            for c in range(strides[1])
        ]
        lines.append(_between(s, parts, 3))
    whole = _between(s, lines, 2)
    for k in range(2):
        whole = stretch(s, whole, 2 + k, 0, sizes[k])
    return whole


def _of_taps(
    s: Step, w: Value, dy: Value, axes: Sequence[Axis], taps: Sequence[Taps], groups: int
) -> Value:
    """What flows back into the positions of one remainder along each axis."""
    out, per_group, *kernel = known_shape(s.type(w).shape)
    # Windows before the first that is read are cut off; where sizes are open there may be none left
    # then, so what is computed from them is cut off instead, for which there is one row more.
    over = [
        0 if isinstance(a.rows, int) else max(0, -t.before) for a, t in zip(axes, taps, strict=True)
    ]
    first = [max(0, -t.before) - more for t, more in zip(taps, over, strict=True)]
    kept = [dim(a.windows - b + min(0, t.after)) for a, t, b in zip(axes, taps, first, strict=True)]
    if not all(t.count for t in taps) or any(isinstance(n, int) and n <= 0 for n in kept):
        return s.full(0, (s.type(dy).shape[0], groups * per_group, *(a.rows for a in axes)))
    wide = [k for k in range(2) if kernel[k] > 1]
    if wide:
        w = s.call(
            "strided_slice",
            w,
            begin=tuple(taps[k].last for k in wide),
            end=tuple(taps[k].last - taps[k].step * taps[k].count - kernel[k] for k in wide),
            strides=tuple(-taps[k].step for k in wide),
            axes=tuple(2 + k for k in wide),
        )
    for k in range(2):
        dy = stretch(s, dy, 2 + k, first[k], kept[k])
    behind = [max(0, t.after) + (more > 0) for t, more in zip(taps, over, strict=True)]
    made = s.call(
        "nn.conv2d",
        dy,
        _exchanged(s, w, groups, out, per_group, [t.count for t in taps]),
        padding=(*(max(0, t.before) for t in taps), *behind),
        dilation=tuple(t.dilation for t in taps),
        groups=groups,
        accumulate=getattr(s.attrs, "accumulate", "sequential"),
    )
    for k, more in enumerate(over):
        made = stretch(s, made, 2 + k, more, axes[k].rows) if more else made
    return made


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
