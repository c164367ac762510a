"""Resize whose sizes, scales or region are symbolic, or computed by the program: the formulas of
`compiler.frontend.resizing` in float64, as operators."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce

from compiler.frontend.node import Node
from compiler.frontend.resizing import CUBIC_SLOPE
from compiler.frontend.run_time import Integer, found, number, positions
from compiler.frontend.values import scalar
from compiler.ir.expr import Atom, Constant, tensor_type
from compiler.symbolic import Dim
from compiler.types.dtypes import FLOAT64, INT64
from compiler.types.tensor_types import TensorType

_REAL = TensorType((), FLOAT64)


@dataclass(frozen=True)
class Reals:
    """Arithmetic of float64; Python's numbers are constants."""

    n: Node

    def atom(self, x: Atom | float) -> Atom:
        """A number as a scalar of float64."""
        return scalar(x, _REAL) if isinstance(x, int | float) else x

    def do(self, op: str, *args: Atom | float) -> Atom:
        """An operator of these operands."""
        return self.n.step(op, *map(self.atom, args))

    def of(self, x: Integer) -> Atom:
        """An integer as a float64."""
        return self.n.step("cast", number(self.n, x), dtype="float64")

    def floor(self, x: Atom) -> Atom:
        """The integer below, of int64."""
        return self.n.step("cast", self.n.step("floor", x), dtype="int64")

    def where(self, condition: Atom, a: Atom | float, b: Atom | float) -> Atom:
        """a where the condition holds, else b."""
        return self.n.step("where", condition, self.atom(a), self.atom(b))

    def added(self, parts: list[Atom]) -> Atom:
        """The sum, from the left."""
        return reduce(lambda a, b: self.n.step("add", a, b), parts)


@dataclass(frozen=True)
class ComputedAxis:
    """One resized axis: its sizes before and after, their ratio, and the region of it."""

    size: Dim
    count: Dim
    scale: Atom
    roi: tuple[Atom, Atom] | None

    def positions(self, r: Reals, mode: str) -> Atom:
        """Position in the data of each element of the result, float64 [count]."""
        n = r.n
        i = n.step("cast", positions(n, self.count), dtype="float64")
        size, count = r.of(self.size), r.of(self.count)
        wide = r.do("multiply", self.scale, size)
        if mode == "asymmetric":
            return r.do("divide", i, self.scale)
        if mode == "align_corners":
            span = r.do("multiply", i, r.do("subtract", size, 1))
            at = r.do("divide", span, r.do("subtract", wide, 1))
            return r.where(r.do("equal", wide, 1), 0.0, at)
        if mode == "tf_crop_and_resize":
            assert self.roi is not None
            start, end = (r.do("multiply", x, r.do("subtract", size, 1)) for x in self.roi)
            span = r.do("multiply", i, r.do("subtract", end, start))
            at = r.do("add", start, r.do("divide", span, r.do("subtract", count, 1)))
            middle = r.do("add", i, r.do("divide", r.do("add", start, end), 2))
            return r.where(r.do("equal", count, 1), middle, at)
        centre = r.do("subtract", r.do("divide", r.do("add", i, 0.5), self.scale), 0.5)
        if mode == "pytorch_half_pixel":
            return r.where(r.do("equal", count, 1), 0.0, centre)
        if mode == "half_pixel_symmetric":
            off = r.do("subtract", 1, r.do("divide", count, wide))
            return r.do("add", r.do("multiply", r.do("divide", size, 2), off), centre)
        return centre


def new_size(n: Node, size: Dim, scale: Atom, extent: Atom | None) -> Dim:
    """How many elements an axis has that is scaled."""
    r = Reals(n)
    if extent is None and isinstance(scale, Constant):
        factor = float(scale.data)
        if factor == int(factor):
            return size * int(factor)
        if 1 / factor == int(1 / factor):
            return size // int(1 / factor)
    whole = r.of(size) if extent is None else r.do("multiply", r.of(size), extent)
    return found(n, r.floor(r.do("multiply", whole, scale)))


def _linear(r: Reals, d: Atom) -> Atom:
    return r.do("maximum", 0, r.do("subtract", 1, d))


def _cubic(r: Reals, a: float, d: Atom) -> Atom:
    """See `compiler.frontend.resizing`."""
    near = r.do("subtract", r.do("multiply", d, a + 2), a + 3)
    near = r.do("add", r.do("multiply", r.do("multiply", near, d), d), 1)
    far = r.do("subtract", r.do("multiply", d, a), 5 * a)
    far = r.do("add", r.do("multiply", far, d), 8 * a)
    far = r.do("subtract", r.do("multiply", far, d), 4 * a)
    far = r.where(r.do("less", d, 2), far, 0)
    return r.where(r.do("less_equal", d, 1), near, far)


def _rounded(r: Reals, mode: str, at: Atom) -> Atom:
    if mode == "round_prefer_floor":
        return r.do("ceil", r.do("subtract", at, 0.5))
    if mode == "round_prefer_ceil":
        return r.do("floor", r.do("add", at, 0.5))
    return r.do(mode, at)


