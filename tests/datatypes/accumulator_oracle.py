"""Sums in an accumulator, in fractions, independently of the package's numpy: what a description
means, term by term."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache

import numpy as np
from sum_oracle import Oracle, Term

from compiler.op.accumulator import Accumulator, accumulator
from compiler.types.dtypes import Array
from datatypes.formats import Format, get
from datatypes.formats.minifloat import FloatCode

Round = Callable[[Fraction], Fraction]


class Outside(Exception):
    """A number that a format does not hold: what follows is NaN or infinite."""


def rounding(name: str, truncate: bool) -> Round:
    """To a format, or float32 or float64."""
    if name == "float64":
        return lambda x: Fraction(float(x))
    held = {"float32": "float32_e8m23"}.get(name, name)
    fmt = get(f"{held}_truncate" if truncate else held)

    def rounded(x: Fraction) -> Fraction:
        found = fmt.decode_exact(fmt.encode_exact(x))
        if not isinstance(found, Fraction):
            raise Outside
        return found

    code: object = fmt.decoder
    plain = fmt.rounding in ("nearest", "zero")
    if not isinstance(code, FloatCode) or not code.subnormals or not plain:
        return rounded
    least, places, largest = 1 - code.bias, code.mantissa, fmt.maxpos
    cut = fmt.rounding == "zero"

    def directly(x: Fraction) -> Fraction:
        """The same by what a float is: an integer in units of its last place."""
        found = in_units(x, (max(_exponent(x), least) if x else least) - places, cut)
        return found if abs(found) <= largest else rounded(x)

    return directly


def in_units(x: Fraction, exponent: int, truncate: bool) -> Fraction:
    """x as a multiple of 2**exponent: the nearest, of two the even one; or toward zero."""
    unit = Fraction(1 << exponent) if exponent >= 0 else Fraction(1, 1 << -exponent)
    n, rest = divmod(abs(x).numerator * unit.denominator, x.denominator * unit.numerator)
    twice, whole = 2 * rest, x.denominator * unit.numerator
    n += not truncate and (twice > whole or (twice == whole and n & 1))
    return (-n if x < 0 else n) * unit


@dataclass(frozen=True)
class AccumulatorOracle(Oracle):
    """`Oracle` with sums in the accumulator that `mode` describes."""

    @property
    def how(self) -> Accumulator:
        found = accumulator(self.mode)
        assert found is not None
        return found

    def sum(self, terms: Iterable[Term], start: Fraction | None = None) -> Fraction:
        a = self.how
        inner = rounding(a.format, a.rounding == "truncate")
        if a.stepwise:
            acc = Fraction(0) if start is None else inner(start)
            for t in terms:
                acc = inner(acc + _product(t))
            return self.rnd(acc)
        first = [] if start is None else [(start,)]
        return self.rnd(self.in_chunks([*first, *terms], inner))

    def biased(self, terms: Sequence[Term], bias: Fraction) -> Fraction:
        """A bias is added to the whole sum, in the outer format."""
        a, one = self.how, Fraction(1)
        if a.stepwise:
            return self.sum([*terms, (bias, one)])
        inner = rounding(a.format, a.rounding == "truncate")
        return self.rnd(self.in_chunks(list(terms), inner, (bias, one)))

    def in_chunks(self, terms: list[Term], inner: Round, last: Term | None = None) -> Fraction:
        """The sum in the outer format; `last` is added in that."""
        a = self.how
        outer = rounding(a.outer or a.format, not a.outer and a.rounding == "truncate")
        total = Fraction(0)
        size = a.chunk or len(terms)
        for k in range(0, len(terms), size):
            total = outer(total + self.chunk(terms[k : k + size], inner))
        return total if last is None else outer(total + _product(last))

    def chunk(self, terms: list[Term], inner: Round) -> Fraction:
        """The sum of one chunk."""
        a, acc, lost = self.how, Fraction(0), Fraction(0)
        exact = [_product(t) for t in terms]
        values = [inner(p) for p in exact] if a.products == "rounded" else exact
        if a.order == "pairwise":
            return _tree(values, inner)
        if a.order != "sequential":
            width = int(a.order.removeprefix("tree"))
            for k in range(0, len(values), width):
                acc = inner(acc + _tree(values[k : k + width], inner))
            return acc
        if a.align_bits:
            for k in range(0, len(terms), a.group):
                acc = inner(self.aligned(acc, terms[k : k + a.group]))
            return acc
        for x in values:
            if a.compensated:
                y = inner(x - lost)
                t = inner(acc + y)
                lost, acc = inner(inner(t - acc) - y), t
            else:
                acc = inner(acc + x)
        return acc

    def aligned(self, acc: Fraction, terms: list[Term]) -> Fraction:
        """acc and the products cut off at the last of some places of the largest, added exactly.
        Subnormal numbers have the exponent of the least normal one."""
        least = _least_normal(self.how.format)
        least_factor = _least_normal(self.fmt.name)
        every = [((acc,), least), *((t, least_factor) for t in terms)]
        exponents = [sum(max(_exponent(x), end) for x in t) for t, end in every if all(t)]
        if not exponents:
            return Fraction(0)
        unit = Fraction(2) ** (max(exponents) - self.how.align_bits + 1)
        return sum((unit * int(_product(t) / unit) for t, _ in every), Fraction(0))


@cache
def _least_normal(name: str) -> int:
    """The exponent of a float's least normal number: of the code with a 1 in its exponent alone."""
    known = {"float32": -126, "float64": -1022}
    if name in known:
        return known[name]
    code: object = get(name).decoder
    if not isinstance(code, FloatCode) or not code.subnormals:
        return -(10**9)
    least = get(name).decode_exact(1 << code.mantissa)
    assert isinstance(least, Fraction)
    return _exponent(least)


