"""What rules share: sums that undo broadcasting, views, and choices by comparison."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from compiler.op.gradient import Step, Value
from compiler.symbolic import Dim


def collapse(s: Step, x: Value, like: Value, **how: Any) -> Value:
    """`x` summed over the axes along which an operand of `like`'s shape is broadcast to it, each
    sum row-major over them; `how`: attributes of the sum."""
    have, want = s.type(x).shape, s.type(like).shape
    front = len(have) - len(want)
    axes = [*range(front)]
    axes += [front + k for k, n in enumerate(want) if n == 1 and have[front + k] != 1]
    if not axes:
        return x
    total = s.call("sum", x, axis=tuple(axes), keepdims=True, **how)
    return reshaped(s, total, want)


def reshaped(s: Step, x: Value, shape: Sequence[Dim]) -> Value:
    """`x` under another shape (itself, if it is that)."""
    wanted = tuple(shape)
    if s.type(x).shape == wanted:
        return x
    return s.call("reshape", x, newshape=wanted, allowzero=True)


def turned(s: Step, x: Value, axes: Sequence[int]) -> Value:
    """`x` with axes in another order."""
    return x if list(axes) == [*range(len(axes))] else s.call("transpose", x, axes=tuple(axes))


def last_two_turned(s: Step, x: Value) -> Value:
    """The transposes of matrices."""
    rank = s.type(x).rank
    return turned(s, x, [*range(rank - 2), rank - 1, rank - 2])


def where(s: Step, condition: Value, x: Value) -> Value:
    """`x` where a condition holds, else 0."""
    return s.call("where", condition, x, s.number(0))


def in_cotangents_dtype(s: Step, x: Value) -> Value:
    """`x` in the dtype of the cotangent, where an operator's result has one of its own."""
    return x if s.type(x).dtype == s.dtype else s.call("cast", x, dtype=str(s.dtype))


def along(s: Step, x: Value, rank: int, axis: int) -> Value:
    """A vector that broadcasts along `axis` of tensors of `rank`."""
    n = s.type(x).shape[0]
    return reshaped(s, x, [n if k == axis % rank else 1 for k in range(axis % rank, rank)])


def total_but(s: Step, x: Value, axis: int) -> Value:
    """A vector: `x` summed over all axes but one."""
    rank = s.type(x).rank
    axes = tuple(k for k in range(rank) if k != axis % rank)
    return s.call("sum", x, axis=axes) if axes else x


def spread(s: Step, x: Value, like: Value, axes: Sequence[int]) -> Value:
    """What a reduction over `axes` of `like` gave, with or without them, for each element that it
    came from."""
    t = s.type(like)
    kept = reshaped(s, x, [1 if k in axes else n for k, n in enumerate(t.shape)])
    return s.call("broadcast_to", kept, shape=t.shape)


def size_of(s: Step, x: Value, axis: int) -> Value:
    """How many elements `x` has along an axis: an int64 scalar, a constant where it is known."""
    n = s.type(x).shape[axis]
    if isinstance(n, int):
        return s.integers(n)
    return s.call("take", s.call("shape_of", x), s.integers(axis))


def from_the_start(s: Step, at: Value, x: Value, axis: int) -> Value:
    """Positions along an axis of `x`, of int64, of which negative ones count from the end."""
    wide = s.call("cast", at, dtype="int64")
    return s.call("where", wide < s.integers(0), wide + size_of(s, x, axis), wide)
