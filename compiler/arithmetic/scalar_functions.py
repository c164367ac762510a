"""What scalar functions, bit operations and comparisons of tensor expressions mean: a record each.

A function is added by its record here. What computes functions (references, loop nests, backends,
number formats, scripts, ONNX) asks the record; nothing else lists names.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from compiler.arithmetic import derivatives, enclosures, mathlib
from compiler.arithmetic.float64 import circular, error_function, exponential, remainder
from compiler.arithmetic.scalar_function import ScalarFunction
from compiler.types.dtypes import Array

_INF, _NAN = math.inf, math.nan
_erf: Callable[[Array], Array] = np.vectorize(math.erf, otypes=[np.float64])


def _sigmoid(x: Array) -> Array:
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + e), e / (1 + e))


_RECORDS = (
    ScalarFunction(
        "floor", np.floor, llvm="llvm.floor", c="floor", exact=True, integral=True, trend=1,
        onnx="Floor",
    ),
    ScalarFunction(
        "ceil", np.ceil, llvm="llvm.ceil", c="ceil", exact=True, integral=True, trend=1,
        onnx="Ceil",
    ),
    ScalarFunction(
        "round", np.rint, llvm="llvm.roundeven", c="nearbyint", exact=True, integral=True, trend=1,
        symmetry="odd", onnx="Round",
    ),
    ScalarFunction(
        "sqrt", np.sqrt, llvm="llvm.sqrt", c="sqrt", exact=True, enclose=enclosures.sqrt,
        limits=(_NAN, _INF), domain=(0, _INF), power=0.5, trend=1, onnx="Sqrt",
        derivative=derivatives.sqrt,
    ),
    ScalarFunction(
        "rsqrt", lambda x: 1.0 / np.sqrt(x), single=mathlib.rsqrt, double=mathlib.rsqrt,
        enclose=enclosures.rsqrt, limits=(_NAN, 0.0), domain=(0, _INF), power=-0.5, trend=-1,
        derivative=derivatives.rsqrt,
    ),
    ScalarFunction(
        "exp", np.exp, c="exp",
        alone=exponential.exp, single=mathlib.exp, half=((0x1F79, 0x3C07), (0x25CF, 0x3C17)),
        enclose=enclosures.exp, limits=(0.0, _INF), far=enclosures.FAR, trend=1, onnx="Exp",
        derivative=derivatives.exp,
    ),
    ScalarFunction(
        "log", np.log, c="log", alone=exponential.log, single=mathlib.log, half=((0x1D78, 0xC53B),),
        enclose=enclosures.log, limits=(_NAN, _INF), domain=(0, _INF), trend=1, onnx="Log",
        derivative=derivatives.log,
    ),
    ScalarFunction(
        "tanh", np.tanh, c="tanh",
        alone=exponential.tanh, single=mathlib.tanh, enclose=enclosures.tanh,
        limits=(-1.0, 1.0), trend=1, symmetry="odd", onnx="Tanh", derivative=derivatives.tanh,
    ),
    ScalarFunction(
        "sigmoid", _sigmoid, single=mathlib.sigmoid, double=mathlib.sigmoid64,
        half=(
            (0x1A00, 0x3801), (0x1F00, 0x3803), (0x2180, 0x3805), (0x9F80, 0x37F9),
            (0xA140, 0x37F6), (0xA1C0, 0x37F5), (0xB13F, 0x3758),
        ),
        enclose=enclosures.sigmoid, limits=(0.0, 1.0), far=enclosures.FAR, trend=1,
        onnx="Sigmoid", derivative=derivatives.sigmoid,
    ),
    ScalarFunction(
        "erf", lambda x: _erf(x) if x.size else x, c="erf",
        alone=error_function.erf, single=mathlib.erf,
        half=((0x1612, 0x16D9), (0x9612, 0x96D9)), enclose=enclosures.erf, limits=(-1.0, 1.0),
        trend=1, symmetry="odd", onnx="Erf", derivative=derivatives.erf,
    ),
    ScalarFunction(
        "sin", np.sin, c="sin",
        alone=circular.sin, symmetry="odd", onnx="Sin", derivative=derivatives.sin,
    ),
    ScalarFunction(
        "cos", np.cos, c="cos",
        alone=circular.cos, symmetry="even", onnx="Cos", derivative=derivatives.cos,
    ),
    ScalarFunction(
        "tan", np.tan, c="tan",
        alone=circular.tan, symmetry="odd", onnx="Tan", derivative=derivatives.tan,
    ),
    ScalarFunction(
        "asin", np.arcsin, c="asin",
        alone=circular.asin, domain=(-1, 1), trend=1, symmetry="odd", onnx="Asin",
        derivative=derivatives.asin,
    ),
    ScalarFunction(
        "acos", np.arccos, c="acos", alone=circular.acos, domain=(-1, 1), trend=-1, onnx="Acos",
        derivative=derivatives.acos,
    ),
    ScalarFunction(
        "atan", np.arctan, c="atan", alone=circular.atan, trend=1, symmetry="odd", onnx="Atan",
        derivative=derivatives.atan,
    ),
    ScalarFunction(
        "sinh", np.sinh, c="sinh", alone=exponential.sinh, trend=1, symmetry="odd", onnx="Sinh",
        derivative=derivatives.sinh,
    ),
    ScalarFunction(
        "cosh", np.cosh, c="cosh",
        alone=exponential.cosh, symmetry="even", onnx="Cosh", derivative=derivatives.cosh,
    ),
    ScalarFunction(
        "asinh", np.arcsinh, c="asinh",
        alone=exponential.asinh, trend=1, symmetry="odd", onnx="Asinh",
        derivative=derivatives.asinh,
    ),
    ScalarFunction(
        "acosh", np.arccosh, c="acosh",
        alone=exponential.acosh, domain=(1, _INF), trend=1, onnx="Acosh",
        derivative=derivatives.acosh,
    ),
    ScalarFunction(
        "atanh", np.arctanh, c="atanh",
        alone=exponential.atanh, domain=(-1, 1), trend=1, symmetry="odd", onnx="Atanh",
        derivative=derivatives.atanh,
    ),
    # Parts of what operators compute, which are none themselves.
    ScalarFunction(
        "abs", np.abs, operator=False, llvm="llvm.fabs", c="fabs", exact=True, symmetry="even"
    ),
    ScalarFunction(
        "fmod", np.fmod, arity=2, operator=False, c="fmod",
        alone=remainder.fmod, alone_narrow=remainder.short_fmod, exact=True,
    ),
    ScalarFunction("pow", np.power, arity=2, operator=False, c="pow", alone=exponential.pow),
)  # fmt: skip

FUNCTIONS = {f.name: f for f in _RECORDS}
"""Every scalar function of real numbers, by name."""

UNARY = {name: f for name, f in FUNCTIONS.items() if f.operator}
"""Those of one operand that are operators, too."""


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
