"""Reading images between their elements: what GridSample, RoiAlign and DeformConv have in common.

Data is kept with its channels last, [batch, *size, channels]; positions are one tensor per axis,
[batch, points], in elements of the data. Everything is a composition of ordinary operators.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from compiler.frontend.node import Node
from compiler.frontend.run_time import number
from compiler.frontend.values import scalar
from compiler.ir.expr import Atom, tensor_type
from compiler.symbolic import Dim

_SLOPE = -0.75
"""Of the cubic kernel at distance 1."""


@dataclass(frozen=True)
class Tap:
    """A neighbour along one axis: its position (a whole number, as a float), its weight, and
    whether it exists (else what is read in its place counts as 0, even if it is infinite)."""

    at: Atom
    weight: Atom | None
    there: Atom | None = None


@dataclass(frozen=True)
class Sampler:
    """Reads data at real positions.

    Attributes:
        n: the node that is converted.
        data: [batch, *size, channels].
        size: of the axes that positions are of.
        padding: what lies outside: zeros, border (the nearest element) or reflection.
        edges: lower and upper border of each axis, for reflection.
    """

    n: Node
    data: Atom
    size: tuple[Dim, ...]
    padding: str = "zeros"
    edges: tuple[tuple[float, float], ...] = ()

    # ---- arithmetic ------------------------------------------------------------------------------
    def do(self, op: str, a: Atom, b: Atom | float) -> Atom:
        """A step of two operands, the second of which may be a number."""
        right = scalar(b, tensor_type(a)) if isinstance(b, (int, float)) else b
        return self.n.step(op, a, right)

    def length(self, axis: int, more: int = 0) -> Atom | float:
        """The size of an axis and `more`, as a float."""
        size = self.size[axis]
        if isinstance(size, int):
            return float(size + more)
        whole = number(self.n, size + more)
        return self.n.step("cast", whole, dtype=str(tensor_type(self.data).dtype))

    def both(self, op: str, a: Atom, low: float, high: Atom | float) -> Atom:
        """Whether `a` is between two numbers ("within"), or `a` limited to them ("clip")."""
        if op == "clip" and not isinstance(high, float):
            return self.do("minimum", self.do("maximum", a, low), high)
        if op == "clip":
            return self.n.step("clip", a, a_min=low, a_max=high)
        above, below = self.do("greater_equal", a, low), self.do("less_equal", a, high)
        return self.n.step("logical_and", above, below)

    # ---- positions -------------------------------------------------------------------------------
    def placed(self, axis: int, at: Atom) -> Atom:
        """A position that lies outside, moved inside as the padding says."""
        low, high = self.edges[axis]
        if self.padding == "zeros":
            return at
        if self.padding == "border":
            # Half an element outside, both neighbours are the same one, half of it each.
            clipped = self.both("clip", at, -0.5, self._known(axis) - 0.5)
            return self.n.step("where", self.both("within", at, low, high), at, clipped)
        return self.reflected(at, low, high)

    def _known(self, axis: int) -> int:
        size = self.size[axis]
        if not isinstance(size, int):
            raise self.n.unsupported(f"the symbolic size {size}; use shapes=...")
        return size

    def reflected(self, at: Atom, low: float, high: float) -> Atom:
        """`at`, reflected at both borders as often as it takes."""
        if high == low:
            return self.do("multiply", at, 0.0)
        away = self.n.step("abs", self.do("subtract", at, low))
        turns = self.n.step("floor", self.do("divide", away, 2 * (high - low)))
        rest = self.do("subtract", away, self.do("multiply", turns, 2 * (high - low)))
        back = self.n.step("negative", self.do("subtract", rest, 2 * (high - low)))
        return self.do("add", self.n.step("minimum", rest, back), low)

    def cell(self, axis: int, tap: Tap) -> Tap:
        """A neighbour that exists; outside, the padding says which one, or that it counts
        as 0."""
        last = self.length(axis, -1)
        at = tap.at
        if self.padding == "reflection":
            at = self.reflected(at, *self.edges[axis])
        inside = self.both("clip", at, 0.0, last)
        if self.padding != "zeros":
            return Tap(inside, tap.weight)
        here = self.both("within", at, 0.0, last)
        if tap.weight is None:
            return Tap(inside, None, here)
        # a weight that is infinite or NaN must not spread from outside
        weight = self.n.step("where", here, tap.weight, scalar(0, tensor_type(at)))
        return Tap(inside, weight, here)

    # ---- neighbours ------------------------------------------------------------------------------
    def nearest(self, at: Atom) -> list[Tap]:
        """The nearest element; of two, the even one."""
        return [Tap(self.n.step("round", at), None)]

    def linear(self, at: Atom) -> list[Tap]:
        """The elements around the position."""
        below = self.n.step("floor", at)
        part = self.do("subtract", at, below)
        rest = self.n.step("negative", self.do("subtract", part, 1))
        return [Tap(below, rest), Tap(self.do("add", below, 1), part)]

    def cubic(self, at: Atom) -> list[Tap]:
        """Two elements on either side, by Keys' kernel (IEEE Transactions on Acoustics 29)."""
        a, below = _SLOPE, self.n.step("floor", at)
        part = self.do("subtract", at, below)
        rest = self.n.step("negative", self.do("subtract", part, 1))
        near, far = (a + 2, -(a + 3), 0, 1), (a, -5 * a, 8 * a, -4 * a)
        terms = (
            (-1, self.do("add", part, 1), far), (0, part, near), (1, rest, near),
            (2, self.do("add", rest, 1), far),
        )  # fmt: skip
        return [Tap(self.do("add", below, k), self.polynomial(d, c)) for k, d, c in terms]

    def polynomial(self, x: Atom, coefficients: Sequence[float]) -> Atom:
        """By Horner's rule, the highest power first."""
        out = self.do("multiply", x, coefficients[0])
        for k, c in enumerate(coefficients[1:]):
            out = self.do("add", out, c)
            out = out if k == len(coefficients) - 2 else self.n.step("multiply", out, x)
        return out

    # ---- values ----------------------------------------------------------------------------------
    def weighted(self, taps: Sequence[Sequence[Tap]], batch: Atom | None = None) -> list[Atom]:
        """The products of neighbours and weights, [batch, points, channels] each.

        `batch`: for each row of points, int64 [rows, 1], the part of the data that it reads;
        without it, row k reads part k.
        """
        out = []
        cells = [[self.cell(k, t) for t in axis] for k, axis in enumerate(taps)]
        for chosen in itertools.product(*cells):
            index = [self.n.step("cast", t.at, dtype="int64") for t in chosen]
            if batch is not None:
                shape = tensor_type(index[0]).shape
                index.insert(0, self.n.step("broadcast_to", batch, shape=shape))
            at = self.n.step(
                "concatenate", *(self.n.step("expand_dims", i, axes=(2,)) for i in index), axis=2
            )
            value = self.n.step("gather_nd", self.data, at, batch_dims=int(batch is None))
            there = [t.there for t in chosen if t.there is not None]
            if there:
                exists = self.n.step("expand_dims", self.combined("logical_and", there), axes=(2,))
                zero = scalar(0, tensor_type(value))
                value = self.n.step("where", exists, value, zero)
            weights = [t.weight for t in chosen if t.weight is not None]
            if weights:
                whole = self.combined("multiply", weights)
                wide = self.n.step("expand_dims", whole, axes=(2,))
                value = self.n.step("multiply", value, wide)
            out.append(value)
        return out

    def combined(self, op: str, parts: Sequence[Atom]) -> Atom:
        """The parts under `op`, from the left."""
        total = parts[0]
        for p in parts[1:]:
            total = self.n.step(op, total, p)
        return total


def channels_last(n: Node, x: Atom) -> Atom:
    """[batch, channels, ...] as [batch, ..., channels]."""
    rank = tensor_type(x).rank
    return n.step("transpose", x, axes=(0, *range(2, rank), 1))
