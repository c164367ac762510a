"""Posits as SoftPosit's C functions, called from compiled loops."""

from __future__ import annotations

from functools import cache

from compiler.tensor.expr import CallExtern, Expr
from compiler.types.dtypes import FLOAT64
from datatypes.builtin.common import storage
from datatypes.c_libraries import softposit
from datatypes.c_libraries.library import load_library
from datatypes.formats import Format

PREFIXES = {"posit8_es0": "p8", "posit16_es1": "p16", "posit32_es2": "p32"}
_SUFFIXES = {"Add": "add", "Sub": "sub", "Mul": "mul", "Div": "div"}


@cache
def load_functions() -> None:
    """Load the library, once; the check of its symbols gives the clear errors."""
    softposit.load()
    load_library(softposit.library_path())


def binary(fmt: Format, op: str, a: Expr, b: Expr) -> Expr | None:
    """Add, Sub, Mul, Div on storage integers."""
    if op not in _SUFFIXES:
        return None
    load_functions()
    return CallExtern(f"{PREFIXES[fmt.name]}_{_SUFFIXES[op]}", (a, b), a.dtype)


def sqrt(fmt: Format, a: Expr) -> Expr:
    """Square root of a storage integer, correctly rounded."""
    load_functions()
    return CallExtern(f"{PREFIXES[fmt.name]}_sqrt", (a,), a.dtype)


def from_float64(fmt: Format, x: Expr) -> Expr:
    """Storage integer nearest to a float64."""
    load_functions()
    symbol = f"convertDoubleTo{PREFIXES[fmt.name].upper()}"
    return CallExtern(symbol, (x,), storage(fmt))


def to_float64(fmt: Format, a: Expr) -> Expr:
    """float64 of a posit32. (Of shorter posits, SoftPosit turns NaR into infinity.)"""
    load_functions()
    return CallExtern(f"convert{PREFIXES[fmt.name].upper()}ToDouble", (a,), FLOAT64)
