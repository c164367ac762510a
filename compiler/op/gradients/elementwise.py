"""Rules of elementwise operators. At a kink the derivative is that of PyTorch: 0 of relu and abs
at 0, 1 of clip at its bounds, and a half for each of two equal operands of a maximum."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from compiler.op.gradient import Parts, Step, Value
from compiler.op.gradients.common import along, collapse, in_cotangents_dtype, total_but, where


def add(s: Step) -> Parts:
    """a + b."""
    return [collapse(s, s.cotangent, x) for x in s.args]


def subtract(s: Step) -> Parts:
    """a - b."""
    a, b = s.args
    minus = collapse(s, s.cotangent, b) if s.wants[1] else None
    return [collapse(s, s.cotangent, a), None if minus is None else s.call("negative", minus)]


def multiply(s: Step) -> Parts:
    """a * b."""
    a, b = s.args
    return [
        collapse(s, s.cotangent * b, a) if s.wants[0] else None,
        collapse(s, s.cotangent * a, b) if s.wants[1] else None,
    ]


def divide(s: Step) -> Parts:
    """a / b: dy / b, and -(dy / b) * y."""
    a, b = s.args
    part = s.cotangent / b
    below = s.call("negative", part * s.result) if s.wants[1] else None
    return [collapse(s, part, a), None if below is None else collapse(s, below, b)]


def larger(comparison: str) -> Callable[[Step], Parts]:
    """Of a maximum ("greater") or minimum ("less"); equal operands share the cotangent."""

    def rule(s: Step) -> Parts:
        dy, half = s.cotangent, s.cotangent * s.number(0.5)
        a, b = s.args
        same = where(s, s.call("equal", a, b), half)
        return [
            collapse(s, s.call("where", s.call(comparison, x, other), dy, same), x)
            for x, other in ((a, b), (b, a))
        ]

    return rule


def power(s: Step) -> Parts:
    """a ** b: dy * b * a ** (b - 1), and dy * y * log(a)."""
    a, b = s.args
    base = s.cotangent * (b * (a ** (b - s.number(1))))
    exponent = collapse(s, s.cotangent * (s.result * s.call("log", a)), b) if s.wants[1] else None
    return [collapse(s, base, a) if s.wants[0] else None, exponent]


def fmod(s: Step) -> Parts:
    """a - trunc(a / b) * b: dy, and -dy * trunc(a / b), which is (a - y) / b."""
    a, b = s.args
    times = s.call("round", (a - s.result) / b)
    below = s.call("negative", s.cotangent * times)
    return [collapse(s, s.cotangent, a), collapse(s, below, b)]


def function(derivative: Callable[[Any, Value, Value], Value]) -> Callable[[Step], Parts]:
    """Of a function of one number: (step, x, y) -> f'(x), by which the cotangent is multiplied."""

    def rule(s: Step) -> Parts:
        return [s.cotangent * derivative(s, s.args[0], s.result)]

    return rule


def negative(s: Step) -> Parts:
    """-x."""
    return [s.call("negative", s.cotangent)]


def absolute(s: Step) -> Parts:
    """|x|: dy or -dy, and 0 at 0."""
    (x,), zero = s.args, s.number(0)
    below = where(s, x < zero, s.call("negative", s.cotangent))
    return [s.call("where", x > zero, s.cotangent, below)]


def relu(s: Step) -> Parts:
    """max(x, 0): dy where x > 0, which is where that is; so only the result is kept, and relu runs
    with what computes its operand."""
    return [where(s, s.result > s.number(0), s.cotangent)]


def clip(s: Step) -> Parts:
    """dy where x lies between the bounds, or on one."""
    dy, (x,), a = s.cotangent, s.args, s.attrs
    if a.a_min != -math.inf:
        dy = where(s, x >= s.number(a.a_min), dy)
    return [dy if a.a_max == math.inf else where(s, x <= s.number(a.a_max), dy)]


def leaky_relu(s: Step) -> Parts:
    """dy, or dy * alpha where x is not above 0."""
    below = s.cotangent * s.number(s.attrs.alpha)
    return [s.call("where", s.args[0] > s.number(0), s.cotangent, below)]


