"""Rules of operators whose positions are data: what was gathered is scattered, and the other way
round. Positions that meet are added up in the order of the indices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from compiler.op.gradient import Parts, Step, Value
from compiler.op.gradients.common import turned
from compiler.op.gradients.moves import cut, fixed
from compiler.symbolic import Dim
from compiler.types.dtypes import Array

Table = Callable[[Any, int, int, int], Array]


def _inside(s: Step, at: Value, size: Dim) -> Value:
    """Positions as gathering takes them: from the end where negative, and none outside."""
    n = fixed(s, size, "the axis that is read")
    wide = s.call("cast", at, dtype="int64")
    wrapped = s.call("where", wide < s.integers(0), wide + s.integers(n), wide)
    return s.call("clip", wrapped, a_min=0.0, a_max=float(n - 1))


def take(s: Step) -> Parts:
    """Added up where the elements lie."""
    x, indices = s.args
    t, at = s.type(x), s.type(indices)
    axis = s.attrs.axis % t.rank
    lead = [*range(axis, axis + at.rank)]
    rest = [k for k in range(s.type(s.result).rank) if k not in lead]
    moved = turned(s, s.cotangent, [*lead, *rest])
    places = s.call("expand_dims", _inside(s, indices, t.shape[axis]), axes=(at.rank,))
    others = [n for k, n in enumerate(t.shape) if k != axis]
    zeros = s.full(0, [t.shape[axis], *others])
    total = s.call("scatter_nd", zeros, places, moved, reduction="add")
    return [turned(s, total, [*range(1, axis + 1), 0, *range(axis + 1, t.rank)]), None]


def _scattered(s: Step, indices: Value, dy: Value, axis: int) -> Value:
    """Into zeros of the first operand's shape, along an axis."""
    t = s.type(s.args[0])
    places = _inside(s, indices, t.shape[axis % t.rank])
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
    t, at = s.type(x), s.type(indices)
    if s.attrs.batch_dims:
        raise s.refuse("its operands share leading axes")
    depth = fixed(s, at.shape[-1], "a position")
    parts = [_inside(s, cut(s, indices, at.rank - 1, k, k + 1), t.shape[k]) for k in range(depth)]
    places = s.call("concatenate", *parts, axis=at.rank - 1)
    return [s.call("scatter_nd", s.full(0, t.shape), places, s.cotangent, reduction="add"), None]


def scatter_elements(s: Step) -> Parts:
    """To an update what flows back into its place, to the data the rest (see `_updated`)."""
    _, indices, _ = s.args
    back = s.call("gather_elements", s.cotangent, indices, axis=s.attrs.axis)
    return _updated(s, "scatter_elements", back, axis=s.attrs.axis)


def scatter_nd(s: Step) -> Parts:
    """To an update what flows back into its place, to the data the rest (see `_updated`)."""
    return _updated(s, "scatter_nd", s.call("gather_nd", s.cotangent, s.args[1]))


def _updated(s: Step, op: str, back: Value, **attrs: int) -> Parts:
    """Data that updates replace gets zeros there; that they are added to, everything. Replaced
    places must differ, and lie inside the data."""
    if s.attrs.reduction == "add":
        return [s.cotangent, None, back]
    if s.attrs.reduction != "none":
        raise s.refuse(f"updates by {s.attrs.reduction} have none; those by add and none do")
    none = s.call("broadcast_to", s.number(0), shape=s.type(s.args[2]).shape)
    return [s.call(op, s.cotangent, s.args[1], none, **attrs), None, back]


def selected(table: Table) -> Callable[[Step], Parts]:
    """Of rows and columns that are read at known positions: added up where they lie. `table`:
    (attrs, axis, size of the data, size of the result) -> positions."""

    def rule(s: Step) -> Parts:
        dy, t = s.cotangent, s.type(s.args[0])
        for k, axis in enumerate((2, 3)):
            old, new = (fixed(s, s.type(x).shape[axis], "an axis") for x in (s.args[0], s.result))
            order = [axis, *(j for j in range(t.rank) if j != axis)]
            moved = turned(s, dy, order)
            zeros = s.full(0, [old, *s.type(moved).shape[1:]])
            places = s.integers(table(s.attrs, k, old, new)[:, None])
            total = s.call("scatter_nd", zeros, places, moved, reduction="add")
            dy = turned(s, total, [order.index(j) for j in range(t.rank)])
        return [dy]

    return rule
