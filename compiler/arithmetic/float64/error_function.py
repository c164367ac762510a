"""The error function of float64 numbers: from its value at the nearest quarter c, the integral of
its derivative, 2/sqrt(pi) e**(-c*c) e**(-2 c u - u*u), by the power series of that, whose terms
follow from the two before (Abramowitz and Stegun 22.7.13, of Hermite's polynomials)."""

from __future__ import annotations

from compiler.arithmetic.float64.constants import error_functions, parts
from compiler.arithmetic.float64.pairs import (
    Pair,
    add,
    at_most,
    fma,
    magnitude,
    multiply,
    nearest_int,
    number,
    pick,
    quick_sum,
    rounded,
    scaled,
    with_sign,
)
from compiler.tensor.expr import Expr, call

_ONE = 6.0
"""From here on it is 1."""
_TERMS = 15


def erf(x: Expr) -> Expr:
    """Error function: within 0.52 units in the last place."""
    a = at_most(magnitude(x), _ONE)
    quarters = call("round", a * 4.0)
    c = quarters * 0.25
    h = a - c  # exact
    twice = c * -2.0
    # Terms of e**(-2 c u - u*u) but the first, 1: a(n+1) = (-2 c a(n) - 2 a(n-1)) / (n+1).
    terms = [number(1.0), twice]
    for n in range(1, _TERMS):
        terms.append(fma(twice, terms[n], terms[n - 1] * -2.0) * (1.0 / (n + 1)))
    total = terms[-1] * (1.0 / (_TERMS + 1))
    for n in range(_TERMS - 1, 0, -1):
        total = fma(total, h, terms[n] * (1.0 / (n + 1)))
    factor = quick_sum(number(1.0), total * h)
    known = [(*parts(value), *parts(slope)) for value, slope in error_functions()]
    k = nearest_int(quarters)
    value, slope = (
        Pair(*(pick(k, [row[n] for row in known]) for n in at)) for at in ((0, 1), (2, 3))
    )
    return with_sign(rounded(add(value, scaled(multiply(slope, factor), h))), x)
