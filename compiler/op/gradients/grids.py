"""Rules of operators that round to a grid: what rounding does to a number flows back as if it did
nothing within the grid's range (the straight-through estimator; Bengio, Leonard and Courville,
Estimating or Propagating Gradients Through Stochastic Neurons, 2013)."""

from __future__ import annotations

from compiler.op.gradient import Parts, Step, Value
from compiler.op.gradients.common import along, reshaped, total_but, where


def simulated_quantize(s: Step) -> Parts:
    """nearest(x / scale) * scale within [low, high] * scale: x gets dy where x / scale lies between
    low and high, or on one, else 0; the scale gets the sum, over what it scales, of
    dy * (nearest(v) - v) there and of dy * low or dy * high elsewhere, where v = x / scale (learned
    step sizes; Esser et al., Learned Step Size Quantization, 2020)."""
    (x, scale), a, dy = s.args, s.attrs, s.cotangent
    t = s.type(scale)
    if t.rank > 1:
        raise s.refuse("each element has a scale of its own; give one, or one for each channel")
    per_channel = t.rank == 1
    each = along(s, scale, s.type(x).rank, a.axis) if per_channel else scale
    v = x / each
    low, high = s.number(a.qmin - a.zero_point), s.number(a.qmax - a.zero_point)
    inside = s.call("logical_and", v >= low, v <= high)
    parts: list[Value | None] = [where(s, inside, dy) if s.wants[0] else None, None]
    if s.wants[1]:
        away = dy * ((s.result - where(s, inside, x)) / each)
        if per_channel:
            parts[1] = total_but(s, away, a.axis)
        else:
            parts[1] = reshaped(s, s.call("sum", away), ())
    return parts


def straight_through(s: Step) -> Parts:
    """Nothing to the value that is given, dy to the one that it stands in for."""
    return [None, s.cotangent]
