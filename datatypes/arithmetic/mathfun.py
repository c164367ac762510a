"""Correctly rounded unary functions: the code nearest to the exact f(x), for every code x.

A float64 estimate decides where rounding it a little lower and a little higher gives the same code;
the few numbers where it does not are evaluated again with as many digits as it takes (Ziv, "Fast
Evaluation of Elementary Mathematical Functions with Correctly Rounded Last Bit", 1991). Results
beyond a format's range follow its own rules: exp(1000) is maxpos in a posit and infinity in
bfloat16, exp(-1000) is minpos and 0.
"""

from __future__ import annotations

import math
from decimal import Decimal, localcontext
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from compiler.arithmetic.enclosures import around, context_of
from compiler.arithmetic.scalar_function import Interval, ScalarFunction
from compiler.arithmetic.scalar_functions import FUNCTIONS
from compiler.errors import InputError, UnsupportedError, unknown
from datatypes.arithmetic import logarithms
from datatypes.formats import Format, decode, encode, get
from datatypes.formats.value import Number, Special

Array = npt.NDArray[Any]

_MARGIN = 2.0**-45
"""Relative error that the float64 estimates stay below: 256 units in the last place, where numpy
and the C library promise less than 5."""

_INEXACT_MARGIN = 2.0**-40
"""The same where the operands themselves are irrational, and float64 has them to 2**-53."""

_DIGITS = (30, 60, 120, 240, 480, 960)


def names() -> list[str]:
    """Names of the functions that have exact bounds."""
    return [f.name for f in FUNCTIONS.values() if f.enclose is not None]


@lru_cache(maxsize=256)
def table(fmt: Format | str, name: str) -> Array:
    """Read-only `fmt.storage`[2**nbits]: the code of f(x) for every code x. NaN (NaR) gives NaN.

    Raises:
        UnsupportedError: the format has more than 16 bits (use `apply`), or no such function.
    """
    fmt = get(fmt)
    if fmt.nbits > 16:
        raise UnsupportedError(
            f"a table of {name} for {fmt.name} would have 2**{fmt.nbits} entries; "
            "tables are for formats of up to 16 bits"
        )
    codes = apply(fmt, name, np.arange(fmt.mask + 1, dtype=np.uint32))
    codes.flags.writeable = False
    return codes


def apply(fmt: Format | str, name: str, codes: npt.ArrayLike) -> Array:
    """Correctly rounded f of every code in an integer array, for a format of any width.

    Returns:
        Array of `fmt.storage`, same shape.

    Raises:
        UnsupportedError: no such function.
        InputError: an entry is not a code of the format.
    """
    fmt = get(fmt)
    function = _function(name)
    if fmt.logarithmic and function.power is not None:
        return logarithms.apply(fmt, name, np.asarray(codes))
    operands = decode(fmt, codes)
    finite = np.isfinite(operands)
    with np.errstate(all="ignore"):
        estimate = function.numpy(function.near(np.where(finite, operands, 1.0)))
    at_minus, at_plus = function.limits
    estimate = np.where(operands == -math.inf, at_minus, estimate)
    estimate = np.where(operands == math.inf, at_plus, estimate)
    estimate = np.where(np.isnan(operands), math.nan, estimate)
    result = encode(fmt, estimate)
    margin = _INEXACT_MARGIN if fmt.logarithmic else _MARGIN
    doubtful = encode(fmt, estimate * (1 - margin)) != encode(fmt, estimate * (1 + margin))
    doubtful &= finite & np.isfinite(estimate)
    patterns = np.asarray(codes)
    for index in zip(*np.nonzero(doubtful), strict=True):
        result[index] = refine(fmt, name, int(patterns[index]))
    return result


def refine(fmt: Format, name: str, code: int) -> int:
    """Correctly rounded f of one code, from exact bounds; the slow twin of `apply`.

    Raises:
        InputError: the code is not a finite number, or f has no value there.
    """
    x = fmt.decode_exact(code)
    if isinstance(x, Special):
        raise InputError(f"code {code:#x} of {fmt.name} is not a finite number")
    function = _function(name)
    if fmt.logarithmic and function.power is not None:  # half of the exponent, which may be a tie
        return int(logarithms.apply(fmt, name, np.array(code)))
    for digits in _DIGITS:
        try:
            low, high = _enclose(function, x, digits)
        except (ArithmeticError, ValueError):
            raise InputError(f"{name}({x}) is not a number") from None
        result = fmt.encode_exact(low)
        if result == fmt.encode_exact(high):
            return result
    raise InputError(f"{name}({x}) is too near to a rounding boundary of {fmt.name} to decide")


def _enclose(function: ScalarFunction, x: Number, digits: int) -> Interval:
    """Bounds of f(x); of an irrational x, from bounds of it, where f increases or decreases."""
    assert function.enclose is not None
    if isinstance(x, Fraction):
        return function.enclose(x, digits)
    if not function.trend:
        raise UnsupportedError(
            f"{function.name} neither increases nor decreases: there are no bounds of it at {x}"
        )
    with localcontext(context_of(digits + 20)):
        power = Decimal(2) ** (Decimal(x.exponent.numerator) / Decimal(x.exponent.denominator))
    ends = (
        function.enclose(end, digits)
        for end in around(-power if x.negative else power, digits + 10)
    )
    bounds = [bound for interval in ends for bound in interval]
    return min(bounds), max(bounds)


def _function(name: str) -> ScalarFunction:
    f = FUNCTIONS.get(name)
    if f is None or f.enclose is None:
        raise UnsupportedError(unknown("function", name, names()))
    return f
