"""Scalar types and constants of generated C.

A float16 is its code, a `uint16_t`: C11 has no such type, and helpers compute with it in float. A
truth value is an `int` in expressions and a byte in memory.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from compiler.errors import LoweringError
from compiler.types.dtypes import FLOAT32, FLOAT64, DType

FLOAT16 = DType("float", 16)
BUILTIN = (
    FLOAT16, FLOAT32, FLOAT64, *(DType(k, b) for k in ("int", "uint") for b in (8, 16, 32, 64)),
    DType("bool", 8),
)  # fmt: skip


def short_name(dtype: DType) -> str:
    """How names of helpers call a built-in dtype: f32, i8, u64, b8.

    Raises:
        LoweringError: a custom dtype, which was not lowered.
    """
    if dtype not in BUILTIN:
        raise LoweringError(f"{dtype} was not lowered before code generation")
    return f"{dtype.kind[0]}{dtype.bits}"


SHORT = {short_name(d): d for d in BUILTIN}
"""The dtypes by these names."""


def c_type(dtype: DType) -> str:
    """The C type of a value, in memory too.

    Raises:
        LoweringError: a custom dtype, which was not lowered.
    """
    short_name(dtype)
    if dtype.is_float and dtype.bits > 16:
        return "float" if dtype.bits == 32 else "double"
    sign = "" if dtype.kind == "int" else "u"
    return f"{sign}int{dtype.storage_bits}_t"


def unsigned_type(dtype: DType) -> str:
    """The unsigned type that integers of a dtype are computed in: wide enough that C does not
    promote it to a signed one, in which sums may not overflow."""
    return "uint64_t" if dtype.bits == 64 else "uint32_t"


def literal(value: Any, dtype: DType) -> str:
    """A constant of a built-in dtype."""
    if dtype.is_float:
        return _float(float(value), dtype)
    n = int(value)
    if dtype.bits == 64:
        if n == -(1 << 63):
            return "INT64_MIN"
        return f"{'' if dtype.kind == 'int' else 'U'}INT64_C({n})"
    if n == -(1 << 31):
        return "INT32_MIN"
    suffix = "u" if dtype == DType("uint", 32) else ""
    return f"({n})" if n < 0 else f"{n}{suffix}"


def _float(value: float, dtype: DType) -> str:
    with np.errstate(over="ignore"):
        rounded = dtype.storage.type(value)
    if dtype == FLOAT16:
        return hex(int(rounded.view(np.uint16)))
    short = short_name(dtype)
    if math.isnan(rounded):  # of many
        bits = rounded.view(f"u{dtype.nbytes}")
        return f"{short}_bits_u{dtype.bits}({hex(int(bits))}u)"
    if math.isinf(rounded):
        return f"({'-' if rounded < 0 else ''}{short}_inf())"
    text = str(rounded)  # the shortest that reads back
    text += "" if any(c in text for c in ".e") else ".0"
    text += "f" if dtype == FLOAT32 else ""
    return f"({text})" if text[0] == "-" else text
