"""`Format`: a number format as frozen data, and its exact scalar codec (the oracle).

A format is a width, a function from bits to the exact value, and five rules; everything else is
derived. The codec here works on `fractions.Fraction`, is meant to be read, and judges every fast
path (`datatypes.formats.arrays`, tables, vector code).

The finite codes of a format, sorted by value, are numbered by consecutive integers, their *order*:
0 is zero, 1 is minpos, -1 is -minpos, `highest` is maxpos. Two ways to negate a code cover the
formats in use: two's complement (posits, takums, fixed point) and a sign bit (floats).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction
from functools import cached_property
from typing import Any, Literal, get_args

import numpy as np

from compiler.errors import DtypelabError


class Special(Enum):
    """Values that are not numbers. A posit's NaR counts as NAN."""

    NAN = "nan"
    INF = "inf"
    NEG_INF = "-inf"


Value = Fraction | Special
Decoder = Callable[[int, int], Value]
"""(bits, nbits) -> exact value of `bits` read as an `nbits`-wide member of the format's family."""

Negation = Literal["complement", "sign"]
Ties = Literal["value", "encoding"]
Overflow = Literal["saturate", "inf", "nan"]
Underflow = Literal["minpos", "zero"]

_FLOAT64_SAFE = Fraction(2) ** 1000


