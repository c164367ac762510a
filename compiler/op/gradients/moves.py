"""Rules of operators that move elements: gradients are moved back, and added where an element has
gone to several places."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from compiler.op.gradient import Parts, Step, Value
from compiler.op.gradients.common import collapse, reshaped, size_of, turned
from compiler.symbolic import Dim, dim


def view(s: Step) -> Parts:
    """The same elements under another shape."""
    return [reshaped(s, s.cotangent, s.type(s.args[0]).shape)]


def assume(s: Step) -> Parts:
    """The other way round: what was called `equal` has its own size again."""
    a = s.attrs
    if a.differs:
        return [s.cotangent]
    return [s.call("assume", s.cotangent, size=a.equal, equal=a.size, node=a.node)]


def transpose(s: Step) -> Parts:
    """Axes back in their order."""
    rank = s.type(s.args[0]).rank
    order = [k % rank for k in s.attrs.axes] or [*reversed(range(rank))]
    return [turned(s, s.cotangent, [order.index(k) for k in range(rank)])]


def broadcast_to(s: Step) -> Parts:
    """The sum of what was repeated."""
    return [collapse(s, s.cotangent, s.args[0])]


def fixed(s: Step, n: Dim, what: str) -> int:
    """A size that must be known when the gradient is taken."""
    if not isinstance(n, int):
        raise s.refuse(f"{what} has {n} elements, which must be a number: give it fixed sizes")
    return n


def cut(s: Step, x: Value, axis: int, begin: int, end: int, step: int = 1) -> Value:
    """Elements of `x` from `begin` up to `end` along one axis (all of them: `x`)."""
    if step == 1 and (begin, end) == (0, s.type(x).shape[axis]):
        return x
    how: dict[str, Any] = {} if step == 1 else {"strides": (step,)}
    return s.call("strided_slice", x, begin=(begin,), end=(end,), axes=(axis,), **how)


def stretch(
    s: Step, x: Value, axis: int, begin: int, count: Dim, step: int = 1, behind: int = 0
) -> Value:
    """`count` elements of `x` from `begin` on, `step` apart, along an axis of any size. `behind`:
    as many elements at the end are not among them, where that is known."""
    size = s.type(x).shape[axis]
    if isinstance(size, int) and isinstance(count, int):
        return cut(s, x, axis, begin, begin + (count - 1) * step + 1, step)
    if begin == 0 and step == 1 and count == size:
        return x
    left = dim(size - (count - 1) * step - begin - 1)
    behind = left if isinstance(left, int) else behind
    if behind > 0:
        how = {"begin": (begin,), "end": (-behind,), "strides": (step,), "axes": (axis,)}
        made = s.call("strided_slice", x, **how)
        if s.type(made).shape[axis] == count:
            return made
    places = s.call("arange", size=count) * s.integers(step) + s.integers(begin)
    return s.call("take", x, places, axis=axis)


def put_back(s: Step, x: Value, places: Value, axis: int, size: Dim) -> Value:
    """Zeros of `size` along an axis, to which what `x` has along it is added at some places."""
    rank = s.type(x).rank
    order = [axis, *(k for k in range(rank) if k != axis)]
    moved = turned(s, x, order)
    zeros = s.full(0, [size, *s.type(moved).shape[1:]])
    at = s.call("expand_dims", places, axes=(1,))
    total = s.call("scatter_nd", zeros, at, moved, reduction="add")
    return turned(s, total, [order.index(k) for k in range(rank)])


def padded(s: Step, x: Value, widths: Sequence[tuple[int, int]]) -> Value:
    """`x` in zeros."""
    if not any(map(any, widths)):
        return x
    return s.call("nn.pad", x, pad_width=tuple(widths))


def apart(s: Step, x: Value, axis: int, step: int) -> Value:
    """`x` with step - 1 zeros behind each element along an axis."""
    if step == 1:
        return x
    shape = s.type(x).shape
    wide = reshaped(s, x, [*shape[: axis + 1], 1, *shape[axis + 1 :]])
    ends = [(0, step - 1) if k == axis + 1 else (0, 0) for k in range(len(shape) + 1)]
    return reshaped(
        s, padded(s, wide, ends), [*shape[:axis], shape[axis] * step, *shape[axis + 1 :]]
    )


def concatenate(s: Step) -> Parts:
    """To each operand its part."""
    rank = s.type(s.result).rank
    axis, parts = s.attrs.axis % rank, []
    start: Dim = 0
    for k, x in enumerate(s.args):
        n = s.type(x).shape[axis]
        if isinstance(start, int):
            rest = dim(sum(s.type(y).shape[axis] for y in s.args[k + 1 :]))
            behind = rest if isinstance(rest, int) else 0
            parts.append(stretch(s, s.cotangent, axis, start, n, behind=behind))
        else:
            first = s.integers(0)
            for y in s.args[:k]:
                first = s.call("add", first, size_of(s, y, axis))
            places = s.call("arange", size=n) + first
            parts.append(s.call("take", s.cotangent, places, axis=axis))
        start = dim(start + n)
    return parts


def split(s: Step) -> Parts:
    """The parts behind one another; zeros for those that nothing flows back into."""
    t = s.type(s.args[0])
    axis = s.attrs.axis % t.rank
    parts = [
        s.full(0, [*t.shape[:axis], n, *t.shape[axis + 1 :]]) if c is None else c
        for c, n in zip(s.cotangents, s.attrs.sizes, strict=True)
    ]
    return [s.call("concatenate", *parts, axis=axis)]


def strided_slice(s: Step) -> Parts:
    """Into zeros, an axis after the other; where its size is open, to computed places."""
    t, a, dy = s.type(s.args[0]), s.attrs, s.cotangent
    axes = a.axes or range(len(a.begin))
    for k, (axis, begin, end) in enumerate(zip(axes, a.begin, a.end, strict=True)):
        at, step = axis % t.rank, a.strides[k] if a.strides else 1
        size, given = t.shape[at], s.type(dy).shape[at]
        if step == 1 and size == given:
            continue
        if not isinstance(size, int):
            how = {"begin": (begin,), "end": (end,), "strides": (step,)}
            places = s.call("strided_slice", s.call("arange", size=size), **how)
            dy = put_back(s, dy, places, at, size)
            continue
        n = size
        taken = range(n)[begin:end:step]
        if step < 0:
            count = len(taken)
            dy = cut(s, dy, at, count - 1, -count - 1, -1)
            taken = taken[::-1]
        dy = apart(s, dy, at, taken.step)
        held, first = len(taken) * taken.step, taken.start
        last = min(held, n - first)
        dy = cut(s, dy, at, 0, last)
        rank = t.rank
        dy = padded(s, dy, [(first, n - first - last) if j == at else (0, 0) for j in range(rank)])
    return [dy]


def pad(s: Step) -> Parts:
    """What lies inside; what borders repeat is added to where it came from."""
    t, widths = s.type(s.args[0]), s.attrs.pad_width
    dy = s.cotangent
    for axis, (before, after) in enumerate(widths):
        if not before and not after:
            continue
        n = t.shape[axis]
        inner = stretch(s, dy, axis, before, n, behind=after)
        if s.attrs.mode != "constant" and not isinstance(n, int):
            numbers = s.call("arange", size=n)
            places = s.call("nn.pad", numbers, pad_width=((before, after),), mode=s.attrs.mode)
            inner = put_back(s, dy, places, axis, n)
        elif s.attrs.mode != "constant":
            assert isinstance(n, int)
            inner = _with_borders(s, dy, inner, axis, n)
        dy = inner
    return [dy]


def _with_borders(s: Step, dy: Value, inner: Value, axis: int, n: int) -> Value:
    """`inner`, then what flows back from the border before it, then from that behind it."""
    before, after = s.attrs.pad_width[axis]
    rank = s.type(dy).rank

    def placed(x: Value, first: int, count: int) -> Value:
        ends = [(first, n - first - count) if k == axis else (0, 0) for k in range(rank)]
        return padded(s, x, ends)

    for start, count, left in ((0, before, True), (before + n, after, False)):
        if not count:
            continue
        border = cut(s, dy, axis, start, start + count)
        if s.attrs.mode == "edge":
            border = s.call("sum", border, axis=(axis,), keepdims=True)
            inner = inner + placed(border, 0 if left else n - 1, 1)
        else:
            border = cut(s, border, axis, count - 1, -count - 1, -1)
            inner = inner + placed(border, 1 if left else n - 1 - count, count)
    return inner
