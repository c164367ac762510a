"""Slice, by bounds that are known, symbolic, or found at run time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from compiler.frontend.node import Node, converts
from compiler.frontend.run_time import Integer, found, integers, number, positions, spread, steps
from compiler.frontend.values import Imported
from compiler.ir.expr import Atom
from compiler.symbolic import Dim, Index, ceil_div, dim


@converts("Slice")
def slice_(n: Node) -> Imported:
    """Start, end, axes and steps are attributes before opset 10 and inputs from it on."""
    t = n.type(0)
    starts: Sequence[Integer]
    ends: Sequence[Integer]
    if n.opset < 10:
        starts, ends = n.need("starts"), n.need("ends")
        axes = tuple(n.attr("axes", tuple(range(len(starts)))))
        strides = (1,) * len(starts)
    else:
        starts, ends = integers(n, 1), integers(n, 2)
        by: Sequence[Integer] = integers(n, 4) if n.has(4) else (1,) * len(starts)
        if n.has(3) and n.constant(3) is None:
            far = 2**63 - 1
            starts, ends, by = spread(n, 3, t.rank, (starts, 0), (ends, far), (by, 1))
            axes = tuple(range(t.rank))
        else:
            axes = tuple(map(int, n.known(3, "axes"))) if n.has(3) else tuple(range(len(starts)))
        if not all(isinstance(s, int) for s in by):
            return _by_steps(n, starts, ends, axes, by)
        strides = tuple(s for s in by if isinstance(s, int))
    lengths = list(t.shape)
    plain: list[tuple[int, int, int, int]] = []
    rest: list[tuple[int, Cut]] = []
    for start, end, axis, step in zip(starts, ends, axes, strides, strict=True):
        at = n.front(axis, t.rank)
        size = t.shape[at]
        if step == 0:
            raise n.unsupported("a step of 0")
        if step == 1 and start == 0 and (end == size or is_far(end)):
            continue
        if isinstance(start, int) and isinstance(end, int) and n.graph.is_given(Index.of(size)):
            known = _cut(start, end, step, size)
            if known is not None and isinstance(size, int):
                lengths[at] = len(range(*slice(*known).indices(size)))
            plain += [] if known is None else [(*known, at)]
        else:
            rest.append((at, cut(n, start, end, step, size)))
    if 0 in lengths:
        return n.empty(lengths, t.dtype)
    if not plain and not rest:
        return n.value(0)
    x = n.atom(0)
    if plain:
        begin, stop, by, on = zip(*sorted(plain, key=lambda c: c[3]), strict=True)
        emit = n.step if rest else n.call
        x = emit("strided_slice", x, begin=begin, end=stop, strides=by, axes=on)
    for k, (axis, c) in enumerate(rest):
        emit = n.call if k == len(rest) - 1 else n.step
        x = emit("take", x, c.positions(n), axis=axis)
    return x


def _by_steps(
    n: Node,
    starts: Sequence[Integer],
    ends: Sequence[Integer],
    axes: Sequence[int],
    by: Sequence[Integer],
) -> Imported:
    """With steps that the program computes; one of 0 is refused when it runs, by a size of -1."""
    x, t = n.atom(0), n.type(0)
    for start, end, axis, step in zip(starts, ends, axes, by, strict=True):
        at, s = n.front(axis, t.rank), number(n, step)
        zero, one = number(n, 0), number(n, 1)
        whole, ahead = number(n, t.shape[at]), n.step("greater", s, zero)
        high = n.step("where", ahead, whole, n.step("subtract", whole, one))
        first = _kept(n, start, whole, zero, high)
        last = _kept(n, end, whole, n.step("where", ahead, zero, number(n, -1)), high)
        span = n.step("subtract", last, first)
        span = n.step("where", ahead, span, n.step("subtract", zero, span))
        taken = steps(n, span, n.step("maximum", n.step("abs", s), one))
        count = found(n, n.step("where", n.step("equal", s, zero), number(n, -1), taken))
        places = n.step("add", n.step("multiply", positions(n, count), s), first)
        x = n.step("take", x, places, axis=at)
    return x


def _cut(start: int, end: int, step: int, size: Dim) -> tuple[int, int, int] | None:
    """Begin, end and stride on one axis; None when everything is kept."""
    if not isinstance(size, int):
        return start, end, step
    begin, stop, _ = slice(start, end, step).indices(size)
    begin = max(begin, 0)  # a start before the axis is its first element, backward too
    if step == 1 and (begin, stop) == (0, size):
        return None
    # a stop of -1 means "before the first", which as an index would count from the end
    return begin, stop if stop >= 0 else -size - 1, step


# ---- bounds that are symbolic, or found at run time ----------------------------------------------
def is_far(end: Integer) -> bool:
    """Whether a bound of a slice stands for the end of the axis."""
    return isinstance(end, int) and end >= 2**31 - 1


@dataclass(frozen=True)
class Cut:
    """What a slice takes of an axis: `count` elements from `first` on."""

    first: Integer
    step: int
    count: Dim

    def positions(self, n: Node) -> Atom:
        """Their positions."""
        at = positions(n, self.count)
        if self.step != 1:
            at = n.step("multiply", at, number(n, self.step))
        return at if self.first == 0 else n.step("add", at, number(n, self.first))


def cut(n: Node, start: Integer, end: Integer, step: int, size: Dim) -> Cut:
    """The elements that `start:end:step` takes of an axis, by numpy's rules.

    Where bounds are dimensions, the number of elements is taken to be what it is if they lie in the
    axis. If that is not certain, the program checks it.
    """
    begin = _place(n, start, size, at_end=size if step > 0 else dim(Index.of(size) - 1), first=0)
    stop = _place(n, end, size, at_end=size, first=0 if step > 0 else -1)
    if begin is None or stop is None:
        first, count = _clamped(n, start, end, step, size)
        return Cut(first, step, found(n, count))
    span = Index.of(stop) - begin if step > 0 else Index.of(begin) - stop
    expected = ceil_div(span, abs(step))
    room = [
        span,
        Index.of(begin),
        Index.of(size) - stop if step > 0 else Index.of(size) - 1 - begin,
    ]
    if all((low := r.range()[0]) is not None and low >= 0 for r in room):
        return Cut(begin, step, expected)
    first, count = _clamped(n, start, end, step, size)
    return Cut(first, step, found(n, count, expected))


def _place(n: Node, x: Integer, size: Dim, at_end: Dim, first: int) -> Dim | None:
    """The position that a bound stands for if it lies in the axis; None if its sign is open."""
    if is_far(x):
        return at_end
    if isinstance(x, int) and is_far(-x):
        return first
    if not isinstance(x, int | Index) or not all(
        map(n.graph.is_given, (Index.of(x), Index.of(size)))
    ):
        return None
    low, high = Index.of(x).range()
    if low is not None and low >= 0:
        return x
    return dim(Index.of(size) + x) if high is not None and high < 0 else None


def _kept(n: Node, x: Integer, whole: Atom, low: Atom, high: Atom) -> Atom:
    """A bound, which may count from the end, kept between two positions."""
    at = number(n, x)
    at = n.step("where", n.step("less", at, number(n, 0)), n.step("add", at, whole), at)
    return n.step("minimum", n.step("maximum", at, low), high)


def _clamped(n: Node, start: Integer, end: Integer, step: int, size: Dim) -> tuple[Atom, Atom]:
    """First position and number of elements, computed by the program."""
    whole, zero = number(n, size), number(n, 0)
    high = whole if step > 0 else n.step("subtract", whole, number(n, 1))

    first = _kept(n, start, whole, zero, high)
    last = _kept(n, end, whole, number(n, 0 if step > 0 else -1), high)
    span = n.step("subtract", *((last, first) if step > 0 else (first, last)))
    return first, steps(n, span, number(n, abs(step)))
