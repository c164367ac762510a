"""Converters of norms and of logarithms of sums: what they add up is first divided by the largest
magnitude, so that sums overflow (or vanish) only where the results do."""

from __future__ import annotations

from compiler.frontend.choices import axes_of, each_value, same_rank
from compiler.frontend.converters_pool import powers, root
from compiler.frontend.converters_reduce import reduced_axes
from compiler.frontend.node import Node, converts
from compiler.frontend.values import Imported, scalar
from compiler.frontend.widening import in_dtype_of, widened
from compiler.ir.expr import Atom, tensor_type

_NORMS = ("ReduceL1", "ReduceL2", "ReduceSumSquare", "ReduceLogSum", "ReduceLogSumExp")


@converts(*_NORMS)
@each_value(1, axes_of(same_rank))
def norm(n: Node) -> Imported:
    """Axes are an attribute, and an input from opset 18 on; without any (and
    noop_with_empty_axes), every element is a set of its own."""
    x, t, keep = n.atom(0), n.type(0), bool(n.attr("keepdims", 1))
    axes = reduced_axes(n, 18)
    if n.op == "ReduceL1":
        return _sum(n, n.step("abs", x), axes, keep, last=True)
    if n.op == "ReduceSumSquare":
        return _sum(n, n.step("multiply", x, x), axes, keep, last=True)
    if t.dtype.is_integer:  # functions of integers, truncated
        y = _of_floats(n, n.step("cast", x, dtype="float64"), axes, keep)
        return n.call("cast", y, dtype=str(t.dtype))
    return _of_floats(n, x, axes, keep)


def _of_floats(n: Node, x: Atom, axes: tuple[int, ...], keep: bool) -> Atom:
    """The norm of a tensor of floats, or the logarithm."""
    t = tensor_type(x)
    one = scalar(1, t)
    if any(t.shape[a] == 0 for a in axes):  # the norm of nothing is 0
        zero = _sum(n, x, axes, keep)
        return zero if n.op == "ReduceL2" else n.step("log", zero)
    if n.op == "ReduceLogSumExp":
        unit = finite_or(n, _largest(n, x, axes), scalar(0, t))
        # What is nothing beside exp(0) is left out: its distance may overflow.
        far = n.step("less", x, n.step("subtract", unit, scalar(120, t)))
        grown = n.step("exp", n.step("subtract", x, unit))
        total = _sum(n, n.step("where", far, scalar(0, t), grown), axes, keep)
        return n.call("add", n.step("log", total), _reshaped(n, unit, total))
    size = _largest(n, n.step("abs", x), axes)
    if n.op == "ReduceL2":
        unit = unit_of(n, size)
        ratio = n.step("divide", x, unit)
        total = _sum(n, n.step("multiply", ratio, ratio), axes, keep)
        return n.call("multiply", n.step("sqrt", total), _reshaped(n, unit, total))
    # Only sums that overflow are divided: quotients are rounded, and those of terms that cancel add
    # up to what may be below 0.
    whole = _sum(n, x, axes, keep=True)
    fits = n.step("equal", n.step("subtract", whole, whole), scalar(0, t))
    unit = n.step("where", fits, one, finite_or(n, n.step("maximum", size, one), one))
    total = _sum(n, n.step("divide", x, unit), axes, keep)
    return n.call("add", n.step("log", total), n.step("log", _reshaped(n, unit, total)))


def unit_of(n: Node, size: Atom) -> Atom:
    """What to divide by, so that magnitudes up to `size` become at most 1; infinities, NaN and 0
    are left to the formula as they are."""
    one, zero = (scalar(v, tensor_type(size)) for v in (1, 0))
    finite = finite_or(n, size, one)
    return n.step("where", n.step("equal", finite, zero), one, finite)


def finite_or(n: Node, x: Atom, other: Atom) -> Atom:
    """x where it is finite, else `other`; in whatever format that is computed."""
    nothing = n.step("equal", n.step("subtract", x, x), scalar(0, tensor_type(x)))
    return n.step("where", nothing, x, other)


def _largest(n: Node, x: Atom, axes: tuple[int, ...]) -> Atom:
    return n.step("max", x, axis=axes, keepdims=True) if axes else x


def _sum(n: Node, x: Atom, axes: tuple[int, ...], keep: bool, last: bool = False) -> Atom:
    if not axes:
        return x
    return (n.call if last else n.step)("sum", x, axis=axes, keepdims=keep)


def _reshaped(n: Node, x: Atom, like: Atom) -> Atom:
    """x, which has axes of length 1 more than `like`."""
    shape = tensor_type(like).shape
    return x if shape == tensor_type(x).shape else n.step("reshape", x, newshape=shape)


@converts("GlobalLpPool")
def global_lp_pool(n: Node) -> Imported:
    """(sum of |x|^p)^(1/p) over every channel."""
    rank, p = n.rank_of(0, 3, 4, 5), float(n.attr("p", 2))
    axes, size = tuple(range(2, rank)), n.step("abs", n.atom(0))
    if p == 1:
        return n.call("sum", size, axis=axes, keepdims=True)
    unit = unit_of(n, _largest(n, size, axes))
    total = _sum(n, powers(n, n.step("divide", size, unit), p), axes, keep=True)
    return n.call("multiply", root(n, total, p, n.step), unit)


@converts("LpNormalization")
def lp_normalization(n: Node) -> Imported:
    """x over its norm along an axis; 0 where the norm is 0."""
    x, t, p = n.atom(0), n.type(0), float(n.expect("p", 2, 1, 2))
    axes = (n.axis(-1, t.rank),)
    if any(t.shape[a] == 0 for a in axes):
        return x
    ratio = n.step("divide", x, unit_of(n, _largest(n, n.step("abs", x), axes)))
    total = _sum(n, powers(n, ratio, p), axes, keep=True)
    size = total if p == 1 else n.step("sqrt", total)
    zero = scalar(0, t)
    empty = n.step("equal", size, zero)
    return n.call("where", empty, zero, n.step("divide", ratio, size))


@converts("MeanVarianceNormalization")
def mean_variance_normalization(n: Node) -> Imported:
    """(x - mean) / (standard deviation + 1e-9), the deviation that of x - mean: the mean of the
    squares less the square of the mean, as the standard writes it, loses all digits."""
    t = n.type(0)
    if n.opset < 9:  # before it was a function: across_channels, and whether to divide
        across = bool(n.attr("across_channels", 0))
        axes: tuple[int, ...] = tuple(range(0 if across else 2, t.rank))
    else:
        axes = tuple(n.front(a, t.rank) for a in n.attr("axes", (0, 2, 3)))
    x = widened(n, n.atom(0))
    away = n.step("subtract", x, n.step("mean", x, axis=axes, keepdims=True))
    unit = unit_of(n, _largest(n, n.step("abs", away), axes))
    ratio = n.step("divide", away, unit)
    spread = n.step("sqrt", n.step("mean", powers(n, ratio, 2), axis=axes, keepdims=True))
    least = scalar(1e-9, tensor_type(x))
    divisor = n.step("add", n.step("multiply", spread, unit), least)
    return in_dtype_of(n, 0, "divide", away, divisor)