@dataclass(frozen=True)
class Format:
    """A scalar number format of 2 to 32 bits.

    Attributes:
        name: unique name, such as `posit16_es1`.
        nbits: width; codes are right-aligned in `storage`, with zeros above.
        decoder: exact value of every code. It is asked at `nbits`, and at `nbits + 1` too where
            `ties` is "encoding". Positive codes 0, 1, 2, ... must increase in value up to maxpos.
        nan_code: the code that NaN becomes. A format without NaN names here what it gives instead.
        negation: "complement" (two's complement of the code) or "sign" (top bit).
        ties: where neighbours p, p+1 part. "value": at their arithmetic mean. "encoding": at the
            value of the code between them that is one bit longer (Posit Standard 2022, 4.1). A
            value exactly there goes to the even code.
        overflow: what a finite value beyond the range becomes: maxpos, infinity or NaN. For the
            last two, a value counts as beyond from half a step above maxpos, as in IEEE 754.
        infinity: the same choice for an infinite value.
        underflow: what a nonzero value nearer to zero than to minpos becomes.
        signed_zero: whether the code with only the sign bit set is -0.
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
    source: str = ""

    def __post_init__(self) -> None:
        if not 2 <= self.nbits <= 32:
            raise DtypelabError(f"format {self.name!r}: nbits is {self.nbits}, must be 2 to 32")
        if not 0 <= self.nan_code <= self.mask:
            raise DtypelabError(f"format {self.name!r}: nan_code {self.nan_code} exceeds its width")
        choices = {
            "negation": Negation,
            "ties": Ties,
            "overflow": Overflow,
            "infinity": Overflow,
            "underflow": Underflow,
        }
        for field, choice in choices.items():
            if getattr(self, field) not in get_args(choice):
                raise DtypelabError(
                    f"format {self.name!r}: {field} is {getattr(self, field)!r}, "
                    f"choose one of {', '.join(get_args(choice))}"
                )
        if "inf" in (self.overflow, self.infinity) and not self.has_inf:
            raise DtypelabError(f"format {self.name!r} has no infinity; choose saturate or nan")
        if self.maxpos > _FLOAT64_SAFE or self.minpos < 1 / _FLOAT64_SAFE:
            raise DtypelabError(
                f"format {self.name!r} reaches beyond 2**-1000 .. 2**1000; choose fewer bits or a "
                "smaller exponent"
            )

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
        """Order, and code, of maxpos: the last finite code before the specials."""
        low, high = 0, self.sign_bit
        while high - low > 1:
            middle = (low + high) // 2
            if isinstance(self.decode_exact(middle), Fraction):
                low = middle
            else:
                high = middle
        if low == 0:
            raise DtypelabError(f"format {self.name!r} has no positive value")
        return low

    @cached_property
    def lowest(self) -> int:
        """Order of the most negative finite value."""
        # Two's complement leaves one code over, which is NaR in a posit and a value in fixed point.
        spare = self.negation == "complement" and self.highest == self.sign_bit - 1
        if spare and isinstance(self.decode_exact(self.sign_bit), Fraction):
            return -self.sign_bit
        return -self.highest

    @property
    def maxpos(self) -> Fraction:
        """Largest finite value."""
        return self.value(self.highest)

    @property
    def minpos(self) -> Fraction:
        """Smallest positive value."""
        return self.value(1)

    @property
    def has_nan(self) -> bool:
        """Whether a code means NaN (or NaR)."""
        return self.decode_exact(self.nan_code) is Special.NAN

    @property
    def has_inf(self) -> bool:
        """Whether the code above maxpos means infinity."""
        above = self.highest + 1
        return above < self.sign_bit and self.decode_exact(above) is Special.INF

    # Codes and orders

    def code(self, order: int) -> int:
        """Code of the value number `order` (and, one beyond the range, of an infinity)."""
        if self.negation == "complement":
            return order & self.mask
        return order if order >= 0 else -order | self.sign_bit

    def order(self, bits: int) -> int:
        """Order of a code; the inverse of `code` on finite values."""
        if bits < self.sign_bit:
            return bits
        return bits - self.mask - 1 if self.negation == "complement" else self.sign_bit - bits

    def value(self, order: int) -> Fraction:
        """Exact value number `order`, for lowest <= order <= highest."""
        value = self.decode_exact(self.code(order))
        assert isinstance(value, Fraction)
        return value

    def boundary(self, order: int) -> Fraction:
        """Exact value where the values number `order` and `order + 1` part.

        A number below it rounds to `order`, one above it to `order + 1`, and the boundary itself to
        the even one of the two. One step beyond the range this is the start of overflow.
        """
        if order in (-1, 0) and self.underflow == "minpos":
            return Fraction(0)  # only zero itself is zero
        if order >= self.highest:
            return self.maxpos + (self.maxpos - self.value(self.highest - 1)) / 2
        if order < self.lowest:
            least = self.value(self.lowest)
            return least - (self.value(self.lowest + 1) - least) / 2
        if self.ties == "encoding":
            between = self.decoder((2 * order + 1) & (2 * self.mask + 1), self.nbits + 1)
            assert isinstance(between, Fraction)
            return between
        return (self.value(order) + self.value(order + 1)) / 2

    # The scalar codec

    def decode_exact(self, bits: int) -> Value:
        """Exact value of a code: a Fraction, or what kind of non-number it is. -0 gives 0.

        Raises:
            DtypelabError: `bits` is negative or does not fit into `nbits`.
        """
        if not 0 <= bits <= self.mask:
            raise DtypelabError(f"{bits} is not a {self.nbits}-bit code of {self.name}")
        return self.decoder(bits, self.nbits)

    def encode_exact(self, value: Fraction | float) -> int:
        """Code nearest to `value`, rounded once by the format's rules.

        Integers and Fractions are exact; a float may also be NaN, infinite or -0.0.
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
            return 0
        order = self.nearest(Fraction(value))
        if not self.lowest <= order <= self.highest:
            return self.beyond(self.overflow, value < 0)
        return self.zero(value < 0) if order == 0 else self.code(order)

    def nearest(self, value: Fraction) -> int:
        """Order that a nonzero value rounds to; one beyond the range where it overflows."""
        order = self._last_not_above(value)
        boundary = self.boundary(order)
        order += value > boundary or (value == boundary and order % 2 != 0)
        return min(max(order, self.lowest), self.highest) if self.overflow == "saturate" else order

    def beyond(self, rule: Overflow, negative: bool) -> int:
        """Code of a value beyond the range on the given side, under `overflow` or `infinity`."""
        if rule == "nan":
            return self.nan_code
        if rule == "inf":
            return self.code(self.lowest - 1 if negative else self.highest + 1)
        return self.code(self.lowest if negative else self.highest)

    def zero(self, negative: bool) -> int:
        """Code of a zero of the given sign."""
        return self.sign_bit if negative and self.signed_zero else 0

    def _last_not_above(self, value: Fraction) -> int:
        """Largest order whose value is <= `value`; lowest - 1 if there is none."""
        low, high = self.lowest - 1, self.highest + 1
        while high - low > 1:
            middle = (low + high) // 2
            if self.value(middle) <= value:
                low = middle
            else:
                high = middle
        return low


def as_float(value: Value) -> float:
    """float64 nearest to an exact value."""
    return float(value.value) if isinstance(value, Special) else float(value)
