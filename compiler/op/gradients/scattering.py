"""Rules of scattering: to an update flows back what flows into its place, to the data the rest.
Updates that lie outside the data have changed nothing, and get zeros."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from compiler.op.gradient import Parts, Step, Value
from compiler.op.gradients.common import from_the_start, reshaped, size_of, where
from compiler.op.gradients.moves import cut, fixed
from compiler.symbolic import product


@dataclass(frozen=True)
class _Places:
    """Where updates lie.

    Attributes:
        read: from a tensor of the data's shape what lies in the place of each update.
        into: a tensor of the data's shape, and numbers for each update, which are combined with it
            by a reduction.
        inside: whether each update lies in the data.
        last: the same, and no later update lies in its place.
    """

    read: Callable[[Value], Value]
    into: Callable[[Value, Value, str], Value]
    inside: Callable[[], Value]
    last: Callable[[], Value]


def scatter_elements(s: Step) -> Parts:
    """See `_updated`."""
    x, indices, _ = s.args
    axis = s.attrs.axis % s.type(x).rank

    def inside() -> Value:
        return _within(s, indices, axis)

    def read(a: Value) -> Value:
        return s.call("gather_elements", a, indices, axis=axis)

    def into(a: Value, b: Value, how: str) -> Value:
        return s.call("scatter_elements", a, indices, b, axis=axis, reduction=how)

    def last() -> Value:
        numbers = _numbered(s, s.type(indices).shape)
        none = s.call("broadcast_to", s.integers(-1), shape=s.type(x).shape)
        return s.call("equal", read(into(none, numbers, "none")), numbers)

    return _updated(s, _Places(read, into, inside, last))


def scatter_nd(s: Step) -> Parts:
    """See `_updated`."""
    x, indices, _ = s.args
    at = s.type(indices)
    depth = fixed(s, at.shape[-1], "a position")
    slices = s.type(x).shape[depth:]
    rows = (*at.shape[:-1], *[1] * len(slices))

    def inside() -> Value:
        parts = [
            reshaped(s, _within(s, cut(s, indices, at.rank - 1, k, k + 1), k), rows)
            for k in range(depth)
        ]
        both = parts[0]
        for p in parts[1:]:
            both = s.call("logical_and", both, p)
        return both

    def read(a: Value) -> Value:
        return s.call("gather_nd", a, indices)

    def into(a: Value, b: Value, how: str) -> Value:
        return s.call("scatter_nd", a, indices, b, reduction=how)

    def last() -> Value:
        numbers = _numbered(s, at.shape[:-1])
        none = s.call("broadcast_to", s.integers(-1), shape=s.type(x).shape[:depth])
        return reshaped(s, s.call("equal", read(into(none, numbers, "none")), numbers), rows)

    return _updated(s, _Places(read, into, inside, last))


def _within(s: Step, at: Value, axis: int) -> Value:
    """Whether positions along an axis of the data lie in it."""
    x = s.args[0]
    wide = from_the_start(s, at, x, axis)
    return s.call("logical_and", wide >= s.integers(0), wide < size_of(s, x, axis))


def _numbered(s: Step, shape: Any) -> Value:
    """0, 1, 2 ... in the order of the updates."""
    return reshaped(s, s.call("arange", size=product(shape)), shape)


def _updated(s: Step, p: _Places) -> Parts:
    """By what an update does to what is there."""
    how = s.attrs.reduction
    if how == "add":
        back = where(s, p.inside(), p.read(s.cotangent)) if s.wants[2] else None
        return [s.cotangent, None, back]
    if how == "none":
        return _replaced(s, p)
    return _multiplied(s, p) if how == "mul" else _extreme(s, p)


def _replaced(s: Step, p: _Places) -> Parts:
    """Data that is replaced gets zeros, and of the updates of one place all but the last."""
    zeros = s.full(0, s.type(s.args[2]).shape)
    data = p.into(s.cotangent, zeros, "none") if s.wants[0] else None
    if not s.wants[2]:
        return [data, None, None]
    return [data, None, where(s, p.last(), where(s, p.inside(), p.read(s.cotangent)))]


def _multiplied(s: Step, p: _Places) -> Parts:
    """dy times the product of the other factors of a place: the product of those that are not 0,
    over the factor. Where one factor is 0, the others get zeros; where two are, all do."""
    x, _, updates = s.args
    one, none, single = s.number(1), s.integers(0), s.integers(1)
    zero, zero_update = (s.call("equal", v, s.number(0)) for v in (x, updates))
    safe, safe_update = s.call("where", zero, one, x), s.call("where", zero_update, one, updates)
    flows = s.cotangent * p.into(safe, safe_update, "mul")
    count, more = (s.call("where", z, single, none) for z in (zero, zero_update))
    zeros = p.into(count, more, "add")
    to_zero = where(s, s.call("equal", zeros, single), flows)
    to_others = where(s, s.call("equal", zeros, none), flows)
    data = s.call("where", zero, to_zero, to_others / safe)
    if not s.wants[2]:
        return [data, None, None]
    back = s.call("where", zero_update, p.read(to_zero), p.read(to_others) / safe_update)
    return [data, None, where(s, p.inside(), back)]


def _extreme(s: Step, p: _Places) -> Parts:
    """dy, shared among those that are equal to what is left."""
    x, _, updates = s.args
    kept = s.call("equal", x, s.result)
    chosen = s.call("logical_and", s.call("equal", updates, p.read(s.result)), p.inside())
    once, also = (s.call("where", c, s.number(1), s.number(0)) for c in (kept, chosen))
    share = s.cotangent / p.into(once, also, "add")
    return [where(s, kept, share), None, where(s, chosen, p.read(share))]
