"""Converters of activation functions whose bodies in the standard overflow, or need its newest
version: their results are in range wherever the function is."""

from __future__ import annotations

from compiler.frontend.node import Node, converts
from compiler.frontend.values import Imported, scalar
from compiler.frontend.windows import Emit
from compiler.ir.expr import Atom, tensor_type


@converts("Softplus")
def softplus(n: Node) -> Imported:
    """log(1 + exp(x)); see `_softplus`."""
    return _softplus(n, n.atom(0), n.call)


@converts("Mish")
def mish(n: Node) -> Imported:
    """x * tanh(softplus(x))."""
    x = n.atom(0)
    return n.call("multiply", x, n.step("tanh", _softplus(n, x, n.step)))


def _softplus(n: Node, x: Atom, emit: Emit) -> Atom:
    """max(x, 0) + log(1 + e) with e = exp(-|x|), which is at most 1.

    u = 1 + e rounds e; log(u) + (e - (u - 1)) / u takes that back to first order (as log1p does:
    Kahan, reported by Goldberg, What Every Computer Scientist Should Know About Floating-Point
    Arithmetic, 1991, theorem 4), so that results for large -x keep their digits.
    """
    one = scalar(1, tensor_type(x))
    e = n.step("exp", n.step("minimum", x, n.step("negative", x)))
    u = n.step("add", e, one)
    lost = n.step("divide", n.step("subtract", e, n.step("subtract", u, one)), u)
    log1p = n.step("add", n.step("log", u), lost)
    return emit("add", n.step("nn.relu", x), log1p)


@converts("Celu")
def celu(n: Node) -> Imported:
    """x where x >= 0, else alpha * (exp(x / alpha) - 1), in which x / alpha must not overflow."""
    x, t, alpha = n.atom(0), n.type(0), float(n.attr("alpha", 1.0))
    # exp(-120) is nothing beside 1.
    near = n.step("clip", x, a_min=-120 * alpha) if 0 < alpha < 1 else x
    grown = n.step("exp", n.step("divide", near, scalar(alpha, t)))
    below = n.step("multiply", scalar(alpha, t), n.step("subtract", grown, scalar(1, t)))
    return n.call("where", n.step("less", x, scalar(0, t)), below, x)


@converts("ThresholdedRelu")
def thresholded_relu(n: Node) -> Imported:
    """x where x > alpha, else 0 (NaN included); before opset 10 it was experimental."""
    x, t = n.atom(0), n.type(0)
    above = n.step("greater", x, scalar(n.attr("alpha", 1.0), t))
    return n.call("where", above, x, scalar(0, t))


@converts("PRelu")
def prelu(n: Node) -> Imported:
    """x where x >= 0, else slope * x; the slope broadcasts to x, or is one number per channel."""
    x, zero, slope = n.atom(0), scalar(0, n.type(0)), n.atom(1)
    shape, own = n.type(0).shape, n.type(1).shape
    if len(shape) > 2 and own == shape[1:2] and own != shape[-1:]:  # as before opset 7
        slope = n.step("reshape", slope, newshape=(-1, *(1 for _ in shape[2:])))
    # A choice, not a sum of two parts: 0 times an infinite slope is no number.
    return n.call("where", n.step("greater_equal", x, zero), x, n.step("multiply", slope, x))
