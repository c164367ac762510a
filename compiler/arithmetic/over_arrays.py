"""Scalar expressions over whole arrays: how references compute what is defined as an expression
(see `mathlib`), so that they and compiled code share the definition."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from compiler.arithmetic import fused_multiply_add
from compiler.arithmetic.mathlib import FLOAT16
from compiler.arithmetic.scalar_function import ScalarFunction
from compiler.arithmetic.scalar_functions import BITS, COMPARE, FUNCTIONS
from compiler.errors import LoweringError, UnsupportedError
from compiler.tensor.expr.named import LetVar
from compiler.tensor.expr.node import BinOp, Call, Cast, Expr, FloatImm, IntImm, Select
from compiler.types.dtypes import FLOAT32, Array, DType


def maximum(a: Array, b: Array) -> Array:
    """The larger, element by element, as IEEE 754-2019's maximum: NaN if one is NaN, and +0 is
    larger than -0 (of which numpy takes either, as the processor and the length go)."""
    out = np.maximum(a, b)
    zeros = _zeros(out, a, b)
    if zeros is None:
        return out
    with np.errstate(all="ignore"):
        return np.where(zeros, np.add(a, b), out)


def minimum(a: Array, b: Array) -> Array:
    """The smaller, element by element: see maximum."""
    out = np.minimum(a, b)
    zeros = _zeros(out, a, b)
    if zeros is None:
        return out
    with np.errstate(all="ignore"):
        return np.where(zeros, -(np.negative(a) - b), out)


def _zeros(out: Array, a: Array, b: Array) -> Array | None:
    """Where floats a and b are zeros, None if nowhere."""
    if out.dtype.kind != "f":
        return None
    zeros = out == 0
    return (np.equal(a, 0) & np.equal(b, 0)) if np.any(zeros) else None


CHUNK = 1 << 14
"""Elements that are computed together: few enough for the arrays between to stay in the cache."""

_ARITHMETIC: dict[str, Callable[..., Any]] = {
    "Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Div": np.divide,
    "Max": maximum, "Min": minimum, **COMPARE, **BITS,
}  # fmt: skip


def function(fn: str, dtype: DType, *args: Array) -> Array:
    """A function of `FUNCTIONS` of arrays of a built-in float dtype, element by element: the bits
    that compiled code gives.

    Raises:
        UnsupportedError: there is no such function of the dtype.
    """
    f = FUNCTIONS.get(fn)
    if f is None or not dtype.is_float:
        raise UnsupportedError(f"no function {fn} of {dtype}")
    body = f.body(dtype)
    if body is not None and dtype != FLOAT16:
        return unary(body, args[0], dtype)
    with np.errstate(all="ignore"):
        if f.exact:
            return np.asarray(f.numpy(*args))
        if body is not None:  # of float16: correctly rounded, as float64's result shows
            return f.numpy(np.asarray(args[0], np.float64)).astype(dtype.storage)
    return from_c_library(f, dtype, *args)


def unary(function: Callable[[Expr], Expr], x: Array, dtype: DType = FLOAT32) -> Array:
    """`function`, which is written over expressions, of every element of a float array.

    Raises:
        LoweringError: the expression holds something else than arithmetic of floats and integers.
    """
    argument, body = _written(function, dtype)
    flat = np.ascontiguousarray(x, dtype.storage).reshape(-1)
    out = np.empty_like(flat)
    with np.errstate(all="ignore"):
        for k in range(0, flat.size, CHUNK):
            out[k : k + CHUNK] = _value(body, {argument: flat[k : k + CHUNK]})
    return out.reshape(np.shape(x))


@functools.cache
def _written(function: Callable[[Expr], Expr], dtype: DType) -> tuple[Expr, Expr]:
    """An argument, and the function's expression of it."""
    x = LetVar("x", dtype)
    return x, function(x)


def _value(e: Expr, known: dict[Expr, Any]) -> Any:
    """The value of an expression; a node met twice is computed once."""
    if e not in known:
        known[e] = _computed(e, known)
    return known[e]


def _computed(e: Expr, known: dict[Expr, Any]) -> Any:
    if isinstance(e, FloatImm | IntImm):
        return e.dtype.storage.type(e.value)
    operands = [_value(k, known) for k in e.children()]
    if isinstance(e, BinOp):
        return _ARITHMETIC[e.op](*operands)
    if isinstance(e, Select):
        return np.where(*operands)
    if isinstance(e, Cast):
        if e.value.dtype.is_integer and (e.dtype.is_float or e.dtype.is_integer):
            return operands[0].astype(e.dtype.storage)
    elif isinstance(e, Call):
        if e.fn == "fma" and e.dtype == FLOAT32:
            return fused_multiply_add.multiply_add32(*operands)
        if e.fn == "bits":
            return operands[0].view(e.dtype.storage)
        if e.fn == "rint_i32":
            bounded = np.clip(np.rint(operands[0]), -(2.0**31), 2.0**31 - 128)
            return np.nan_to_num(bounded).astype(np.int32)
        if e.fn in FUNCTIONS:
            return function(e.fn, e.dtype, *operands)
    raise LoweringError(f"arrays do not know {type(e).__name__} {e!r}")


_NEAR = 1 << 5
"""Units in the last place of float64 by which two libraries may differ."""
_DIGITS = {16: 10, 32: 23}
_NORMAL = {16: 2.0**-13, 32: 2.0**-125}


def from_c_library(f: ScalarFunction, dtype: DType, *args: Array) -> Array:
    """The C library's float64 function of float operands, rounded once to `dtype`: the numbers
    that compiled code gets. numpy's functions differ from those in the last bits of float64.

    Where a narrower result cannot depend on the last bits of float64, numpy's (which does many
    numbers at once) serves as well.
    """
    wide = np.broadcast_arrays(*(np.asarray(a, np.float64) for a in args))
    with np.errstate(all="ignore"):
        found = np.array(f.numpy(*wide), np.float64)
    unsure = np.isfinite(found) & _between(found, dtype.bits)
    if unsure.any():
        rows = zip(found[unsure].tolist(), *(w[unsure].tolist() for w in wide), strict=True)
        function = getattr(math, str(f.c))
        found[unsure] = [_called(function, *row) for row in rows]
    with np.errstate(all="ignore"):
        return np.asarray(found.astype(dtype.storage))


def _called(function: Callable[..., float], near: float, *args: float) -> float:
    try:
        return float(function(*args))
    except OverflowError:  # a result next to the largest number
        return math.copysign(math.inf, near)


def _between(x: Array, bits: int) -> Array:
    """Whether numbers are so near the middle between two of a narrower float that these differ."""
    if bits == 64:
        return np.ones(x.shape, bool)
    dropped = 52 - _DIGITS[bits]
    from_middle = (x.view(np.int64) & ((1 << dropped) - 1)) - (1 << (dropped - 1))
    tiny = (np.abs(x) < _NORMAL[bits]) & (x != 0)
    return np.asarray((np.abs(from_middle) <= _NEAR) | tiny)
