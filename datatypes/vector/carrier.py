"""The float a value is carried in while it is computed with, and its bits as an integer."""

from __future__ import annotations

from dataclasses import dataclass

from compiler.tensor.expr import Expr, binary, call, cast, const, let, select
from compiler.types.dtypes import FLOAT32, FLOAT64, INT32, INT64, DType


@dataclass(frozen=True)
class Carrier:
    """float32 or float64.

    Attributes:
        dtype: the float.
        integer: the signed integer of its width.
        mantissa: stored bits of its significand.
        bias: of its exponent.
    """

    dtype: DType
    integer: DType
    mantissa: int
    bias: int

    @property
    def significant(self) -> int:
        """Bits of its significand, the hidden one included."""
        return self.mantissa + 1

    @property
    def sign(self) -> int:
        """The sign bit, as a signed integer."""
        return -(1 << (self.integer.bits - 1))

    @property
    def exponents(self) -> int:
        """Mask of the exponent field."""
        return (2 * self.bias + 1) << self.mantissa

    @property
    def least(self) -> float:
        """Smallest normal number."""
        return 2.0 ** (1 - self.bias)

    def number(self, value: float) -> Expr:
        """A constant."""
        return const(value, self.dtype)

    def bits(self, x: Expr) -> Expr:
        """Bits of a float, as a signed integer."""
        return call("bits", x, dtype=self.integer)

    def value(self, bits: Expr) -> Expr:
        """Float with these bits."""
        return call("bits", bits, dtype=self.dtype)


SINGLE = Carrier(FLOAT32, INT32, 23, 127)
DOUBLE = Carrier(FLOAT64, INT64, 52, 1023)


def carrier_of(dtype: DType) -> Carrier:
    """The carrier that `dtype` is."""
    return SINGLE if dtype == FLOAT32 else DOUBLE


def magnitude(x: Expr) -> Expr:
    """|x|, of NaN too."""
    return call("abs", x)


def with_sign(x: Expr, sign_of: Expr) -> Expr:
    """`x`, which is not negative unless `sign_of` is, with the sign of `sign_of`."""
    c = carrier_of(x.dtype)
    return c.value(c.bits(x) | (c.bits(sign_of) & c.sign))


def is_nan(x: Expr) -> Expr:
    """Whether x is NaN."""
    return binary("NE", x, x)


def at_most(x: Expr, limit: float) -> Expr:
    """The smaller of x and `limit`; NaN stays."""
    bound = const(limit, x.dtype)
    return let(x, lambda x: select(bound < x, bound, x))


def at_least(x: Expr, limit: float) -> Expr:
    """The larger of x and `limit`; NaN stays."""
    bound = const(limit, x.dtype)
    return let(x, lambda x: select(x < bound, bound, x))


def rounded_to_odd(nearest: Expr, error: Expr) -> Expr:
    """A result that was rounded to nearest, rounded to odd instead: `error` is what it lacks.

    Rounding that to at least two bits less is like rounding once (S. Boldo and G. Melquiond,
    "Emulation of FMA and correctly rounded sums", 2008).
    """
    c = carrier_of(nearest.dtype)

    def adjusted(nearest: Expr, error: Expr) -> Expr:
        bits = c.bits(nearest)
        toward = (bits ^ c.bits(error)) >> (c.integer.bits - 1) | 1  # -1: its magnitude is too big
        exact = error.equal(0.0)
        odd = (bits & 1).equal(1)
        return select(exact, nearest, select(odd, nearest, c.value(bits + toward)))

    return let(nearest, lambda n: let(error, lambda e: adjusted(n, e), "error"), "nearest")


FAR = 2.0**62
"""What no number of an ordinary format reaches, nor its inverse."""


def narrowed_to_odd(x: Expr, anywhere: bool = True) -> Expr:
    """A float64 as float32, rounded to odd: 29 bits are cut off, and the last one left is set if
    any of them was. Finite numbers above FAR in magnitude become FAR, and those below its inverse
    that, unless they are zero; that is left out where x is not `anywhere`, but one of float32's
    normal numbers, infinite, NaN or zero."""
    cut = (1 << (DOUBLE.mantissa - SINGLE.mantissa)) - 1

    def within(y: Expr) -> Expr:
        held = at_most(at_least(y, 1 / FAR), FAR)
        return select(y.equal(0.0) | y.equal(float("inf")), y, held)

    def odd(bits: Expr) -> Expr:
        return DOUBLE.value((bits | ((bits & cut) + cut)) & ~cut)

    def narrowed(x: Expr) -> Expr:
        y = with_sign(let(magnitude(x), within, "y"), x) if anywhere else x
        return cast(let(DOUBLE.bits(y), odd, "bits"), FLOAT32)

    return let(x, narrowed, "x")
