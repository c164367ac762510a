"""Rules of sums, means, products, largest elements, and running sums and products."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from compiler.op.gradient import Parts, Step, Value
from compiler.op.gradients.common import reshaped, spread, turned, where
from compiler.symbolic import product as count


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
    """dy * the product of the other elements: of those before each times that of those behind it,
    so that elements may be 0."""
    (x,), axes = s.args, _axes(s)
    t = s.type(x)
    order = [*(k for k in range(t.rank) if k not in axes), *axes]
    moved = turned(s, x, order)
    kept = s.type(moved).shape[: t.rank - len(axes)]
    row = reshaped(s, moved, [*kept, count(t.shape[k] for k in axes)])
    before, behind = (
        s.call("cumprod", row, axis=len(kept), exclusive=True, reverse=reverse)
        for reverse in (False, True)
    )
    others = reshaped(s, before * behind, s.type(moved).shape)
    return [spread(s, s.cotangent, x, axes) * turned(s, others, [*map(order.index, range(t.rank))])]


def running_product(s: Step) -> Parts:
    """x[i] gets the sum of dy[k] * (the product of the elements of y[k] but x[i]) over the k whose
    products have x[i]. Those products are computed for each i and k, so that elements may be 0: it
    takes the square of the axis."""
    (x,), a = s.args, s.attrs
    t = s.type(x)
    axis = a.axis % t.rank
    inner = [1] * (t.rank - 1 - axis)
    places = s.call("arange", size=t.shape[axis])
    left_out = reshaped(s, places, [t.shape[axis], 1, *inner])
    last = reshaped(s, places, [t.shape[axis], *inner])
    rows, flows = (s.call("expand_dims", v, axes=(axis,)) for v in (x, s.cotangent))
    others = s.call("where", s.call("equal", left_out, last), s.number(1), rows)
    how = {"exclusive": a.exclusive, "reverse": a.reverse}
    products = s.call("cumprod", others, axis=axis + 1, **how)
    names = {(False, False): "greater_equal", (True, False): "greater"}
    names |= {(False, True): "less_equal", (True, True): "less"}
    has = s.call(names[a.exclusive, a.reverse], last, left_out)
    return [s.call("sum", where(s, has, flows * products), axis=(axis + 1,))]


def running_sum(s: Step) -> Parts:
    """The running sum from the other end."""
    a = s.attrs
    how = {"axis": a.axis, "exclusive": a.exclusive, "accumulate": a.accumulate}
    return [s.call("cumsum", s.cotangent, reverse=not a.reverse, **how)]
