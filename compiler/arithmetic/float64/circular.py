"""Circular functions of float64 numbers, all of them, and their inverses.

Sources: M. Payne and R. Hanek, "Radian reduction for trigonometric functions" (1983): of the
product of the operand's 53 bits and 2/pi only the bits that count are computed, in integers, for
every operand alike; J.-M. Muller, Elementary Functions (3rd edition 2016), chapter 11: no float64
number is within 2**-61 of a multiple of pi/2, relative to its reduction's unit. Series are
Taylor's, in pairs where it shows. atan is that of the nearest k/8 plus that of the rest.
"""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

from compiler.arithmetic.float64.constants import arctangents, parts, pi, two_over_pi
from compiler.arithmetic.float64.pairs import (
    Pair,
    add,
    bits_of,
    by_power,
    choose,
    divide,
    exact,
    magnitude,
    multiply,
    nearest_int,
    negated,
    number,
    pick,
    quick_sum,
    rational,
    rounded,
    series,
    square_root,
    subtract,
    two_product,
    two_sum,
    with_sign,
)
from compiler.tensor.expr import Expr, call, cast, const, select
from compiler.types.dtypes import FLOAT64, INT32, INT64, DType

UINT64 = DType("uint", 64)
INF, NAN = math.inf, math.nan
_QUARTER = math.pi / 4
_WORD = 0xFFFFFFFF
_TINY = 2.0**-28
_WINDOW = 7
"""Words of 2/pi that a product takes: 2 bits in front of the point, 53 of the operand, 61 that may
cancel, 53 of the result, and 23 more of a pair's, wherever in the first word they begin."""
_ZEROS = 2
"""Words of 0 in front of 2/pi, for small operands."""
_LAST = 971
"""The exponent of the largest number's last bit."""


def _window(at: Expr) -> list[Expr]:
    """Seven words of 2/pi from the word `at` on, by choices as in a shifter."""
    last = (_LAST - 2 + 32 * _ZEROS) >> 5
    count = last + _WINDOW
    known = (*[0] * _ZEROS, *two_over_pi(count - _ZEROS))
    words = [const(w, UINT64) for w in known]
    step = 1 << (last.bit_length() - 1)
    while step:
        moved = (at & step).equal(0)
        # What is left to move is less than a step, and together no more than `last`.
        need = _WINDOW + step - 1
        words = [
            select(moved, w, words[k + step]) if k + step < len(words) else w
            for k, w in enumerate(words[:need])
        ]
        step >>= 1
    return words


def _word(x: Expr) -> Expr:
    return x & _WORD


def _reduced(a: Expr) -> tuple[Pair, Expr]:
    """(r, int32 q) with a = r + q pi/2 (q modulo 4), |r| <= pi/4 and a bit, of a >= 0 that is
    finite."""
    small = a < _QUARTER
    code = bits_of(select(small, number(1.0), a))
    e = cast(code >> 52, INT32) - 1075
    mantissa = cast((code & ((1 << 52) - 1)) | (1 << 52), UINT64)
    first = e - 2 + 32 * _ZEROS  # the bit of 2/pi whose product counts twice: four times is none
    words = _window(first >> 5)
    left = cast(first & 31, UINT64)
    aligned = [(((high << 32) | low) << left) >> 32 for high, low in itertools.pairwise(words)][
        ::-1
    ]
    # The product modulo 2**192, column by column.
    m = (_word(mantissa), mantissa >> 32)
    columns: list[Expr] = []
    carry: Expr = const(0, UINT64)
    lower: list[Expr] = []
    for k in range(len(aligned)):
        terms = [m[0] * aligned[k], *([m[1] * aligned[k - 1]] if k else [])]
        total = carry
        for t in terms:
            total = total + _word(t)
        for t in lower:
            total = total + (t >> 32)
        columns.append(_word(total))
        carry, lower = total >> 32, terms
    top = (columns[5] << 32) | columns[4]
    quadrant = (top + (1 << 61)) >> 62
    rest = cast(top - (quadrant << 62), INT64)
    # Its magnitude but for one unit of 2**-190: words that are all positive.
    mask = rest >> 63
    high = cast(rest ^ mask, UINT64)
    flip = _word(cast(mask, UINT64))
    pieces = [high >> 32, _word(high), *(columns[k] ^ flip for k in (3, 2, 1))]
    floats = [cast(p, FLOAT64) * 2.0 ** (-30 - 32 * k) for k, p in enumerate(pieces)]
    front, back = two_sum(floats[0], floats[1]), two_sum(floats[2], floats[3])
    fraction = add(front, Pair(back.high, back.low + floats[4]))
    r = multiply(fraction, rational(pi() / 2))
    sign = select(mask.equal(0), number(1.0), number(-1.0))
    return choose(small, exact(a), by_power(r, sign)), select(
        small, const(0, INT32), cast(quadrant, INT32)
    )


