"""Other people's arithmetic in the same formats: SoftPosit, ml_dtypes and numpy.

They are no judges: where one of them errs, the error is listed in `KNOWN_ERRORS`, and what it gives
there is not compared.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from compiler.tensor.expr import CallExtern, Expr, cast, const
from compiler.types.dtypes import BOOL, INT32, Array, DType
from datatypes.c_libraries import softposit
from datatypes.c_libraries.library import load_library
from datatypes.formats import Format, decode
from datatypes.kernels import Elementwise, compile_elementwise

SOFTPOSIT, ML_DTYPES, NUMPY = "SoftPosit", "ml_dtypes", "numpy"

KNOWN_ERRORS = {
    "p32_mulAdd": "off by one code in rare cases, as for the codes 2, 0x7fffffff, 0x5c6cd47b",
    "pX2_mulAdd": "off by one code in rare cases of 12, 13, 14, 24 and 32 bits",
    **{
        f"{name} {op}": "the sign of a NaN decides what it becomes where there is no NaN"
        for name in ("float6_e2m3fn", "float6_e3m2fn", "float4_e2m1fn")
        for op in ("Div", "sqrt")
    },
}
"""Function of SoftPosit 0.4, or format and operation of ml_dtypes 0.5 -> why it is not compared."""

_SUFFIXES = {
    "Add": "add", "Sub": "sub", "Mul": "mul", "Div": "div", "Fma": "mulAdd", "sqrt": "sqrt",
    "LT": "lt", "LE": "le", "EQ": "eq",
}  # fmt: skip
_NUMPY = {
    "Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Div": np.divide, "sqrt": np.sqrt,
    "LT": np.less, "LE": np.less_equal, "EQ": np.equal, "NE": np.not_equal, "GT": np.greater,
    "GE": np.greater_equal,
}  # fmt: skip
_PREFIXES = {"posit8_es0": "p8", "posit16_es1": "p16", "posit32_es2": "p32"}


@dataclass(frozen=True)
class Peer:
    """An operation of a format as someone else implements it.

    Attributes:
        name: SOFTPOSIT, ML_DTYPES or NUMPY.
        apply: arrays of codes -> codes with one NaN code (comparisons: bool).
    """

    name: str
    apply: Callable[..., Array]


def find(fmt: Format, op: str) -> Peer | None:
    """Who else has `op` (an operation of `integers`, a comparison, or sqrt) in a format."""
    prefix = _prefix(fmt)
    if prefix:
        symbol = f"{prefix}_{_SUFFIXES.get(op)}"
        known = op not in _SUFFIXES or symbol in KNOWN_ERRORS
        return None if known else Peer(SOFTPOSIT, _softposit(fmt, symbol, op))
    dtype = _ml_dtype(fmt)
    if dtype is None or op not in _NUMPY or f"{fmt.name} {op}" in KNOWN_ERRORS:
        return None
    return Peer(NUMPY if fmt.name == "float16" else ML_DTYPES, _numpy(fmt, dtype, op))


def excluded(fmt: Format) -> dict[str, str]:
    """The entries of KNOWN_ERRORS that concern a format."""
    names = [f"{_prefix(fmt)}_mulAdd", *(f"{fmt.name} {op}" for op in _NUMPY)]
    return {name: KNOWN_ERRORS[name] for name in names if name in KNOWN_ERRORS}


def _prefix(fmt: Format) -> str:
    """SoftPosit's functions of a format; pX2 are those of any width with two exponent bits."""
    return _PREFIXES.get(fmt.name, "pX2" if re.fullmatch(r"posit\d+_es2", fmt.name) else "")


@lru_cache(maxsize=64)
def _softposit(fmt: Format, symbol: str, op: str) -> Elementwise:
    softposit.load()
    load_library(softposit.library_path())
    storage, width = DType.parse(fmt.storage), DType("uint", 32)
    left, result = 32 - fmt.nbits, BOOL if op in ("LT", "LE", "EQ") else storage

    def body(*codes: Expr) -> Expr:
        if not symbol.startswith("pX2"):
            return CallExtern(symbol, codes, result)
        placed = [cast(code, width) << left if left else cast(code, width) for code in codes]
        if result == BOOL:
            return CallExtern(symbol, tuple(placed), BOOL)
        value = CallExtern(symbol, (*placed, const(fmt.nbits, INT32)), width)
        return cast(value >> left if left else value, storage)

    count = {"Fma": 3, "sqrt": 1}.get(op, 2)
    return compile_elementwise(f"peer_{symbol}", (storage,) * count, result, body)


def _ml_dtype(fmt: Format) -> np.dtype[np.generic] | None:
    """The format in numpy, or in ml_dtypes if that is installed."""
    if fmt.name == "float16":
        return np.dtype(np.float16)
    if importlib.util.find_spec("ml_dtypes") is None:
        return None
    import ml_dtypes

    found = getattr(ml_dtypes, fmt.name, None)
    return None if found is None else np.dtype(found)


def _numpy(fmt: Format, dtype: np.dtype[np.generic], op: str) -> Callable[..., Array]:
    def apply(*codes: Array) -> Array:
        with np.errstate(all="ignore"):
            result = _NUMPY[op](*(np.ascontiguousarray(c, fmt.storage).view(dtype) for c in codes))
        if result.dtype == np.bool_:
            return np.asarray(result)
        # Narrow codes are sign-extended or not, as the library likes.
        return one_nan(fmt, np.asarray(result).view(fmt.storage) & fmt.storage.type(fmt.mask))

    return apply


def one_nan(fmt: Format, codes: Array) -> Array:
    """The codes, with every NaN replaced by the format's own."""
    if not fmt.has_nan:
        return codes
    return np.where(np.isnan(decode(fmt, codes)), fmt.nan_code, codes).astype(fmt.storage)
