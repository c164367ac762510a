"""Correctly rounded unary functions: the code nearest to the exact f(x), for every code x.

A float64 estimate decides where rounding it a little lower and a little higher gives the same code;
the few numbers where it does not are evaluated again with as many digits as it takes (Ziv, "Fast
Evaluation of Elementary Mathematical Functions with Correctly Rounded Last Bit", 1991). Results
beyond a format's range follow its own rules: exp(1000) is maxpos in a posit and infinity in
bfloat16, exp(-1000) is minpos and 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal, localcontext
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from compiler.errors import InputError, UnsupportedError, unknown
from datatypes.arithmetic import logarithms
from datatypes.formats import Format, decode, encode, get
from datatypes.formats.value import Number, Special

Array = npt.NDArray[Any]
Interval = tuple[Fraction, Fraction]

_MARGIN = 2.0**-45
"""Relative error that the float64 estimates stay below: 256 units in the last place, where numpy
and the C library promise less than 5."""

_INEXACT_MARGIN = 2.0**-40
"""The same where the operands themselves are irrational, and float64 has them to 2**-53."""

_FAR = 700.0
"""exp(+-_FAR) is beyond the range of every format, which ends at 2**+-1000, but not of float64."""

_DIGITS = (30, 60, 120, 240, 480, 960)


@dataclass(frozen=True)
class MathFunction:
    """A function of one number.

    Attributes:
        name: as tensor-level expressions call it.
        estimate: float64 array -> float64 array, for finite numbers, within `_MARGIN`. Gives an
            infinity at a pole and NaN outside the domain, but neither for mere overflow, nor 0
            for mere underflow.
        enclose: (x, digits) -> exact bounds of f(x), about 10**-digits apart; equal if f(x) is
            rational. Asked only where the estimate is a number. A result beyond 2**+-1000 may be
            replaced by any other one that is.
        limits: f at -infinity and at +infinity.
    """

    name: str
    estimate: Callable[[Array], Array]
    enclose: Callable[[Fraction, int], Interval]
    limits: tuple[float, float]


def names() -> list[str]:
    """Names of the functions."""
    return list(FUNCTIONS)


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
    if fmt.logarithmic and name in logarithms.ROOTS:
        return logarithms.apply(fmt, name, np.asarray(codes))
    operands = decode(fmt, codes)
    finite = np.isfinite(operands)
    with np.errstate(all="ignore"):
        estimate = function.estimate(np.where(finite, operands, 1.0))
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
    if fmt.logarithmic and name in logarithms.ROOTS:  # half of the exponent, which may be a tie
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


def _enclose(function: MathFunction, x: Number, digits: int) -> Interval:
    """Bounds of f(x); of an irrational x, from bounds of it, where f increases or decreases."""
    if isinstance(x, Fraction):
        return function.enclose(x, digits)
    with localcontext(_context(digits + 20)):
        power = Decimal(2) ** (Decimal(x.exponent.numerator) / Decimal(x.exponent.denominator))
    ends = (
        function.enclose(end, digits)
        for end in _around(-power if x.negative else power, digits + 10)
    )
    bounds = [bound for interval in ends for bound in interval]
    return min(bounds), max(bounds)


def _function(name: str) -> MathFunction:
    if name not in FUNCTIONS:
        raise UnsupportedError(unknown("function", name, FUNCTIONS))
    return FUNCTIONS[name]


# Estimates in float64


def _exp(x: Array) -> Array:
    return np.asarray(np.exp(np.clip(x, -_FAR, _FAR)))


def _sigmoid(x: Array) -> Array:
    small = np.exp(-np.minimum(np.abs(x), _FAR))
    return np.asarray(np.where(x < 0, small, 1.0) / (1.0 + small))


def _erf(x: Array) -> Array:
    values = np.fromiter((math.erf(v) for v in x.flat), np.float64, x.size)
    return values.reshape(x.shape)


# Bounds of any number of digits


def _context(digits: int) -> Context:
    return Context(prec=digits, Emax=MAX_EMAX, Emin=MIN_EMIN)


def _decimal(x: Fraction) -> Decimal:
    """`x` as a Decimal, exactly: values within 2**+-1000 have fewer than 1200 digits."""
    with localcontext(_context(1200)):
        return Decimal(x.numerator) / Decimal(x.denominator)


def _around(value: Decimal, digits: int) -> Interval:
    """Bounds of a number known to a relative error below 10**-digits."""
    center = Fraction(value)
    slack = abs(center) / 10**digits
    return center - slack, center + slack


def _below_one(negative: bool) -> Interval:
    """Stands for a number that differs from 1 (or -1) by less than 10**-80."""
    near = 1 - Fraction(1, 10**80)  # No format has a value or a boundary between this and 1.
    return (-near, -near) if negative else (near, near)


def _bound_exp(x: Fraction, digits: int) -> Interval:
    x = max(min(x, Fraction(_FAR)), Fraction(-_FAR))
    if x == 0:
        return Fraction(1), Fraction(1)
    return _around(_decimal(x).exp(_context(digits + 5)), digits)


def _bound_log(x: Fraction, digits: int) -> Interval:
    if x == 1:
        return Fraction(0), Fraction(0)
    return _around(_decimal(x).ln(_context(digits + 5)), digits)


def _bound_tanh(x: Fraction, digits: int) -> Interval:
    """(e**2x - 1) / (e**2x + 1), with more digits for small x, where the numerator cancels."""
    if abs(x) > 100:
        return _below_one(x < 0)
    if x == 0:
        return x, x
    doubled = _decimal(2 * x)
    with localcontext(_context(digits + 10 + max(0, -doubled.adjusted()))):
        power = doubled.exp()
        return _around((power - 1) / (power + 1), digits)


def _bound_sigmoid(x: Fraction, digits: int) -> Interval:
    if x > 200:
        return _below_one(False)
    if x == 0:
        return Fraction(1, 2), Fraction(1, 2)
    low, high = _bound_exp(x, digits + 2)
    return low / (1 + low), high / (1 + high)


def _bound_erf(x: Fraction, digits: int) -> Interval:
    """2/sqrt(pi) exp(-x*x) sum 2**n x**(2n+1) / (1*3*...*(2n+1)), of one sign (DLMF 7.6.2)."""
    if abs(x) > 14:
        return _below_one(x < 0)
    if x == 0:
        return x, x
    exact = _decimal(x)
    with localcontext(_context(digits + 15)) as context:
        square = exact * exact
        term = total = exact
        n = 0
        # Once the ratio of terms is below 1/2, what is left out is less than the last term.
        while abs(term) > abs(total).scaleb(-digits - 10) or 4 * square > 2 * n + 1:
            n += 1
            term = term * 2 * square / (2 * n + 1)
            total += term
        factor = 2 * (-square).exp() / _pi(context.prec).sqrt()
        return _around(factor * total, digits)


@lru_cache(maxsize=16)
def _pi(digits: int) -> Decimal:
    """pi to `digits` digits: 16 atan(1/5) - 4 atan(1/239) (Machin, 1706)."""
    scale: int = 10 ** (digits + 10)

    def arctan_of_inverse(n: int) -> int:
        power: int = scale // n
        total, k = power, 1
        while power:
            power //= -n * n
            k += 2
            total += power // k
        return total

    scaled = 16 * arctan_of_inverse(5) - 4 * arctan_of_inverse(239)
    return Decimal(scaled).scaleb(-digits - 10, _context(digits + 10))


def _bound_sqrt(x: Fraction, digits: int) -> Interval:
    top, bottom = math.isqrt(x.numerator), math.isqrt(x.denominator)
    if top * top == x.numerator and bottom * bottom == x.denominator:
        return Fraction(top, bottom), Fraction(top, bottom)
    return _around(_decimal(x).sqrt(_context(digits + 5)), digits)


def _bound_rsqrt(x: Fraction, digits: int) -> Interval:
    low, high = _bound_sqrt(x, digits + 2)
    return 1 / high, 1 / low


FUNCTIONS: dict[str, MathFunction] = {
    function.name: function
    for function in (
        MathFunction("exp", _exp, _bound_exp, (0.0, math.inf)),
        MathFunction("log", np.log, _bound_log, (math.nan, math.inf)),
        MathFunction("tanh", np.tanh, _bound_tanh, (-1.0, 1.0)),
        MathFunction("sigmoid", _sigmoid, _bound_sigmoid, (0.0, 1.0)),
        MathFunction("erf", _erf, _bound_erf, (-1.0, 1.0)),
        MathFunction("sqrt", np.sqrt, _bound_sqrt, (math.nan, math.inf)),
        MathFunction("rsqrt", lambda x: 1.0 / np.sqrt(x), _bound_rsqrt, (math.nan, 0.0)),
    )
}
