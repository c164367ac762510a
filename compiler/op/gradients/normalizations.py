"""Rules of softmax, log_softmax, layer_norm and rms_norm. Their sums are formed as those of the
operators are (`accumulate`)."""

from __future__ import annotations

from typing import Any

from compiler.op.gradient import Parts, Step, Value
from compiler.op.gradients.common import collapse


def softmax(s: Step) -> Parts:
    """y * (dy - sum(dy * y))."""
    dy, y = s.cotangent, s.result
    total = s.call("sum_products", dy, y, **_over(s, (s.attrs.axis,)))
    return [y * (dy - total)]


def log_softmax(s: Step) -> Parts:
    """dy - exp(y) * sum(dy)."""
    total = s.call("sum", s.cotangent, **_over(s, (s.attrs.axis,)))
    return [s.cotangent - s.call("exp", s.result) * total]


def _over(s: Step, axes: tuple[int, ...]) -> dict[str, Any]:
    return {"axis": axes, "keepdims": True, "accumulate": s.attrs.accumulate}


def _inner(s: Step) -> dict[str, Any]:
    rank = s.type(s.args[0]).rank
    return _over(s, tuple(range(s.attrs.axis % rank, rank)))


def layer_norm(s: Step) -> Parts:
    """(d / r) * gamma + beta, where d = x - mean(x), r = sqrt(mean(d * d) + epsilon): with
    n = d / r and g = dy * gamma, x gets ((g - mean(g)) - n * mean(g * n)) / r."""
    x, gamma, *beta = s.args
    dy, how = s.cotangent, _inner(s)
    d = x - s.call("mean", x, **how)
    r, n = _root(s, d)
    g = dy * gamma
    inner = (g - s.call("mean", g, **how)) - n * s.call("mean_products", g, n, **how)
    return [
        inner / r if s.wants[0] else None,
        collapse(s, dy * n, gamma) if s.wants[1] else None,
        *(collapse(s, dy, b) for b in beta),
    ]


def rms_norm(s: Step) -> Parts:
    """(x / r) * gain, where r = sqrt(mean(x * x) + epsilon): with n = x / r and g = dy * gain, x
    gets (g - n * mean(g * n)) / r."""
    x, gain = s.args
    dy, how = s.cotangent, _inner(s)
    r, n = _root(s, x)
    g = dy * gain
    inner = g - n * s.call("mean_products", g, n, **how)
    return [
        inner / r if s.wants[0] else None,
        collapse(s, dy * n, gain) if s.wants[1] else None,
    ]


def _root(s: Step, d: Value) -> tuple[Value, Value]:
    """The root of the mean of squares, as the operator computes it, and what is over it."""
    squares = s.call("mean_products", d, d, **_inner(s))
    r = s.call("sqrt", squares + s.number(s.attrs.epsilon))
    return r, d / r
