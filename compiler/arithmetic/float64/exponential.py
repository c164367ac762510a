"""exp, log, pow and the hyperbolic functions of float64 numbers, and their inverses.

Sources: ranges are reduced by parts of ln 2 (W. Cody and W. Waite, Software Manual for the
Elementary Functions, 1980) with a fused multiply-add; log is 2 atanh(f/(2 + f)), as in fdlibm (K.
C. Ng, 1993), without its tables of coefficients: series are Taylor's, in pairs where it shows. What
infinities, zeros and NaN give is C's annex F.
"""

from __future__ import annotations

import math
from fractions import Fraction

from compiler.arithmetic.float64.constants import ln2, parts, reciprocals
from compiler.arithmetic.float64.pairs import (
    Pair,
    add,
    at_least,
    at_most,
    bits_of,
    by_power,
    choose,
    divide,
    exact,
    fma,
    magnitude,
    multiply,
    nearest_int,
    negated,
    number,
    of_bits,
    power_of_two,
    quick_sum,
    rounded,
    scaled,
    series,
    square_root,
    subtract,
    two_product,
    two_sum,
    with_sign,
)
from compiler.tensor.expr import Expr, call, cast, const, select
from compiler.types.dtypes import FLOAT64, INT32

INF, NAN = math.inf, math.nan
_LOG2E = 1.4426950408889634
_SHORT = 42
"""Bits of the first part of ln 2: the product with a number of 11 bits is exact."""
_MOST, _LEAST = 711.0, -746.0
"""From where on e**x/2 is an infinity, and e**x 0."""
_TINY = 2.0**-28
"""Below, odd functions whose derivative is 1 at 0 are their operand."""
_LARGE = 2.0**30
"""Above, x*x + 1 is x*x."""
_ROOT_HALF = 0x3FE6A09E667F3BCD
"""The code of sqrt(1/2)."""


def _ln2_parts() -> tuple[float, float, float]:
    short = Fraction(int(ln2() * 2**_SHORT), 2**_SHORT)
    second, third = parts(ln2() - short)
    return float(short), second, third


def _power(x: Pair) -> tuple[Pair, Expr]:
    """(p, int32 k) with e**x = p * 2**k, p from 0.7 to 1.42: an error of 2**-60."""
    first, second, third = (number(-v) for v in _ln2_parts())
    k = call("round", x.high * _LOG2E)
    near = fma(k, first, x.high)  # exact: both are multiples of the last place of one of them
    moved = two_product(k, second)
    rest = two_sum(near, moved.high)
    low = rest.low + (fma(k, third, moved.low) + x.low)
    r = quick_sum(rest.high, low)
    whole = series([Fraction(1, math.factorial(n)) for n in range(16)], r, 3)
    return whole, nearest_int(k)


def _by_power_of_two(x: Expr, k: Expr) -> Expr:
    """x * 2**k, where that may be subnormal or infinite."""
    half = k >> 1
    return x * power_of_two(half) * power_of_two(k - half)


def _inside(x: Expr) -> Expr:
    return at_least(at_most(x, _MOST), _LEAST)


def exp(x: Expr) -> Expr:
    """e**x: within 0.51 units in the last place; of subnormal results within 1."""
    power, k = _power(exact(_inside(x)))
    return _by_power_of_two(rounded(power), k)


def _logarithm(y: Pair, less_one: Pair, precise: int) -> tuple[Expr, Pair]:
    """(float64 k, l) with log(y) = k ln 2 + l, of a positive finite number y.

    Args:
        y: the number.
        less_one: y - 1, with all its bits, which count where y is about 1.
        precise: see `series`.
    """
    tiny = y.high < 2.0**-1022
    high = select(tiny, y.high * 2.0**54, y.high)
    code = bits_of(high)
    e = (code - _ROOT_HALF) >> 52
    k = cast(cast(e, INT32), FLOAT64)
    mantissa = of_bits(code - (e << 52))
    # Not 2**-k, which may be out of range: y is no pair where it is so large or small.
    factor = power_of_two(select(tiny | (e > 1000), const(0, INT32), 0 - cast(e, INT32)))
    low = y.low * factor
    f = choose(cast(e, INT32).equal(0), less_one, two_sum(mantissa - 1.0, low))
    s = divide(f, add(exact(number(2.0)), f))
    squared = multiply(s, s)
    odd = series(reciprocals(range(1, 26, 2)), squared, precise)
    out = multiply(s, odd)
    return select(tiny, k - 54.0, k), by_power(out, number(2.0))


def _with_ln2(k: Expr, rest: Pair) -> Pair:
    """k ln 2 + rest."""
    first, second, third = map(number, _ln2_parts())
    return add(exact(k * first), add(scaled(Pair(second, third), k), rest))


def _log(y: Pair, less_one: Pair, more: Expr | None = None, precise: int = 2) -> Pair:
    """log(y), plus `more` times ln 2."""
    k, rest = _logarithm(y, less_one, precise)
    return _with_ln2(k if more is None else k + more, rest)


