"""Arithmetic of logarithmic formats, on arrays of codes and, exactly, on single codes.

Products and quotients add exponents and never round. A sum of magnitudes 2**a + 2**b, a >= b, is
2**(a + log2(1 + 2**-(a - b))): the correction depends on the distance of the exponents only, so a
table of it, correctly rounded, gives correctly rounded sums (Swartzlander and Alexopoulos 1975).
"""

from __future__ import annotations

from decimal import Context, Decimal, localcontext
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from compiler.arithmetic.scalar_functions import FUNCTIONS
from compiler.errors import InputError
from datatypes.formats import Format
from datatypes.formats.logarithmic import LogarithmCode

Array = npt.NDArray[Any]

_DOUBTFUL = 1e-6
"""float64 corrections, in units of the last place, that may be wrong to so much are done again."""
_DIGITS = (30, 60, 120, 240)


def code_of(fmt: Format) -> LogarithmCode:
    """The encoding of a logarithmic format."""
    family: object = fmt.decoder
    assert isinstance(family, LogarithmCode)
    return family


def apply(fmt: Format, op: str, *codes: Array) -> Array:
    """Add, Sub, Mul, Div, or a function that is a power (sqrt, rsqrt), on arrays of codes, which
    broadcast; correctly rounded. A power multiplies the exponent; of ties, the even code."""
    bias, nan = code_of(fmt).bias, fmt.sign_bit
    numbers = [np.asarray(c).astype(np.int64) for c in codes]
    invalid = np.logical_or.reduce(np.broadcast_arrays(*(c == nan for c in numbers)))
    a, b = numbers[0], numbers[-1]
    x, y = a & (nan - 1), b & (nan - 1)
    sign = (a ^ b) & nan
    power = FUNCTIONS[op].power if op in FUNCTIONS else None
    if power is not None:
        root = np.rint((x - bias) * power + bias)
        invalid |= (a > nan) | ((power < 0) & (x == 0))
        return _packed(fmt, np.where(x == 0, 0, root.astype(np.int64)), 0 * x, invalid)
    if op == "Mul":
        return _packed(fmt, np.where((x == 0) | (y == 0), 0, x + y - bias), sign, invalid)
    if op == "Div":
        return _packed(fmt, np.where(x == 0, 0, x - y + bias), sign, invalid | (y == 0))
    if op == "Sub":
        b, sign = np.where(y == 0, b, b ^ nan), sign ^ nan
    larger, distance = np.maximum(x, y), np.abs(x - y)
    same = sign == 0
    total = larger + np.where(same, corrections(fmt, 1)[distance], corrections(fmt, -1)[distance])
    total = np.where((x == 0) | (y == 0), larger, total)
    return _packed(fmt, total, np.where(x >= y, a, b) & nan, invalid)


def _packed(fmt: Format, magnitude: Array, sign: Array, invalid: Array) -> Array:
    """Codes of magnitudes, saturated above and zero below the range, and signs."""
    kept = np.minimum(magnitude, fmt.highest)
    code = np.where(kept < 1, 0, kept | sign)
    return np.asarray(np.where(invalid, fmt.nan_code, code), fmt.storage)


@lru_cache(maxsize=16)
def corrections(fmt: Format, sign: int) -> Array:
    """Read-only int64[2**(nbits-1)]: log2(1 + sign * 2**-d) in units, for distances d in units.

    At d = 0, for a difference, it is so low that nothing is left: zero.
    """
    units = 1 << code_of(fmt).fraction
    distance = np.arange(fmt.sign_bit)
    with np.errstate(divide="ignore"):
        exact = units * np.log2(1 + sign * np.exp2(-distance / units))
    if sign < 0:
        # log2(1 - 2**-d) without the cancellation in the difference
        with np.errstate(divide="ignore"):
            exact = units * np.log2(-np.expm1(-distance / units * np.log(2.0)))
        exact[0] = -2.0 * fmt.sign_bit
    table = np.rint(exact).astype(np.int64)
    doubtful = np.abs(np.abs(exact - np.floor(exact)) - 0.5) < _DOUBTFUL
    for d in np.nonzero(doubtful)[0].tolist():
        table[d] = _decided(
            lambda digits, d=d: _log_of_sum(Fraction(-d, units), sign, digits), units
        )
    table.flags.writeable = False
    return np.asarray(table)


def sum_of_codes(fmt: Format, a: int, b: int) -> int:
    """Correctly rounded sum of two codes from interval arithmetic alone: the oracle of `apply`."""
    code = code_of(fmt)
    if fmt.nan_code in (a, b):
        return fmt.nan_code
    if a == 0 or b == 0:
        return a | b
    units = 1 << code.fraction
    if a & (fmt.sign_bit - 1) < b & (fmt.sign_bit - 1):
        a, b = b, a
    x, y = (c & (fmt.sign_bit - 1) for c in (a, b))
    same = (a ^ b) & fmt.sign_bit == 0
    if x == y and not same:
        return 0
    base = Fraction(x - code.bias, units)
    below = Fraction(y - x, units)

    def bounds(digits: int) -> tuple[Fraction, Fraction]:
        low, high = _log_of_sum(below, 1 if same else -1, digits)
        return base + low, base + high

    magnitude = min(_decided(bounds, units) + code.bias, fmt.highest)
    return magnitude | a & fmt.sign_bit if magnitude >= 1 else 0


def _decided(bounds: Any, units: int) -> int:
    """The integer nearest to `units` times a number given by ever closer bounds."""
    for digits in _DIGITS:
        low, high = (round(bound * units) for bound in bounds(digits))
        if low == high:
            return int(low)
    raise InputError("the sum of two logarithmic numbers is too near to a tie to decide")


def _log_of_sum(exponent: Fraction, sign: int, digits: int) -> tuple[Fraction, Fraction]:
    """Bounds of log2(1 + sign * 2**exponent), exponent <= 0, about 10**-digits apart."""
    with localcontext(Context(prec=digits + 40)):
        power = Decimal(2) ** (Decimal(exponent.numerator) / Decimal(exponent.denominator))
        value = Fraction((1 + sign * power).ln() / Decimal(2).ln())
    slack = (1 + abs(value)) / 10**digits
    return value - slack, value + slack
