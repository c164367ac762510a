"""What is left of a division of float64 numbers, exactly: long division, 52 bits a step. A step's
quotient is too large by one at most, and its remainder has no more bits than the divisor, so that a
fused multiply-add gives it without rounding."""

from __future__ import annotations

import math

from compiler.arithmetic.float64.pairs import (
    bits_of,
    fma,
    magnitude,
    negated,
    number,
    of_bits,
    power_of_two,
    with_sign,
)
from compiler.tensor.expr import Expr, call, cast, const, select
from compiler.types.dtypes import INT32

_STEP = 52
_FLOAT64, _FLOAT32 = 2046 + 52, 254 + 23
"""The most that exponents of two numbers differ by, subnormal ones included."""


def fmod(x: Expr, y: Expr) -> Expr:
    """C's fmod: exact, with the sign of x."""
    return _fmod(x, y, _FLOAT64)


def short_fmod(x: Expr, y: Expr) -> Expr:
    """The same, of numbers that float32 has."""
    return _fmod(x, y, _FLOAT32)


def _split(a: Expr) -> tuple[Expr, Expr]:
    """(m, int32 e) with a = m * 2**e, 1 <= m < 2, of a positive number."""
    tiny = a < 2.0**-1022
    code = bits_of(select(tiny, a * 2.0**54, a))
    e = cast(code >> 52, INT32) - 1023
    mantissa = of_bits((code & ((1 << 52) - 1)) | (1023 << 52))
    return mantissa, select(tiny, e - 54, e)


def _fmod(x: Expr, y: Expr, apart: int) -> Expr:
    a, b = magnitude(x), magnitude(y)
    (left, above), (by, below) = _split(a), _split(b)
    difference = above - below
    left = select(left < by, left, left - by)
    for k in range(-(-apart // _STEP)):
        rest = difference - k * _STEP
        rest = select(rest < _STEP, rest, _STEP)
        moved = left * power_of_two(_not_negative(rest))
        quotient = call("floor", moved / by)
        found = fma(negated(quotient), by, moved)
        left = select(found < 0.0, found + by, found)
    half = below >> 1
    out = left * power_of_two(half) * power_of_two(below - half)
    out = with_sign(select(a < b, a, out), x)
    fine = (a < math.inf) & (b > 0.0)  # NaN is neither
    out = select(fine, out, number(math.nan))
    return select(b.equal(b), out, y)


def _not_negative(k: Expr) -> Expr:
    return select(k < 0, const(0, INT32), k)
