"""Float64 numbers of twice the length as pairs of expressions, high + low, which do not overlap.

Functions of float64 are computed in them where a single rounding before the last would show, so
that results are within 0.51 to 0.6 units in the last place: rounded to float32 or float16, they are
those of any good C library but once in hundreds of millions.

Every operation is an addition, a multiplication or a fused multiply-add that rounds to nearest.
Sources: T. Dekker, "A floating-point technique for extending the available precision" (1971); D.
Knuth, The Art of Computer Programming, volume 2 (two-sum); J.-M. Muller and others, Handbook of
Floating-Point Arithmetic (2nd edition 2018), chapters 4, 11 and 14.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

from compiler.arithmetic.float64.constants import parts
from compiler.tensor.expr import Expr, call, cast, const, select
from compiler.types.dtypes import FLOAT64, INT32, INT64

SIGN = -(1 << 63)


class Pair(NamedTuple):
    """high + low, |low| at most half a unit in the last place of high."""

    high: Expr
    low: Expr


def number(x: float) -> Expr:
    """A float64 constant."""
    return const(x, FLOAT64)


def exact(x: Expr) -> Pair:
    """A float64 number as a pair."""
    return Pair(x, number(0.0))


def rational(x: Fraction) -> Pair:
    """A constant, to 106 bits."""
    high, low = parts(x)
    return Pair(number(high), number(low))


def fma(a: Expr, b: Expr, c: Expr) -> Expr:
    """a * b + c, rounded once."""
    return call("fma", a, b, c)


def negated(a: Expr) -> Expr:
    """-a."""
    return a * -1.0


def quick_sum(a: Expr, b: Expr) -> Pair:
    """a + b, exactly, if |a| >= |b| or a is 0."""
    total = a + b
    return Pair(total, b - (total - a))


def two_sum(a: Expr, b: Expr) -> Pair:
    """a + b, exactly."""
    total = a + b
    of_b = total - a
    return Pair(total, (a - (total - of_b)) + (b - of_b))


def two_product(a: Expr, b: Expr) -> Pair:
    """a * b, exactly unless its low part is subnormal."""
    product = a * b
    return Pair(product, fma(a, b, negated(product)))


def add(a: Pair, b: Pair) -> Pair:
    """a + b; an error of 2**-104 relative to the larger operand."""
    total = two_sum(a.high, b.high)
    return quick_sum(total.high, total.low + (a.low + b.low))


def subtract(a: Pair, b: Pair) -> Pair:
    """a - b: see add."""
    return add(a, Pair(negated(b.high), negated(b.low)))


def multiply(a: Pair, b: Pair) -> Pair:
    """a * b, within 2**-102 of it."""
    product = two_product(a.high, b.high)
    return quick_sum(product.high, fma(a.high, b.low, fma(a.low, b.high, product.low)))


def scaled(a: Pair, factor: Expr) -> Pair:
    """a times a float64 number."""
    product = two_product(a.high, factor)
    return quick_sum(product.high, fma(a.low, factor, product.low))


def by_power(a: Pair, factor: Expr) -> Pair:
    """a times a power of two, exactly."""
    return Pair(a.high * factor, a.low * factor)


def divide(a: Pair, b: Pair) -> Pair:
    """a / b, within 2**-100 of it; b is not 0."""
    quotient = a.high / b.high
    left = fma(negated(quotient), b.high, a.high) + fma(negated(quotient), b.low, a.low)
    return quick_sum(quotient, left / b.high)


def square_root(a: Pair) -> Pair:
    """The root of a number that is not negative."""
    root = call("sqrt", a.high)
    left = fma(negated(root), root, a.high) + a.low
    return quick_sum(root, select(root.equal(0.0), number(0.0), left / (root + root)))


def choose(condition: Expr, a: Pair, b: Pair) -> Pair:
    """`a` where the condition holds, else `b`."""
    return Pair(select(condition, a.high, b.high), select(condition, a.low, b.low))


def rounded(a: Pair) -> Expr:
    """The nearest float64 number."""
    return a.high + a.low


def series(coefficients: Sequence[Fraction], x: Pair, precise: int) -> Pair:
    """c0 + c1 x + c2 x**2 + ... by Horner's rule: the first `precise` coefficients in pairs, the
    rest in float64."""
    floats = [float(c) for c in coefficients]
    tail = number(floats[-1])
    for c in reversed(floats[precise:-1]):
        tail = fma(tail, x.high, number(c))
    out = add(rational(coefficients[precise - 1]), scaled(x, tail))
    for coefficient in reversed(coefficients[: precise - 1]):
        out = add(rational(coefficient), multiply(x, out))
    return out


def pick(at: Expr, values: Sequence[float]) -> Expr:
    """The value at an int32 position, by a tree of choices: a table without memory."""
    found, bit = [number(v) for v in values], 1
    while len(found) > 1:
        odd = (at & bit).equal(0)
        last = [] if len(found) % 2 == 0 else [found[-1]]
        pairs = zip(found[::2], found[1::2], strict=False)
        found, bit = [*(select(odd, a, b) for a, b in pairs), *last], bit << 1
    return found[0]


def bits_of(x: Expr) -> Expr:
    """The code of a float64 number, as int64."""
    return call("bits", x, dtype=INT64)


def of_bits(code: Expr) -> Expr:
    """The float64 number of an int64 code."""
    return call("bits", code, dtype=FLOAT64)


def power_of_two(k: Expr) -> Expr:
    """2**k for an int32 -1022 <= k <= 1023."""
    return of_bits((cast(k, INT64) + 1023) << 52)


def nearest_int(x: Expr) -> Expr:
    """A float64 number as the nearest int32."""
    return call("rint_i32", x, dtype=INT32)


def with_sign(size: Expr, x: Expr) -> Expr:
    """`size`, which has the sign +, with the sign of x."""
    return of_bits(bits_of(size) | (bits_of(x) & SIGN))


def at_most(x: Expr, bound: float) -> Expr:
    """x, or the bound if that is less; NaN stays."""
    return select(x > bound, number(bound), x)


def at_least(x: Expr, bound: float) -> Expr:
    """x, or the bound if that is more; NaN stays."""
    return select(x < bound, number(bound), x)


def magnitude(x: Expr) -> Expr:
    """|x|."""
    return call("abs", x)