def _sine(r: Pair, squared: Pair) -> Pair:
    terms = [Fraction((-1) ** (n + 1), math.factorial(2 * n + 3)) for n in range(9)]
    return add(r, multiply(multiply(r, squared), series(terms, squared, 1)))


def _cosine(squared: Pair) -> Pair:
    terms = [Fraction((-1) ** (n + 1), math.factorial(2 * n + 2)) for n in range(9)]
    return add(exact(number(1.0)), multiply(squared, series(terms, squared, 2)))


def _both(a: Expr) -> tuple[Pair, Pair, Expr]:
    r, quadrant = _reduced(a)
    squared = multiply(r, r)
    return _sine(r, squared), _cosine(squared), quadrant


def _turned(size: Expr, back: Expr) -> Expr:
    """`size`, negative where an int32 is not 0."""
    return select(back.equal(0), size, negated(size))


def sin(x: Expr) -> Expr:
    """Sine: within 0.51 units in the last place."""
    a = magnitude(x)
    sine, cosine, quadrant = _both(a)
    out = rounded(choose((quadrant & 1).equal(0), sine, cosine))
    out = _turned(_turned(out, quadrant & 2), cast(bits_of(x) >> 63, INT32))
    return select(a < INF, select(a < _TINY, x, out), number(NAN))


def cos(x: Expr) -> Expr:
    """Cosine: within 0.51 units in the last place."""
    a = magnitude(x)
    sine, cosine, quadrant = _both(a)
    out = rounded(choose((quadrant & 1).equal(0), cosine, sine))
    return select(a < INF, _turned(out, (quadrant + 1) & 2), number(NAN))


def tan(x: Expr) -> Expr:
    """Tangent: within 0.51 units in the last place."""
    a = magnitude(x)
    sine, cosine, quadrant = _both(a)
    even = (quadrant & 1).equal(0)
    out = rounded(divide(choose(even, sine, cosine), choose(even, cosine, sine)))
    out = _turned(_turned(out, quadrant & 1), cast(bits_of(x) >> 63, INT32))
    return select(a < INF, select(a < _TINY, x, out), number(NAN))


def _angle(y: Pair, x: Pair) -> Pair:
    """atan(y/x), of y >= 0 and x >= 0 of which one is not 0."""
    swapped = y.high > x.high
    q = divide(choose(swapped, x, y), choose(swapped, y, x))
    eighths = call("round", q.high * 8.0)
    c = eighths * 0.125
    above = two_sum(q.high - c, q.low)  # the difference is exact
    product = two_product(q.high, c)
    below = add(exact(number(1.0)), quick_sum(product.high, product.low + q.low * c))
    t = divide(above, below)
    squared = multiply(t, t)
    terms = [Fraction((-1) ** (n + 1), 2 * n + 3) for n in range(9)]
    rest = add(t, multiply(multiply(t, squared), series(terms, squared, 1)))
    known = [parts(v) for v in arctangents()]
    k = nearest_int(eighths)
    near = Pair(*(pick(k, [v[n] for v in known]) for n in range(2)))
    angle = add(near, rest)
    return choose(swapped, subtract(rational(pi() / 2), angle), angle)


def atan(x: Expr) -> Expr:
    """Arc tangent: within 0.51 units in the last place."""
    a = magnitude(x)
    bounded = select(a > 2.0**70, number(2.0**70), a)
    out = rounded(_angle(exact(bounded), exact(number(1.0))))
    return with_sign(select(a < _TINY, a, out), x)


def _beside_one(x: Expr) -> tuple[Pair, Pair]:
    """1 - x and 1 + x."""
    one = number(1.0)
    return two_sum(one, negated(x)), two_sum(one, x)


def asin(x: Expr) -> Expr:
    """Arc sine: within 0.51 units in the last place."""
    a = magnitude(x)
    out = rounded(_angle(exact(a), square_root(multiply(*_beside_one(a)))))
    return with_sign(select(a < _TINY, a, select(a > 1.0, number(NAN), out)), x)


def acos(x: Expr) -> Expr:
    """Arc cosine: within 0.51 units in the last place."""
    below, above = map(square_root, _beside_one(x))
    out = rounded(_angle(below, above)) * 2.0
    return select(magnitude(x) > 1.0, number(NAN), out)
