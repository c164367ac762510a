"""Derivatives of scalar functions, as expressions: (numbers, x, y = f(x)) -> f'(x).

`numbers` makes scalars and calls operators (`compiler.op.gradient.Step`); x and y have Python's
operators. Each is written over y where that has fewer operations.
"""

from __future__ import annotations

import math
from typing import Any


def sqrt(s: Any, x: Any, y: Any) -> Any:
    """1 / (2 y)."""
    return s.number(0.5) / y


def rsqrt(s: Any, x: Any, y: Any) -> Any:
    """-(y / 2) / x."""
    return (y * s.number(-0.5)) / x


def exp(s: Any, x: Any, y: Any) -> Any:
    """y."""
    return y


def log(s: Any, x: Any, y: Any) -> Any:
    """1 / x."""
    return s.number(1) / x


def tanh(s: Any, x: Any, y: Any) -> Any:
    """1 - y y."""
    return s.number(1) - y * y


def sigmoid(s: Any, x: Any, y: Any) -> Any:
    """y (1 - y)."""
    return y * (s.number(1) - y)


def erf(s: Any, x: Any, y: Any) -> Any:
    """(2 / sqrt(pi)) exp(-x x)."""
    return s.number(2 / math.sqrt(math.pi)) * s.call("exp", -(x * x))


def sin(s: Any, x: Any, y: Any) -> Any:
    """cos(x)."""
    return s.call("cos", x)


def cos(s: Any, x: Any, y: Any) -> Any:
    """-sin(x)."""
    return -s.call("sin", x)


def tan(s: Any, x: Any, y: Any) -> Any:
    """1 + y y."""
    return s.number(1) + y * y


def _root(s: Any, x: Any, sign: float, add: float) -> Any:
    """sqrt(sign x x + add), where sign is 1 or -1."""
    square = x * x
    inside = square + s.number(add) if sign > 0 else s.number(add) - square
    return s.call("sqrt", inside)


def asin(s: Any, x: Any, y: Any) -> Any:
    """1 / sqrt(1 - x x)."""
    return s.number(1) / _root(s, x, -1, 1)


def acos(s: Any, x: Any, y: Any) -> Any:
    """-1 / sqrt(1 - x x)."""
    return s.number(-1) / _root(s, x, -1, 1)


def atan(s: Any, x: Any, y: Any) -> Any:
    """1 / (1 + x x)."""
    return s.number(1) / (x * x + s.number(1))


def sinh(s: Any, x: Any, y: Any) -> Any:
    """cosh(x)."""
    return s.call("cosh", x)


def cosh(s: Any, x: Any, y: Any) -> Any:
    """sinh(x)."""
    return s.call("sinh", x)


def asinh(s: Any, x: Any, y: Any) -> Any:
    """1 / sqrt(x x + 1)."""
    return s.number(1) / _root(s, x, 1, 1)


def acosh(s: Any, x: Any, y: Any) -> Any:
    """1 / sqrt(x x - 1)."""
    return s.number(1) / _root(s, x, 1, -1)


def atanh(s: Any, x: Any, y: Any) -> Any:
    """1 / (1 - x x)."""
    return s.number(1) / (s.number(1) - x * x)
