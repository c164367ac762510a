"""Constants of float64 functions, computed from their series when they are first needed, in
integers: as rational numbers within 2**-BITS, which `parts` writes as sums of float64 numbers."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from fractions import Fraction

BITS = 320
"""Of the numbers here, behind the point."""


def parts(value: Fraction, count: int = 2) -> tuple[float, ...]:
    """Float64 numbers whose sum is `value`, to 53 bits more with each: the nearest, the nearest to
    what is left, ..."""
    out = []
    for _ in range(count):
        out.append(float(value))
        value -= Fraction(out[-1])
    return tuple(out)


def _arctangent(p: int, q: int, bits: int, sign: int = -1) -> int:
    """atan(p/q) * 2**bits by its series (`sign` 1: atanh), for p < q."""
    power, total, n = (p << bits) // q, 0, 1
    while power:
        total += power // n * (1 if n % 4 == 1 or sign > 0 else -1)
        power = power * p * p // (q * q)
        n += 2
    return total


@functools.cache
def pi(bits: int = BITS) -> Fraction:
    """By J. Machin's formula of 1706, within 2**-bits."""
    more = bits + 16
    found = 16 * _arctangent(1, 5, more) - 4 * _arctangent(1, 239, more)
    return Fraction(found, 1 << more)


@functools.cache
def ln2() -> Fraction:
    """The logarithm of 2: 2 atanh(1/3)."""
    return Fraction(2 * _arctangent(1, 3, BITS, 1), 1 << BITS)


@functools.cache
def arctangents() -> tuple[Fraction, ...]:
    """atan(k/8), k from 0 to 8."""
    of = [Fraction(_arctangent(k, 8, BITS), 1 << BITS) for k in range(8)]
    return (*of, pi() / 4)


@functools.cache
def error_functions() -> tuple[tuple[Fraction, Fraction], ...]:
    """erf(k/4) and its derivative there, k from 0 to 24, to 2**-200 or better.

    erf(x) = 2/sqrt(pi) e**(-x*x) (x + 2 x**3/3 + 4 x**5/15 + ...): Abramowitz and Stegun 7.1.6,
    whose terms are all positive.
    """
    root = pi().numerator << (2 * BITS)
    root_pi = Fraction(math.isqrt(root // pi().denominator), 1 << BITS)
    return tuple(_error_function(Fraction(k, 4), root_pi) for k in range(25))


def _error_function(x: Fraction, root_pi: Fraction) -> tuple[Fraction, Fraction]:
    square, one = x * x, 1 << BITS
    grown, term, n = 0, one, 1  # e**(x*x), of which 1/e**(x*x) loses nothing
    while term:
        grown += term
        term = term * square.numerator // (square.denominator * n)
        n += 1
    slope = 2 / root_pi * Fraction(one, grown)
    total, term, n = 0, x.numerator * one // x.denominator, 1
    while term:
        total += term
        n += 2
        term = term * 2 * square.numerator // (square.denominator * n)
    return slope * Fraction(total, one), slope


@functools.cache
def two_over_pi(words: int) -> tuple[int, ...]:
    """The first words of 32 bits of 2/pi behind its point."""
    bits = 32 * words
    found = 2 / pi(bits + 32)
    whole = (found.numerator << bits) // found.denominator
    return tuple((whole >> (bits - 32 * (k + 1))) & 0xFFFFFFFF for k in range(words))


def reciprocals(numbers: Iterable[int]) -> list[Fraction]:
    """1/n of each."""
    return [Fraction(1, n) for n in numbers]
