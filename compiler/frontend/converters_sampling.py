"""Converters of operators that read images at computed positions: GridSample, RoiAlign,
DeformConv."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from compiler.frontend.node import Node, converts
from compiler.frontend.sampling import Sampler, channels_last
from compiler.frontend.values import Imported, constant_of, scalar
from compiler.frontend.windows import Windows, windows
from compiler.ir.expr import Atom, Constant
from compiler.types.dtypes import INT64, Array
from compiler.types.tensor_types import TensorType

_MODES = {"nearest": "nearest", "linear": "linear", "bilinear": "linear", "cubic": "cubic",
          "bicubic": "cubic"}  # fmt: skip


def _size(n: Node, t: TensorType) -> tuple[int, ...]:
    size = t.shape[2:]
    if not all(isinstance(d, int) for d in size):
        raise n.unsupported(f"the symbolic image {t}; use shapes=...")
    return tuple(d for d in size if isinstance(d, int))


@converts("GridSample")
def grid_sample(n: Node) -> Imported:
    """Any number of axes; the grid holds positions from -1 to 1, the last axis first."""
    mode = _MODES[n.expect("mode", "linear" if n.opset >= 20 else "bilinear", *_MODES)]
    padding = n.expect("padding_mode", "zeros", "zeros", "border", "reflection")
    aligned = bool(n.attr("align_corners", 0))
    t, grid = n.type(0), n.type(1)
    size = _size(n, t)
    if grid.rank != t.rank or grid.shape[-1] != len(size) or grid.shape[0] != t.shape[0]:
        raise n.unsupported(f"a grid {grid} for an image {t}")
    edges = tuple((0.0, d - 1.0) if aligned else (-0.5, d - 0.5) for d in size)
    s = Sampler(n, channels_last(n, n.atom(0)), size, padding, edges)
    points = n.step("reshape", n.atom(1), newshape=(t.shape[0], -1, len(size)))
    taps = []
    for axis, d in enumerate(size):
        one = _part(n, points, len(size) - 1 - axis, 2)
        at = s.do("add", one, 1.0)
        at = s.do("multiply", at, (d - 1) / 2) if aligned else s.do(
            "divide", s.do("subtract", s.do("multiply", at, float(d)), 1.0), 2.0
        )  # fmt: skip
        at = n.step("round", at) if mode == "nearest" else at
        if mode != "cubic":  # its neighbours are moved one by one, as other runtimes do
            at = s.placed(axis, at)
        taps.append(getattr(s, mode)(at))
    values = n.step("transpose", s.combined("add", s.weighted(taps)), axes=(0, 2, 1))
    return n.call("reshape", values, newshape=(*t.shape[:2], *grid.shape[1:-1]))


@converts("RoiAlign")
def roi_align(n: Node) -> Imported:
    """A fixed number of bilinear samples in each cell of each region, averaged or the largest."""
    mode = n.expect("mode", "avg", "avg", "max")
    half = n.expect(
        "coordinate_transformation_mode", "half_pixel" if n.opset >= 16 else "output_half_pixel",
        "half_pixel", "output_half_pixel",
    ) == "half_pixel"  # fmt: skip
    ratio = int(n.attr("sampling_ratio", 0))
    if ratio < 1:
        raise n.unsupported("sampling_ratio=0: the number of samples depends on the regions")
    high, wide = int(n.attr("output_height", 1)), int(n.attr("output_width", 1))
    t, size = n.type(0), n.type(0).shape[2:]
    s = Sampler(n, channels_last(n, n.atom(0)), size, "border", ((0.0, 0.0),) * 2)
    scale = float(n.attr("spatial_scale", 1.0))
    corners = s.do("subtract", s.do("multiply", n.atom(1), scale), 0.5 if half else 0.0)
    n.reserve(high * wide * ratio * ratio)
    taps = []
    outside: Atom | None = None
    for axis, cells in enumerate((high, wide)):
        start, end = (_corner(n, corners, k) for k in (1 - axis, 3 - axis))
        extent = s.do("subtract", end, start)
        if not half:
            extent = s.do("maximum", extent, 1.0)
        # samples lie in the middles of the parts of each cell
        steps = (np.arange(cells * ratio) + 0.5) / ratio / cells
        grid = np.broadcast_to(
            steps.reshape((cells, ratio, 1, 1) if axis == 0 else (1, 1, cells, ratio)),
            (high, ratio, wide, ratio),
        )
        inner = constant_of(grid.transpose(0, 2, 1, 3).reshape(1, -1), t.dtype)
        at = n.step("add", start, n.step("multiply", extent, inner))
        out = n.step("logical_not", s.both("within", at, -1.0, s.length(axis)))
        outside = out if outside is None else n.step("logical_or", outside, out)
        taps.append(s.linear(s.both("clip", at, 0.0, s.length(axis, -1))))
    rows = n.step("cast", n.step("reshape", n.atom(2), newshape=(-1, 1)), dtype="int64")
    parts = s.weighted(taps, rows)
    value = s.combined("add" if mode == "avg" else "maximum", parts)
    assert outside is not None
    value = n.step("where", n.step("expand_dims", outside, axes=(2,)), scalar(0, t), value)
    shape = (n.type(1).shape[0], high, wide, ratio * ratio, t.shape[1])
    cells_of = n.step("reshape", value, newshape=shape)
    merged = n.step("mean" if mode == "avg" else "max", cells_of, axis=(3,), keepdims=False)
    return n.call("transpose", merged, axes=(0, 3, 1, 2))


def _corner(n: Node, corners: Atom, k: int) -> Atom:
    """[regions, 1]: one coordinate of each region."""
    return n.step("strided_slice", corners, begin=(k,), end=(k + 1,), axes=(1,))


def _of_group(n: Node, x: Atom, group: int, size: int, axis: int) -> Atom:
    """What a tensor holds of a group, `size` elements along an axis."""
    begin, end = (group * size,), ((group + 1) * size,)
    return n.step("strided_slice", x, begin=begin, end=end, axes=(axis,))


@dataclass(frozen=True)
class _Moved:
    """Where the kernel of a DeformConv reads.

    Attributes:
        at: the windows without their offsets.
        out: rows and columns of the result.
        groups: of channels that share offsets.
    """

    at: Windows
    out: tuple[int, int]
    groups: int

    def base(self, axis: int, tap: int) -> Array:
        """Position of a kernel element along an axis, for each element of the result."""
        first = tap * self.at.dilation[axis] - self.at.pads[axis][0]
        line = np.arange(self.out[axis]) * self.at.strides[axis] + first
        return np.broadcast_to(line[:, None] if axis == 0 else line, self.out).reshape(1, -1)


@converts("DeformConv")
def deform_conv(n: Node) -> Imported:
    """A 2-D convolution whose kernel elements read at positions that are moved by offsets."""
    n.rank_of(0, 4)
    t, weight = n.type(0), n.type(1)
    kernel, outputs = weight.static_shape[2:], weight.static_shape[0]
    groups, moved = int(n.attr("group", 1)), int(n.attr("offset_group", 1))
    channels = t.shape[1]
    if not isinstance(channels, int) or channels % moved or channels != groups * weight.shape[1]:
        raise n.unsupported(f"weights {weight} in {groups} groups, {moved} offset groups and {t}")
    rows, columns = _size(n, n.type(2))
    n.reserve(rows, columns)
    samples = _samples(n, _Moved(windows(n, t, kernel), (rows, columns), moved))
    matrix = n.step("reshape", n.atom(1), newshape=(outputs, -1, len(samples)))
    inner, outer = channels // groups, outputs // groups
    results = []
    for g in range(groups):
        mine = _of_group(n, matrix, g, outer, 0) if groups > 1 else matrix
        total: Atom | None = None
        for k, value in enumerate(samples):
            part = _of_group(n, value, g, inner, 2) if groups > 1 else value
            plane = n.step("transpose", _part(n, mine, k, 2), axes=(1, 0))
            product = n.step("nn.matmul", part, plane)
            total = product if total is None else n.step("add", total, product)
        if total is None:
            raise n.unsupported("a kernel without elements")
        results.append(total)
    y = n.step("concatenate", *results, axis=2) if groups > 1 else results[0]
    if n.has(3):
        y = n.step("add", y, n.atom(3))
    y = n.step("transpose", y, axes=(0, 2, 1))
    return n.call("reshape", y, newshape=(t.shape[0], outputs, rows, columns))


def _samples(n: Node, moved: _Moved) -> list[Atom]:
    """For each element of the kernel what it reads: [batch, points, channels]."""
    t, size = n.type(0), _size(n, n.type(0))
    batch, channels = t.shape[:2]
    shape = (batch, moved.groups, channels // moved.groups, *size)
    data = n.step("reshape", n.atom(0), newshape=shape)
    taps = math.prod(moved.at.kernel)
    offsets = n.step("reshape", n.atom(2), newshape=(batch, moved.groups, taps, 2, -1))
    masks = None
    if n.has(4):
        masks = n.step("reshape", n.atom(4), newshape=(batch, moved.groups, taps, -1))
    out: list[list[Atom]] = [[] for _ in range(taps)]
    for g in range(moved.groups):
        s = Sampler(n, channels_last(n, _part(n, data, g, 1)), size)
        of_group = _part(n, offsets, g, 1)
        for k, values in enumerate(out):
            shift = _part(n, of_group, k, 1)
            neighbours = []
            for axis, tap in enumerate(divmod(k, moved.at.kernel[1])):
                base = constant_of(moved.base(axis, tap), t.dtype)
                neighbours.append(s.linear(n.step("add", _part(n, shift, axis, 1), base)))
            value = s.combined("add", s.weighted(neighbours))
            if masks is not None:
                kept = _part(n, _part(n, masks, g, 1), k, 1)
                value = n.step("multiply", value, n.step("expand_dims", kept, axes=(2,)))
            values.append(value)
    return [n.step("concatenate", *v, axis=2) if moved.groups > 1 else v[0] for v in out]


def _part(n: Node, x: Atom, k: int, axis: int) -> Atom:
    """Element `k` of an axis, which is gone."""
    return n.step("take", x, Constant.of(np.int64(k), INT64), axis=axis)