def _inside(s: Step, x: Value) -> Value:
    """Where alpha * x + beta lies between 0 and 1."""
    t = x * s.number(s.attrs.alpha) + s.number(s.attrs.beta)
    return s.call("logical_and", t > s.number(0), t < s.number(1))


def hard_sigmoid(s: Step) -> Parts:
    """dy * alpha on the slope."""
    return [where(s, _inside(s, s.args[0]), s.cotangent * s.number(s.attrs.alpha))]


def hard_swish(s: Step) -> Parts:
    """x * g: dy * (g + x * g')."""
    (x,), a = s.args, s.attrs
    gate = s.call("nn.hard_sigmoid", x, alpha=a.alpha, beta=a.beta)
    bend = where(s, _inside(s, x), x * s.number(a.alpha))
    return [s.cotangent * (gate + bend)]


def gelu(bent: float) -> Callable[[Step], Parts]:
    """(0.5 * x) * (1 + b): dy * (0.5 * (1 + b) + (0.5 * x) * b'). b is erf(x / sqrt(2)), b' is
    sqrt(2 / pi) * exp(-(x * x) / 2); or b is tanh, of an argument that is constant beyond
    `bent`."""

    def rule(s: Step) -> Parts:
        (x,), n = s.args, s.number
        root = n(math.sqrt(2 / math.pi))
        if s.attrs.approximate == "tanh":
            near = s.call("minimum", s.call("maximum", x, n(-bent)), n(bent))
            square = near * near
            t = s.call("tanh", root * (near + n(0.044715) * (square * near)))
            slope = root * (n(1) + n(3 * 0.044715) * square)
            inside = s.call("logical_and", x > n(-bent), x < n(bent))
            bend, rises = t, where(s, inside, (n(1) - t * t) * slope)
        else:
            bend = s.call("erf", x / n(math.sqrt(2)))
            rises = root * s.call("exp", s.call("negative", (x * x) * n(0.5)))
        half = n(0.5)
        return [s.cotangent * (half * (n(1) + bend) + (half * x) * rises)]

    return rule


def choose(s: Step) -> Parts:
    """where(c, x, y): dy where it was taken."""
    c, x, y = s.args
    other = s.call("where", c, s.number(0), s.cotangent) if s.wants[2] else None
    taken = where(s, c, s.cotangent) if s.wants[1] else None
    return [
        None,
        None if taken is None else collapse(s, taken, x),
        None if other is None else collapse(s, other, y),
    ]


def cast(s: Step) -> Parts:
    """dy in the dtype of the operand: what rounding loses flows back as if it were kept."""
    return [s.cotangent]


def bias_add(s: Step) -> Parts:
    """x + bias along an axis."""
    return [s.cotangent, total_but(s, s.cotangent, s.attrs.axis) if s.wants[1] else None]


def batch_norm(s: Step) -> Parts:
    """((x - m) / r) * gamma + beta, where r = sqrt(v + epsilon) and statistics are given: with
    d = (dy * gamma) / r, x gets d, m the sum of -d, v that of ((d * (x - m)) / (r * r)) * -0.5,
    gamma that of dy * ((x - m) / r) and beta that of dy."""
    x, gamma, _, center, var = s.args
    rank, axis = s.type(x).rank, s.attrs.axis
    gain, m, v = (along(s, p, rank, axis) for p in (gamma, center, var))
    dy, r = s.cotangent, s.call("sqrt", v + s.number(s.attrs.epsilon))
    d, away = (dy * gain) / r, x - m
    parts: list[Value | None] = [d if s.wants[0] else None]
    parts.append(total_but(s, dy * (away / r), axis) if s.wants[1] else None)
    parts.append(total_but(s, dy, axis) if s.wants[2] else None)
    parts.append(s.call("negative", total_but(s, d, axis)) if s.wants[3] else None)
    spread = ((d * away) / (r * r)) * s.number(-0.5)
    return [*parts, total_but(s, spread, axis) if s.wants[4] else None]


def same(s: Step) -> Parts:
    """The operand itself."""
    return [in_cotangents_dtype(s, s.cotangent)]