def log(x: Expr) -> Expr:
    """Natural logarithm: within 0.51 units in the last place."""
    out = rounded(_log(exact(x), exact(x - 1.0)))
    out = select(x.equal(0.0), number(-INF), out)
    out = select(x < 0.0, number(NAN), out)
    return select(x < INF, out, x)  # infinity and NaN are theirs


def pow(x: Expr, y: Expr) -> Expr:
    """x**y: within 0.51 units in the last place; of subnormal results within 1."""
    size = magnitude(x)
    log_size = _log(exact(size), exact(size - 1.0), precise=4)
    exponent = at_least(at_most(y, 2.0**66), -(2.0**66))  # beyond, the result is 0, 1 or infinite
    product = scaled(log_size, exponent)
    within = (product.high < _MOST) & (product.high > _LEAST)
    power, k = _power(Pair(_inside(product.high), select(within, product.low, number(0.0))))
    out = _by_power_of_two(rounded(power), k)
    down = y < 0.0
    of_zero, of_infinity = (select(down, number(a), number(b)) for a, b in ((INF, 0.0), (0.0, INF)))
    out = select(size.equal(0.0), of_zero, out)
    out = select(size.equal(INF), of_infinity, out)
    half = y * 0.5
    whole, even = (call("floor", v).equal(v) for v in (y, half))
    negative = bits_of(x) < 0
    out = select(negative & whole & (even.equal(False)), with_sign(out, number(-1.0)), out)
    undefined = (x < 0.0) & (size < INF) & whole.equal(False)
    out = select(undefined, number(NAN), out)
    known = x.equal(x) & y.equal(y)
    out = select(known, out, x + y)
    return select(y.equal(0.0) | x.equal(1.0), number(1.0), out)


def _halves(a: Expr) -> tuple[Pair, Pair, Expr]:
    """(s, c, int32 k) with sinh(a) = s * 2**(k-1) and cosh(a) = c * 2**(k-1), of a >= 0."""
    power, k = _power(exact(_inside(a)))
    twice = k + k
    down = power_of_two(select(twice < 1000, 0 - twice, -1000))
    other = by_power(divide(exact(number(1.0)), power), down)
    return subtract(power, other), add(power, other), k


def _small_sinh(a: Expr) -> Pair:
    """sinh(a), a < 0.5."""
    x = exact(a)
    squared = two_product(a, a)
    factor = series([Fraction(1, math.factorial(2 * n + 3)) for n in range(9)], squared, 1)
    return add(x, multiply(scaled(squared, a), factor))


def sinh(x: Expr) -> Expr:
    """Hyperbolic sine: within 0.52 units in the last place."""
    a = magnitude(x)
    difference, _, k = _halves(a)
    large = _by_power_of_two(rounded(difference), k - 1)
    out = select(a < 0.5, rounded(_small_sinh(a)), large)
    return with_sign(select(a < _TINY, a, out), x)


def cosh(x: Expr) -> Expr:
    """Hyperbolic cosine: within 0.52 units in the last place."""
    _, total, k = _halves(magnitude(x))
    return _by_power_of_two(rounded(total), k - 1)


def tanh(x: Expr) -> Expr:
    """Hyperbolic tangent: within 0.52 units in the last place."""
    a = magnitude(x)
    difference, total, k = _halves(at_most(a, 20.0))
    small = by_power(_small_sinh(a), power_of_two(1 - k))
    out = rounded(divide(choose(a < 0.5, small, difference), total))
    return with_sign(select(a < _TINY, a, out), x)


def asinh(x: Expr) -> Expr:
    """Inverse hyperbolic sine: within 0.52 units in the last place."""
    a = magnitude(x)
    large = a > _LARGE
    b = select(large, number(1.0), a)
    squared, one = two_product(b, b), exact(number(1.0))
    root = square_root(add(one, squared))
    less_one = add(exact(b), divide(squared, add(one, root)))
    y = choose(large, exact(a), add(one, less_one))
    out = rounded(_log(y, less_one, select(large, number(1.0), number(0.0))))
    out = select(a < _TINY, a, out)
    return with_sign(select(a < INF, out, a), x)


def acosh(x: Expr) -> Expr:
    """Inverse hyperbolic cosine: within 0.52 units in the last place."""
    large = x > _LARGE
    b = select(large, number(2.0), x)
    one = exact(number(1.0))
    t = two_sum(b, number(-1.0))
    root = square_root(multiply(t, add(t, exact(number(2.0)))))
    less_one = add(t, root)
    y = choose(large, exact(x), add(one, less_one))
    out = rounded(_log(y, less_one, select(large, number(1.0), number(0.0))))
    out = select(x < 1.0, number(NAN), out)
    return select(x < INF, out, x)


def atanh(x: Expr) -> Expr:
    """Inverse hyperbolic tangent: within 0.52 units in the last place."""
    a = magnitude(x)
    one = exact(number(1.0))
    less_one = divide(exact(a + a), two_sum(number(1.0), negated(a)))
    out = rounded(_log(add(one, less_one), less_one)) * 0.5
    out = select(a < _TINY, a, out)
    out = select(a.equal(1.0), number(INF), out)
    out = select(a > 1.0, number(NAN), out)
    return with_sign(out, x)
