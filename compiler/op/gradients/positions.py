"""Rules of operators whose positions are data: what was gathered is scattered, and the other way
round. Positions that meet are added up in the order of the indices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from compiler.op.gradient import Parts, Step, Value
from compiler.op.gradients.common import from_the_start, reshaped, size_of, turned
from compiler.op.gradients.moves import cut, fixed, put_back
from compiler.symbolic import Dim
from compiler.types.dtypes import Array

Table = Callable[[Any, int, int, int], Array]


def _inside(s: Step, at: Value, x: Value, axis: int) -> Value:
    """Positions along an axis of `x` as gathering takes them: from the end where negative, and none
    outside."""
    wrapped, n = from_the_start(s, at, x, axis), s.type(x).shape[axis]
    if isinstance(n, int):
        return s.call("clip", wrapped, a_min=0.0, a_max=float(n - 1))
    least = s.call("maximum", wrapped, s.integers(0))
    return s.call("minimum", least, size_of(s, x, axis) - s.integers(1))


def take(s: Step) -> Parts:
    """Added up where the elements lie."""
    x, indices = s.args
    t, at = s.type(x), s.type(indices)
    axis = s.attrs.axis % t.rank
    lead = [*range(axis, axis + at.rank)]
    rest = [k for k in range(s.type(s.result).rank) if k not in lead]
    moved = turned(s, s.cotangent, [*lead, *rest])
    places = s.call("expand_dims", _inside(s, indices, x, axis), axes=(at.rank,))
    others = [n for k, n in enumerate(t.shape) if k != axis]
    zeros = s.full(0, [t.shape[axis], *others])
    total = s.call("scatter_nd", zeros, places, moved, reduction="add")
    return [turned(s, total, [*range(1, axis + 1), 0, *range(axis + 1, t.rank)]), None]


def _scattered(s: Step, indices: Value, dy: Value, axis: int) -> Value:
    """Into zeros of the first operand's shape, along an axis."""
    t = s.type(s.args[0])
    places = _inside(s, indices, s.args[0], axis % t.rank)
    zeros = s.full(0, t.shape)
    return s.call("scatter_elements", zeros, places, dy, axis=axis % t.rank, reduction="add")


def gather_elements(s: Step) -> Parts:
    """Added up where the elements lie."""
    return [_scattered(s, s.args[1], s.cotangent, s.attrs.axis), None]


def topk(s: Step) -> Parts:
    """Where the elements lie; positions have no gradient."""
    dy = s.cotangents[0]
    return [None if dy is None else _scattered(s, s.result[1], dy, s.attrs.axis)]


def gather_nd(s: Step) -> Parts:
    """Added up where the slices lie."""
    x, indices = s.args
    t, at, shared = s.type(x), s.type(indices), s.attrs.batch_dims
    depth = fixed(s, at.shape[-1], "a position")
    last = at.rank - 1
    parts = [_own(s, at.shape, k) for k in range(shared)]
    for k in range(depth):
        here = cut(s, indices, last, k, k + 1)
        parts.append(_inside(s, here, x, shared + k))
    places = s.call("concatenate", *parts, axis=last) if len(parts) > 1 else parts[0]
    return [s.call("scatter_nd", s.full(0, t.shape), places, s.cotangent, reduction="add"), None]


def _own(s: Step, shape: Sequence[Dim], axis: int) -> Value:
    """The place of each row of positions along an axis that data and positions share."""
    numbers = reshaped(
        s, s.call("arange", size=shape[axis]), [shape[axis], *[1] * (len(shape) - 1 - axis)]
    )
    return s.call("broadcast_to", numbers, shape=(*shape[:-1], 1))


def selected(table: Table) -> Callable[[Step], Parts]:
    """Of rows and columns that are read at known positions: added up where they lie. `table`:
    (attrs, axis, size of the data, size of the result) -> positions."""

    def rule(s: Step) -> Parts:
        dy = s.cotangent
        for k, axis in enumerate((2, 3)):
            old, new = (fixed(s, s.type(x).shape[axis], "an axis") for x in (s.args[0], s.result))
            dy = put_back(s, dy, s.integers(table(s.attrs, k, old, new)), axis, old)
        return [dy]

    return rule
