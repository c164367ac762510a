"""What the functions, bit operations and comparisons of tensor expressions mean in numpy."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from compiler.types.dtypes import Array

_erf: Callable[[Array], Array] = np.vectorize(math.erf, otypes=[np.float64])


def _sigmoid(x: Array) -> Array:
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + e), e / (1 + e))


FUNCTIONS: dict[str, Callable[[Array], Array]] = {
    "exp": np.exp,
    "log": np.log,
    "tanh": np.tanh,
    "sigmoid": _sigmoid,
    "erf": lambda x: _erf(x) if x.size else x,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1.0 / np.sqrt(x),
    "floor": np.floor,
    "ceil": np.ceil,
    "round": np.rint,
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "asin": np.arcsin,
    "acos": np.arccos,
    "atan": np.arctan,
    "sinh": np.sinh,
    "cosh": np.cosh,
    "asinh": np.arcsinh,
    "acosh": np.arccosh,
    "atanh": np.arctanh,
}
"""Unary functions that tensor expressions may call, in float64: to within a few units in the last
place of what they mean. `compiler.arithmetic.arrays` says what that is in each dtype."""

EXACT = ("sqrt", "floor", "ceil", "round")
"""Those whose float64 result, rounded to a narrower float, is right; numpy has them to the bit."""


BITS: dict[str, Any] = {
    "And": np.bitwise_and, "Or": np.bitwise_or, "Xor": np.bitwise_xor,
    "Shl": np.left_shift, "Shr": np.right_shift,
}  # fmt: skip
"""Operations on the bits of integers (of truth values: the first three)."""

COMPARE: dict[str, Any] = {
    "LT": np.less,
    "LE": np.less_equal,
    "GT": np.greater,
    "GE": np.greater_equal,
    "EQ": np.equal,
    "NE": np.not_equal,
}
"""Comparisons, whose results are truth values."""