def _product(term: Term) -> Fraction:
    return term[0] if len(term) == 1 else term[0] * term[1]


def _tree(values: list[Fraction], rounded: Round) -> Fraction:
    """Neighbours are added, level by level; an odd last one is rounded and goes up."""
    if len(values) == 1:
        return rounded(values[0])
    half = 1 << (len(values) - 1).bit_length() - 1
    parts = (values[:half], values[half:])
    left, right = (p[0] if len(values) == 2 else _tree(p, rounded) for p in parts)
    return rounded(left + right)


def _exponent(x: Fraction) -> int:
    """Of the power of two at or below |x|."""
    n, d = abs(x).numerator, x.denominator
    e = n.bit_length() - d.bit_length()
    return e if abs(x) >= Fraction(2) ** e else e - 1


def codes_of(fmt: Format, rows: int, seed: int, terms: int = 11) -> Array:
    """Rows of codes of finite numbers of many magnitudes, equal ones and zeros among them."""
    rng = np.random.default_rng(seed)
    values = rng.normal(size=(rows, terms)) * 2.0 ** rng.integers(-9, 1, (rows, terms))
    values[rng.random(values.shape) < 0.1] = 0
    values[:, -1] = -values[:, 0]
    from datatypes import encode

    return np.asarray(encode(fmt, values))


def rows_of_sums(fmt: Format, mode: str, x: Array, w: Array) -> Array:
    """float64 values of the dot products of rows of codes; NaN for those that leave a format."""
    oracle = AccumulatorOracle(fmt, mode)
    xs, ws = (_values(fmt, v) for v in (x, w))
    return np.array([[_sum(oracle, a, b) for b in ws] for a in xs])


def _sum(oracle: AccumulatorOracle, a: Sequence[Fraction], b: Sequence[Fraction]) -> float:
    return float(oracle.sum(list(zip(a, b, strict=True))))


def _values(fmt: Format, codes: Array) -> list[list[Fraction]]:
    known: dict[int, Fraction] = {}
    for code in set(codes.ravel().tolist()):
        found = fmt.decode_exact(code)
        assert isinstance(found, Fraction)
        known[code] = found
    return [[known[int(c)] for c in row] for row in codes]
