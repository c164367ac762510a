"""`Format`: a number format as frozen data, and its exact scalar codec (the oracle).

A format is a width, a function from bits to the exact value, and a few rules; everything else is
derived. The codec here works on `fractions.Fraction`, is meant to be read, and judges every fast
path (`datatypes.formats.arrays`, tables, vector code).

The finite codes of a format, sorted by value, are numbered by consecutive integers, their *order*:
0 is zero, 1 is minpos, -1 is -minpos, `highest` is maxpos. (In a format without zero, 0 is minpos.)
Two ways to negate a code cover most formats: two's complement (posits, takums, fixed point) and a
sign bit (floats). Codebooks, whose codes follow no such rule, are sorted.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np

from compiler.errors import DtypelabError
from datatypes.formats.listed import SortedCodes, sort_codes
from datatypes.formats.rules import (
    RANDOM_BITS,
    Negation,
    Overflow,
    Rounding,
    Ties,
    Underflow,
    check_rules,
)
from datatypes.formats.tables import OperationTable
from datatypes.formats.value import ZERO, Number, Power, Special, Value

Decoder = Callable[[int, int], Value]
"""(bits, nbits) -> exact value of `bits` read as an `nbits`-wide member of the format's family."""


@dataclass(frozen=True)
class Format:
    """A scalar number format of 2 to 32 bits.

    Attributes:
        name: unique name, such as `posit16_es1`.
        nbits: width; codes are right-aligned in `storage`, with zeros above.
        decoder: exact value of every code. It is asked at `nbits`, and at `nbits + 1` too where
            `ties` is "encoding". Positive codes 0, 1, 2, ... must increase in value up to maxpos.
        nan_code: the code that NaN, and the result of an invalid operation, becomes. A format
            without NaN names here what it gives instead.
        negation: "complement" (two's complement of the code), "sign" (top bit) or "none": codes in
            any order, for up to 16 bits.
        rounding: which of its two neighbours a value between them becomes. "nearest" with ties to
            the even code, "nearest_away" with ties away from zero, toward "zero", "up", "down", or
            "stochastic": see `RANDOM_BITS`.
        seed: of stochastic rounding.
        ties: where neighbours p, p+1 part, for the nearest one. "value": at their arithmetic mean.
            "encoding": at the value of the code between them that is one bit longer (Posit
            Standard 2022, 4.1).
        overflow: what a finite value that rounds beyond the range becomes: maxpos, infinity or NaN.
            For the last two, values continue above maxpos with the steps below it, as in IEEE 754.
        infinity: the same choice for an infinite value.
        underflow: what a nonzero value that would round to zero becomes.
        signed_zero: whether the code with only the sign bit set is -0.
        storage_only: whether values are only kept in this format, not computed in it.
        tables: operations that do not round the exact result, but look it up.
        source: the specification.

    Raises:
        DtypelabError: a rule has an unknown value, the width is out of range, or the values do not
            lie within 2**-1000 .. 2**1000 (float64 must hold them).
    """

    name: str
    nbits: int
    decoder: Decoder
    nan_code: int
    negation: Negation = "complement"
    ties: Ties = "value"
    overflow: Overflow = "saturate"
    infinity: Overflow = "nan"
    underflow: Underflow = "zero"
    signed_zero: bool = False
    rounding: Rounding = "nearest"
    seed: int = 0
    storage_only: bool = False
    tables: tuple[OperationTable, ...] = ()
    source: str = ""

    def __post_init__(self) -> None:
        check_rules(self)

    # Derived facts

    @property
    def storage(self) -> np.dtype[Any]:
        """numpy dtype that holds a code: uint8, uint16 or uint32."""
        return np.dtype("uint8" if self.nbits <= 8 else "uint16" if self.nbits <= 16 else "uint32")

    @property
    def mask(self) -> int:
        """All `nbits` bits set."""
        return (1 << self.nbits) - 1

    @property
    def sign_bit(self) -> int:
        """The top bit."""
        return 1 << (self.nbits - 1)

    @cached_property
    def highest(self) -> int:
        """Order, and code unless `negation` is "none", of maxpos."""
        if self.negation == "none":
            return self._sorted.first_order + len(self._sorted.codes) - 1
        low, high = 0, self.sign_bit
        while high - low > 1:
            middle = (low + high) // 2
            if isinstance(self.decode_exact(middle), Special):
                high = middle
            else:
                low = middle
        if low == 0:
            raise DtypelabError(f"format {self.name!r} has no positive value")
        return low

    @cached_property
    def lowest(self) -> int:
        """Order of the least finite value."""
        if self.negation == "none":
            return self._sorted.first_order
        # Two's complement leaves one code over, which is NaR in a posit and a value in fixed point.
        spare = self.negation == "complement" and self.highest == self.sign_bit - 1
        if spare and not isinstance(self.decode_exact(self.sign_bit), Special):
            return -self.sign_bit
        return -self.highest

    @property
    def maxpos(self) -> Fraction:
        """Largest finite value."""
        return self.value(self.highest)

    @property
    def minpos(self) -> Fraction:
        """Smallest positive value."""
        return self.value(1 if self.has_zero else 0)

    @property
    def has_zero(self) -> bool:
        """Whether zero is a value of the format."""
        return self.negation != "none" or self._sorted.has_zero

    @property
    def has_nan(self) -> bool:
        """Whether a code means NaN (or NaR)."""
        return self.decode_exact(self.nan_code) is Special.NAN

    @property
    def has_inf(self) -> bool:
        """Whether a code means infinity: the one above maxpos."""
        if self.negation == "none":
            return Special.INF in self._sorted.infinities
        above = self.highest + 1
        return above < self.sign_bit and self.decode_exact(above) is Special.INF

    @cached_property
    def logarithmic(self) -> bool:
        """Whether values are powers of two with fractional exponents."""
        middle = range(self.sign_bit // 2 - 1, self.sign_bit // 2 + 2)
        return any(isinstance(self.decode_exact(bits), Power) for bits in middle)

    @cached_property
    def irregular(self) -> str:
        """Why operations are not just exact results rounded to the nearest value; else empty."""
        if self.storage_only:
            return "it only stores values"
        if self.tables:
            return f"{', '.join(table.op for table in self.tables)} are looked up in tables"
        if self.logarithmic:
            return "its values are irrational"
        if self.rounding != "nearest":
            return f"it rounds {self.rounding}"
        return "its codes are in no order" if self.negation == "none" else ""

    def table(self, op: str) -> OperationTable | None:
        """The table of an operation, if it is given by one."""
        return next((table for table in self.tables if table.op == op), None)

    # Codes and orders

    def code(self, order: int) -> int:
        """Code of the value number `order` (and, one beyond the range, of an infinity)."""
        if self.negation == "none":
            return self._sorted.code(order)
        if self.negation == "complement":
            return order & self.mask
        return order if order >= 0 else -order | self.sign_bit

    def order(self, bits: int) -> int:
        """Order of a code; the inverse of `code` on finite values."""
        if self.negation == "none":
            return self._sorted.orders[bits]
        if bits < self.sign_bit:
            return bits
        return bits - self.mask - 1 if self.negation == "complement" else self.sign_bit - bits

    def value(self, order: int) -> Fraction:
        """`point` as a fraction: of an irrational value, the nearest float64."""
        value = self.point(order)
        return value if isinstance(value, Fraction) else Fraction(float(value))

    def point(self, order: int) -> Number:
        """Exact value number `order`, for lowest <= order <= highest.

        One beyond the range: the value that would follow if the steps went on.
        """
        if order > self.highest:
            return _next(self.value(self.highest), self.value(self.highest - 1))
        if order < self.lowest:
            return _next(self.value(self.lowest), self.value(self.lowest + 1))
        value = self.decode_exact(self.code(order))
        assert not isinstance(value, Special)
        return value

    def boundary(self, order: int) -> Number:
        """Exact value where the values number `order` and `order + 1` part, for the nearest one.

        A number below it rounds to `order`, one above it to `order + 1`. One step beyond the range
        this is the start of overflow.
        """
        if self.underflow == "minpos" and order in (-1, self._first_positive - 1):
            return ZERO  # only zero itself is zero
        if self.ties == "encoding" and self.lowest <= order < self.highest:
            odd = 2 * order + 1
            if self.negation == "sign" and odd < 0:
                odd = -odd | 2 * self.sign_bit
            between = self.decoder(odd & (2 * self.mask + 1), self.nbits + 1)
            assert not isinstance(between, Special)
            return between
        return (self.value(order) + self.value(order + 1)) / 2

    def start(self, order: int) -> tuple[Number, bool] | None:
        """Where the numbers begin that round to `order` or above, and whether they include it.

        None: at minus infinity for orders up to `lowest`, else never. Not for stochastic rounding.
        """
        if order > self.highest and self.rounding in ("zero", "down"):
            return None
        if order <= self.lowest and self.rounding in ("zero", "up"):
            return None
        if self.underflow == "minpos" and order in (0, self._first_positive):
            return ZERO, order < self._first_positive
        if self.rounding.startswith("nearest"):
            boundary = self.boundary(order - 1)
            return boundary, order % 2 == 0 if self.rounding == "nearest" else boundary > ZERO
        if self.rounding == "down" or (self.rounding == "zero" and order >= self._first_positive):
            return self.point(order), True
        return self.point(order - 1), False

    # The scalar codec

    def decode_exact(self, bits: int) -> Value:
        """Exact value of a code, or what kind of non-number it is. -0 gives 0.

        Raises:
            DtypelabError: `bits` is negative or does not fit into `nbits`.
        """
        if not 0 <= bits <= self.mask:
            raise DtypelabError(f"{bits} is not a {self.nbits}-bit code of {self.name}")
        return self.decoder(bits, self.nbits)

    def encode_exact(
        self, value: Fraction | float, random: int = 0, near: int | None = None
    ) -> int:
        """Code of `value`, rounded once by the format's rules.

        Integers and Fractions are exact; a float may also be NaN, infinite or -0.0. `random` are
        the bits (0 <= random < 2**RANDOM_BITS) of stochastic rounding. `near` is a guess of the
        result's order, which decides nothing but how long this takes.
        """
        if not isinstance(value, Fraction | int):
            value = float(value)
            if math.isnan(value):
                return self.nan_code
            if math.isinf(value):
                return self.beyond(self.infinity, value < 0)
            if value == 0:
                return self.zero(math.copysign(1.0, value) < 0)
            value = Fraction(value)
        if value == 0:
            return self.zero(False)
        order = self.rounded(Fraction(value), random, near)
        if not self.lowest <= order <= self.highest:
            return self.beyond(self.overflow, value < 0)
        if order == 0 and self.has_zero:
            return self.zero(value < 0)
        return self.code(order)

    def nearest(self, value: Fraction, near: int | None = None) -> int:
        """Order nearest to a value, ties to even; one beyond the range where it overflows."""
        below = self._last_not_above(value, near)
        boundary = self.boundary(below)
        return self._kept(below + (value > boundary or (value == boundary and below % 2 != 0)))

    def rounded(self, value: Fraction, random: int = 0, near: int | None = None) -> int:
        """Order that a nonzero value rounds to; one beyond the range where it overflows."""
        if self.rounding == "nearest":
            return self.nearest(value, near)
        below = self._last_not_above(value, near)
        order = self._kept(below + self._goes_up(value, below, random))
        if self.underflow == "minpos":
            return max(order, self._first_positive) if value > 0 else min(order, -1)
        return order

    def beyond(self, rule: Overflow, negative: bool) -> int:
        """Code of a value beyond the range on the given side, under `overflow` or `infinity`."""
        if rule == "nan":
            return self.nan_code
        if rule == "inf":
            return self.code(self.lowest - 1 if negative else self.highest + 1)
        return self.code(self.lowest if negative else self.highest)

    def zero(self, negative: bool) -> int:
        """Code of a zero of the given sign; without one, NaN's, or the nearest value's."""
        if negative and self.signed_zero:
            return self.sign_bit
        if self.has_zero:
            return self.code(0)
        return self.nan_code if self.underflow == "minpos" else self.code(self.nearest(Fraction(0)))

    def _goes_up(self, value: Fraction, below: int, random: int) -> bool:
        """Whether a value from number `below` up to the next one rounds to the next one."""
        if self.rounding == "nearest_away":
            boundary = self.boundary(below)
            return value > boundary or (value == boundary and value > 0)
        if self.rounding == "stochastic":
            low, high = self.value(below), self.value(below + 1)
            part = (value - low if value > 0 else high - value) / (high - low)
            away = part * 2**RANDOM_BITS >= 2**RANDOM_BITS - random
            return away if value > 0 else not away
        inexact = below < self.lowest or value > self.point(below)
        return inexact and (self.rounding == "up" or (self.rounding == "zero" and value < 0))

    def _kept(self, order: int) -> int:
        """An order, kept within the range by a format that saturates."""
        return min(max(order, self.lowest), self.highest) if self.overflow == "saturate" else order

    def _last_not_above(self, value: Fraction, near: int | None = None) -> int:
        """Largest order whose value is <= `value`; lowest - 1 if there is none."""
        low, high = self.lowest - 1, self.highest + 1
        if near is not None:
            below, above = near - 2, near + 2
            if low < below < high and self.point(below) <= value:
                low = below
            if low < above < high and self.point(above) > value:
                high = above
        while high - low > 1:
            middle = (low + high) // 2
            if self.point(middle) <= value:
                low = middle
            else:
                high = middle
        return low

    @property
    def _first_positive(self) -> int:
        return 1 if self.has_zero else 0

    @cached_property
    def _sorted(self) -> SortedCodes:
        return sort_codes(self.name, [self.decode_exact(code) for code in range(self.mask + 1)])


def _next(last: Fraction, previous: Fraction) -> Fraction:
    """What follows two values: in equal steps, or doubling like powers of two."""
    return 2 * last if last == 2 * previous else 2 * last - previous
