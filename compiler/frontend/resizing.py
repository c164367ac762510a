"""Resize on any axes by any mode: along each axis a sum of a few weighted neighbours.

Formulas are those of the ONNX operator Resize.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from compiler.frontend.node import Node
from compiler.frontend.values import constant_of, scalar
from compiler.ir.expr import Atom, Constant, tensor_type
from compiler.types.dtypes import BOOL, INT64, Array

CUBIC_SLOPE = -0.75
"""Of Keys' kernel at 1, where the node does not say."""


@dataclass(frozen=True)
class Axis:
    """One resized axis: its old and new size, their ratio, and the region (start, end) of it."""

    size: int
    count: int
    scale: float
    roi: tuple[float, float]

    def positions(self, mode: str) -> Array:
        """Position in the data of each element of the result, float64 [count]."""
        i, size = np.arange(self.count, dtype=np.float64), self.size
        wide = self.scale * size
        if mode == "asymmetric":
            return i / self.scale
        if mode == "align_corners":
            return i * (size - 1) / (wide - 1) if wide != 1 else i * 0
        if mode == "tf_crop_and_resize":
            start, end = (r * (size - 1) for r in self.roi)
            if self.count == 1:
                return i + (start + end) / 2
            return start + i * (end - start) / (self.count - 1)
        if mode == "pytorch_half_pixel" and self.count == 1:
            return i * 0
        centre = (i + 0.5) / self.scale - 0.5
        if mode == "half_pixel_symmetric":
            return size / 2 * (1 - self.count / wide) + centre
        return centre


def _linear(distance: Array) -> Array:
    return np.asarray(np.maximum(0, 1 - np.abs(distance)))


def _cubic(a: float) -> Callable[[Array], Array]:
    """Keys' kernel with slope `a` at 1 (IEEE Transactions on Acoustics 29, 1981)."""

    def kernel(distance: Array) -> Array:
        d = np.abs(distance)
        near = ((a + 2) * d - (a + 3)) * d * d + 1
        far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
        return np.where(d <= 1, near, np.where(d < 2, far, 0))

    return kernel


_ROUNDINGS: dict[str, Callable[[Array], Array]] = {
    "floor": np.floor,
    "ceil": np.ceil,
    "round_prefer_floor": lambda x: np.ceil(x - 0.5),
    "round_prefer_ceil": lambda x: np.floor(x + 0.5),
}


def _neighbours(n: Node, axis: Axis, at: Array) -> tuple[Array, Array]:
    """Positions, not yet within the data, and weights of the neighbours: both [taps, count]."""
    mode = n.attr("mode", "nearest")
    if mode == "nearest":
        near = _ROUNDINGS[n.attr("nearest_mode", "round_prefer_floor")](at)
        return near[None].astype(np.int64), np.ones((1, axis.count))
    reach, kernel = (
        (1, _linear) if mode == "linear" else (2, _cubic(n.attr("cubic_coeff_a", CUBIC_SLOPE)))
    )
    squeeze = min(axis.scale, 1.0) if n.attr("antialias", 0) else 1.0
    first = int(np.floor(-reach / squeeze)) + 1
    steps = np.arange(first, 2 - first)[:, None]
    place = np.floor(at)[None] + steps
    weights = kernel((place - at) * squeeze)
    if n.attr("exclude_outside", 0):
        weights = np.where((place >= 0) & (place < axis.size), weights, 0)
    return place.astype(np.int64), weights / weights.sum(axis=0)


def resized(n: Node, x: Atom, axes: dict[int, Axis]) -> Atom:
    """`x` resized along `axes`, one after the other."""
    given = tensor_type(x).dtype
    if given.is_integer and n.attr("mode", "nearest") != "nearest":  # weights are no integers
        x = n.step("cast", x, dtype="float32")
    mode = n.attr("coordinate_transformation_mode", "half_pixel")
    outside = mode == "tf_crop_and_resize"
    masks: list[Array] = []
    rank = tensor_type(x).rank
    for k, axis in axes.items():
        n.reserve(axis.count)
        at = axis.positions(mode)
        shape = [-1 if i == k else 1 for i in range(rank)]
        masks.append(((at < 0) | (at > axis.size - 1)).reshape(shape))
        place, weights = _neighbours(n, axis, at)
        place = np.clip(place, 0, axis.size - 1)
        if len(place) == 2:  # one element twice: times 0 or not, it may be infinite
            weights = np.where(place[0] == place[1], 0.5, weights)
        if len(place) == 1:
            x = n.step("take", x, Constant.of(place[0], INT64), axis=k)
            continue
        total: Atom | None = None
        for p, weight in zip(place, weights, strict=True):
            t = tensor_type(x)
            part = n.step("take", x, Constant.of(p, INT64), axis=k)
            scaled = n.step("multiply", part, constant_of(weight.reshape(shape), t.dtype))
            total = scaled if total is None else n.step("add", total, scaled)
        assert total is not None
        x = total
    t = tensor_type(x)
    if outside and any(m.any() for m in masks):
        n.reserve(*(axis.count for axis in axes.values()))
        mask = np.zeros((1,) * rank, bool)
        for m in masks:
            mask = mask | m
        value = scalar(float(n.attr("extrapolation_value", 0.0)), t)
        x = n.step("where", Constant(mask, BOOL), value, x)
    if t.dtype != given:
        return n.call("cast", x, dtype=str(given))
    return n.call("reshape", x, newshape=t.shape)
