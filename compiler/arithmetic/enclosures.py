"""Bounds of scalar functions of a rational number, to any number of digits.

Each takes x inside the function's domain and a number of digits, and gives exact bounds of f(x)
that are about 10**-digits apart, relative to f(x); the same number twice where f(x) is rational.
Number formats have values within 2**+-1000 only: what lies beyond may be replaced by anything that
does.
"""

from __future__ import annotations

import math
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal, localcontext
from fractions import Fraction
from functools import lru_cache

Interval = tuple[Fraction, Fraction]

FAR = 700.0
"""exp(+-FAR) is beyond the range of every format, but not of float64."""


def context_of(digits: int) -> Context:
    """Decimal arithmetic of so many digits, of any exponent."""
    return Context(prec=digits, Emax=MAX_EMAX, Emin=MIN_EMIN)


def decimal_of(x: Fraction) -> Decimal:
    """`x` as a Decimal, exactly: values within 2**+-1000 have fewer than 1200 digits."""
    with localcontext(context_of(1200)):
        return Decimal(x.numerator) / Decimal(x.denominator)


def around(value: Decimal, digits: int) -> Interval:
    """Bounds of a number known to a relative error below 10**-digits."""
    center = Fraction(value)
    slack = abs(center) / 10**digits
    return center - slack, center + slack


def _below_one(negative: bool) -> Interval:
    """Stands for a number that differs from 1 (or -1) by less than 10**-80."""
    near = 1 - Fraction(1, 10**80)  # No format has a value or a boundary between this and 1.
    return (-near, -near) if negative else (near, near)


def exp(x: Fraction, digits: int) -> Interval:
    """e**x."""
    x = max(min(x, Fraction(FAR)), Fraction(-FAR))
    if x == 0:
        return Fraction(1), Fraction(1)
    return around(decimal_of(x).exp(context_of(digits + 5)), digits)


def log(x: Fraction, digits: int) -> Interval:
    """Natural logarithm."""
    if x == 1:
        return Fraction(0), Fraction(0)
    return around(decimal_of(x).ln(context_of(digits + 5)), digits)


def tanh(x: Fraction, digits: int) -> Interval:
    """(e**2x - 1) / (e**2x + 1), with more digits for small x, where the numerator cancels."""
    if abs(x) > 100:
        return _below_one(x < 0)
    if x == 0:
        return x, x
    doubled = decimal_of(2 * x)
    with localcontext(context_of(digits + 10 + max(0, -doubled.adjusted()))):
        power = doubled.exp()
        return around((power - 1) / (power + 1), digits)


def sigmoid(x: Fraction, digits: int) -> Interval:
    """1 / (1 + e**-x), as e**x / (1 + e**x)."""
    if x > 200:
        return _below_one(False)
    if x == 0:
        return Fraction(1, 2), Fraction(1, 2)
    low, high = exp(x, digits + 2)
    return low / (1 + low), high / (1 + high)


def erf(x: Fraction, digits: int) -> Interval:
    """2/sqrt(pi) exp(-x*x) sum 2**n x**(2n+1) / (1*3*...*(2n+1)), of one sign (DLMF 7.6.2)."""
    if abs(x) > 14:
        return _below_one(x < 0)
    if x == 0:
        return x, x
    exact = decimal_of(x)
    with localcontext(context_of(digits + 15)) as context:
        square = exact * exact
        term = total = exact
        n = 0
        # Once the ratio of terms is below 1/2, what is left out is less than the last term.
        while abs(term) > abs(total).scaleb(-digits - 10) or 4 * square > 2 * n + 1:
            n += 1
            term = term * 2 * square / (2 * n + 1)
            total += term
        factor = 2 * (-square).exp() / _pi(context.prec).sqrt()
        return around(factor * total, digits)


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
    return Decimal(scaled).scaleb(-digits - 10, context_of(digits + 10))


def sqrt(x: Fraction, digits: int) -> Interval:
    """Square root."""
    top, bottom = math.isqrt(x.numerator), math.isqrt(x.denominator)
    if top * top == x.numerator and bottom * bottom == x.denominator:
        return Fraction(top, bottom), Fraction(top, bottom)
    return around(decimal_of(x).sqrt(context_of(digits + 5)), digits)


def rsqrt(x: Fraction, digits: int) -> Interval:
    """1 / sqrt(x)."""
    low, high = sqrt(x, digits + 2)
    return 1 / high, 1 / low