def _weights(r: Reals, axis: ComputedAxis, away: Atom, place: Atom) -> Atom:
    """Weights, not yet normal, of neighbours at integers `place`, so far `away`."""
    n = r.n
    d = r.do("abs", away)
    if n.attr("mode", "nearest") == "linear":
        weights = _linear(r, d)
    else:
        weights = _cubic(r, n.attr("cubic_coeff_a", CUBIC_SLOPE), d)
    if n.attr("exclude_outside", 0):
        low = r.do("greater_equal", place, 0)
        inside = n.step("logical_and", low, r.do("less", place, r.of(axis.size)))
        weights = r.where(inside, weights, 0)
    return weights


def _positions_of(r: Reals, axis: ComputedAxis, place: Atom) -> Atom:
    """Integers of float64 as positions inside the data."""
    last = r.do("subtract", r.of(axis.size), 1)
    inside = r.do("minimum", r.do("maximum", place, 0), last)
    return r.n.step("cast", inside, dtype="int64")


def computed_resize(n: Node, axes: dict[int, ComputedAxis]) -> Atom:
    """Input 0 resized along `axes`, one after the other."""
    r, x = Reals(n), n.atom(0)
    given, rank = tensor_type(x).dtype, tensor_type(x).rank
    kind = n.attr("mode", "nearest")
    if given.is_integer and kind != "nearest":  # weights are no integers
        x = n.step("cast", x, dtype="float32")
    mode = n.attr("coordinate_transformation_mode", "half_pixel")
    outside: Atom | None = None
    for k, axis in axes.items():
        at = axis.positions(r, mode)
        if mode == "tf_crop_and_resize":
            last = r.do("subtract", r.of(axis.size), 1)
            far = n.step("logical_or", r.do("less", at, 0), r.do("greater", at, last))
            far = n.step("reshape", far, newshape=_along(k, rank))
            outside = far if outside is None else n.step("logical_or", outside, far)
        if kind == "nearest":
            place = _rounded(r, n.attr("nearest_mode", "round_prefer_floor"), at)
            x = n.step("take", x, _positions_of(r, axis, place), axis=k)
        elif n.attr("antialias", 0):
            x = _smoothed(r, x, k, axis, at)
        else:
            x = _mixed(r, x, k, axis, at)
    if outside is not None:
        t = tensor_type(x)
        value = scalar(float(n.attr("extrapolation_value", 0.0)), t)
        x = n.step("where", outside, value, x)
    if tensor_type(x).dtype != given:
        return n.call("cast", x, dtype=str(given))
    return n.call("reshape", x, newshape=tensor_type(x).shape)


def _along(axis: int, rank: int) -> tuple[int, ...]:
    return tuple(-1 if i == axis else 1 for i in range(rank))


def _reach(n: Node) -> int:
    return 1 if n.attr("mode", "nearest") == "linear" else 2


def _mixed(r: Reals, x: Atom, k: int, axis: ComputedAxis, at: Atom) -> Atom:
    """The sum of a known number of neighbours."""
    n, reach, t = r.n, _reach(r.n), tensor_type(x)
    below = r.do("floor", at)
    places = [r.do("add", below, step) for step in range(1 - reach, reach + 1)]
    weights = [_weights(r, axis, r.do("subtract", p, at), p) for p in places]
    total = r.added(weights)
    weights = [r.do("divide", w, total) for w in weights]
    taken = [_positions_of(r, axis, p) for p in places]
    if len(places) == 2:  # one element twice: times 0 or not, it may be infinite
        same = n.step("equal", *taken)
        weights = [r.where(same, 0.5, w) for w in weights]
    parts = []
    for place, weight in zip(taken, weights, strict=True):
        w = n.step("reshape", weight, newshape=_along(k, t.rank))
        if t.dtype != FLOAT64:
            w = n.step("cast", w, dtype=str(t.dtype))
        parts.append(n.step("multiply", n.step("take", x, place, axis=k), w))
    return r.added(parts)


def _smoothed(r: Reals, x: Atom, k: int, axis: ComputedAxis, at: Atom) -> Atom:
    """The sum of as many neighbours as the scale asks for."""
    n, reach, t = r.n, _reach(r.n), tensor_type(x)
    squeeze = r.do("minimum", axis.scale, 1)
    first = r.do("add", r.do("floor", r.do("divide", -reach, squeeze)), 1)
    two = Constant.of(2, INT64)
    whole = r.floor(first)
    taps = found(n, n.step("subtract", two, n.step("multiply", whole, two)))
    steps = n.step("add", n.step("cast", positions(n, taps), dtype="float64"), first)
    wide = n.step("expand_dims", at, axes=(1,))
    place = n.step("add", n.step("floor", wide), n.step("expand_dims", steps, axes=(0,)))
    away = r.do("multiply", n.step("subtract", place, wide), squeeze)
    weights = _weights(r, axis, away, place)
    total = n.step("sum", weights, axis=(1,), keepdims=True)
    weights = n.step("divide", weights, total)
    if t.dtype != FLOAT64:
        weights = n.step("cast", weights, dtype=str(t.dtype))
    shape = (axis.count, taps, *(1 for _ in t.shape[k + 1 :]))
    rows = n.step("take", x, _positions_of(r, axis, place), axis=k)
    scaled = n.step("multiply", rows, n.step("reshape", weights, newshape=shape))
    return n.step("sum", scaled, axis=(k + 1,), keepdims=False)
