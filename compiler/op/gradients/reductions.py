"""Rules of sums, means, largest elements and running sums."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from compiler.op.gradient import Parts, Step, Value
from compiler.op.gradients.common import spread, where


def _axes(s: Step) -> tuple[int, ...]:
    rank, axis = s.type(s.args[0]).rank, s.attrs.axis
    given = (axis,) if isinstance(axis, int) else axis
    return tuple(sorted(k % rank for k in given)) or tuple(range(rank))


def total(s: Step) -> Parts:
    """dy for every term."""
    return [spread(s, s.cotangent, s.args[0], _axes(s))]


def mean(s: Step) -> Parts:
    """dy over the number of terms, for every term."""
    return [_shared(s, s.args[0], _axes(s))]


def mean_over(axes: Callable[[int], Sequence[int]]) -> Callable[[Step], Parts]:
    """Of a mean over axes that follow from the rank."""

    def rule(s: Step) -> Parts:
        return [_shared(s, s.args[0], axes(s.type(s.args[0]).rank))]

    return rule


def _shared(s: Step, x: Value, axes: Sequence[int]) -> Value:
    return spread(s, s.cotangent / s.count(x, axes), x, axes)


def total_of_products(s: Step) -> Parts:
    """To each factor dy times the other."""
    dy = spread(s, s.cotangent, s.args[0], _axes(s))
    return [dy * s.args[1], dy * s.args[0]]


def mean_of_products(s: Step) -> Parts:
    """To each factor dy over the number of terms, times the other."""
    dy = _shared(s, s.args[0], _axes(s))
    return [dy * s.args[1], dy * s.args[0]]


def extreme(s: Step) -> Parts:
    """Of a largest or smallest element: dy, shared among those that are equal to it."""
    (x,), axes = s.args, _axes(s)
    chosen = s.call("equal", x, spread(s, s.result, x, axes))
    ones = s.call("where", chosen, s.number(1), s.number(0))
    share = spread(s, s.cotangent, x, axes) / s.call("sum", ones, axis=axes, keepdims=True)
    return [where(s, chosen, share)]


def product(s: Step) -> Parts:
    """(dy * y) / x: no element may be 0."""
    (x,), axes = s.args, _axes(s)
    return [spread(s, s.cotangent * s.result, x, axes) / x]


def running_sum(s: Step) -> Parts:
    """The running sum from the other end."""
    a = s.attrs
    how = {"axis": a.axis, "exclusive": a.exclusive, "accumulate": a.accumulate}
    return [s.call("cumsum", s.cotangent, reverse=not a.reverse, **how)]
