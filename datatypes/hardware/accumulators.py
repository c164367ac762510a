"""What sums of products are kept in: exactly, as two's complement integers, or in a format."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from compiler.errors import DtypelabError, UnsupportedError
from compiler.op.accumulator import FLOATS, TRUNCATED, accumulator, of_table
from compiler.op.accumulator import Accumulator as Accumulation
from compiler.op.accumulator_presets import PRESETS
from datatypes.formats import Format, get
from datatypes.hardware.netlist import Bits, Circuit
from datatypes.hardware.number import Number, compressed, leading, normalized

HEADROOM = 16
"""Exact accumulators hold sums of 2**HEADROOM products of the largest values."""

WIDEST = 2048
"""Bits of the widest exact accumulator."""

SINGLE = "float32_e8m23"
"""What float32 is called as a format."""


@dataclass(frozen=True)
class Exact:
    """Sums in two's complement, in units of 2**unit; bit `width` above them means: no number.

    With that bit set, a sum of 0 is NaN, 1 is infinity, and -1 is minus infinity.
    """

    unit: int
    width: int

    @property
    def about(self) -> str:
        """The port in words."""
        return (
            f"acc = {{not_finite, sum[{self.width - 1}:0]}}: sum in two's complement, in units of "
            f"2**{self.unit}\nnot_finite: NaN if sum is 0, infinity if it is 1, minus infinity if "
            "it is -1"
        )

    @property
    def bits(self) -> int:
        """Of the port."""
        return self.width + 1


@dataclass(frozen=True)
class InFormat:
    """Sums in a format: acc = rnd(acc + a * b), or of products that are rounded to it first."""

    fmt: Format
    rounds_products: bool = False

    @property
    def about(self) -> str:
        """The port in words."""
        return f"acc is in {self.fmt.name}"

    @property
    def bits(self) -> int:
        """Of the port."""
        return self.fmt.nbits


@dataclass(frozen=True)
class Staged:
    """Sums that a description forms in steps of their own (`compiler.op.accumulator`).

    Attributes:
        how: the description.
        fmt: the format that NAME_mac holds sums in.
        outer: the format that NAME_outer adds sums of chunks in; None: there are no chunks.
    """

    how: Accumulation
    fmt: Format
    outer: Format | None = None

    @property
    def terms(self) -> int:
        """Products that are added at once; a shorter group is filled with zeros."""
        return self.how.tree or (self.how.group if self.how.align_bits else 1)

    @property
    def about(self) -> str:
        """The port in words."""
        if self.how.compensated:
            return f"acc = {{lost, sum}}, both in {self.fmt.name}: Kahan's compensation"
        return f"acc is in {self.fmt.name}"

    @property
    def bits(self) -> int:
        """Of the port."""
        return self.fmt.nbits * (2 if self.how.compensated else 1)


Accumulator = Exact | InFormat | Staged


def read(accumulate: str | Format | Mapping[str, object], fmt: Format) -> InFormat | Staged | None:
    """What an argument `accumulate` means for a format; None: exact sums.

    Raises:
        UnsupportedError: it is a description of sums that no MAC forms.
        DtypelabError: no such mode, and no format of this name.
    """
    if isinstance(accumulate, Format):
        return InFormat(accumulate)
    if accumulate == "exact":
        return None
    if accumulate in ("fma", "sequential"):
        return InFormat(fmt, accumulate == "sequential")
    if isinstance(accumulate, str) and accumulate in FLOATS:
        accumulate = {"format": accumulate}
    described = of_table(accumulate) if isinstance(accumulate, Mapping) else accumulator(accumulate)
    if described is None:
        raise DtypelabError(
            f"accumulate={accumulate!r} is none of exact, fma, sequential, float32, "
            f"{', '.join(PRESETS)}, no description and no format's name"
        )
    truncated = described.rounding == "truncate"
    inner = _held(described.format, truncated, fmt)
    step = Accumulation(described.format, rounding=described.rounding, products=described.products)
    if described == step:
        return InFormat(inner, described.products == "rounded")
    if described.order == "pairwise":
        raise UnsupportedError(
            f"hardware of {fmt.name} has no pairwise sums, which wait for all terms of a chunk; "
            "the nearest is order = 'tree8'"
        )
    if not described.chunk:
        return Staged(described, inner)
    outer = _held(described.outer, False, fmt) if described.outer else inner
    return Staged(described, inner, outer)


def _held(name: str, truncated: bool, fmt: Format) -> Format:
    if name == "float64":
        raise UnsupportedError(
            f"hardware of {fmt.name} has no sums in float64, only in at most 32 bits; the nearest "
            "is accumulate='float32'"
        )
    return get({"float32": SINGLE}.get(name, name) + (TRUNCATED if truncated else ""))


def exact(fmt: Format, headroom: int = HEADROOM) -> Exact:
    """The accumulator that holds every sum of 2**headroom products of a format's values.

    Raises:
        UnsupportedError: it has more than `WIDEST` bits.
    """
    unit = unit_of(fmt)
    most = max(abs(fmt.value(order)) for order in (fmt.lowest, fmt.highest))
    largest = most * most * Fraction(2) ** (headroom - 2 * unit)
    width = int(largest).bit_length() + 1
    if width > WIDEST:
        raise UnsupportedError(
            f"exact sums of {fmt.name} take {width} bits, and accumulators have at most {WIDEST}; "
            "the nearest is accumulate='fma' or a format's name"
        )
    return Exact(2 * unit, width)


def unit_of(fmt: Format) -> int:
    """The exponent of the largest power of two that all values are multiples of."""
    orders = range(fmt.lowest, fmt.highest + 1) if fmt.nbits <= 8 else range(1, 65)
    return min(lowest_bit(value) for value in map(fmt.value, orders) if value)


def lowest_bit(value: Fraction) -> int:
    """The exponent of the largest power of two that a dyadic number is a multiple of."""
    number = abs(value.numerator)
    return (number & -number).bit_length() - value.denominator.bit_length()


def accumulated(c: Circuit, acc: Bits, product: Number, into: Exact, lowest: int) -> Bits:
    """acc + product, exactly.

    Args:
        c: the circuit that it is put in.
        acc: the accumulator.
        product: whose significand has 2 * precision bits, the upper two before the point.
        into: what the accumulator is.
        lowest: the lowest exponent that a product has, of the second bit of its significand.
    """
    width = product.exponent.width
    places = product.exponent - c.constant(lowest, width)
    below = into.unit - (lowest - (product.significand.width - 2))  # zeros, in any product
    wide = product.significand.zero_extended(into.width + max(below, 0))
    if below < 0:
        wide = wide.raised(-below)[: into.width]
    placed = wide.shifted_left(places)[max(below, 0) :].named("placed")
    return _sum(c, acc, product, into, placed)


def _sum(c: Circuit, acc: Bits, product: Number, into: Exact, placed: Bits) -> Bits:
    """acc plus a magnitude in place, with the product's sign; and what is no number."""
    minus = product.sign.repeated(into.width)
    carry = product.sign.zero_extended(into.width)
    total = acc[: into.width] + (placed ^ minus) + carry
    # Of infinities: 1, -1, or 0 for NaN, which two of different signs give.
    was, number = acc[into.width], acc[: into.width]
    none = c.constant(0, into.width)
    infinite = product.sign.chosen(c.constant(-1, into.width), c.constant(1, into.width))
    mixed = (number ^ infinite).any()
    held = product.inf.chosen(mixed.chosen(none, number), number)
    special = product.nan.chosen(none, was.chosen(held, infinite))
    not_finite = was | product.nan | product.inf
    return c.joint(not_finite, not_finite.chosen(special, total))


def number_of(c: Circuit, acc: Bits, of: Exact, kept: int) -> Number:
    """An exact accumulator as a number of `kept` significant bits, the last one sticky."""
    total, flag = acc[: of.width], acc[of.width]
    span = max(abs(of.unit), abs(of.unit + of.width)).bit_length() + 2
    if kept < of.width:
        significand, below = leading(c, total, kept)
        below = below.sign_extended(span) + c.constant(1, span)
    else:  # nothing is left out
        sign = total.top.repeated(of.width)
        significand, below = normalized(c, (total ^ sign) + total.top.zero_extended(of.width))
        significand, below = compressed(c, significand, kept), below.zero_extended(span)
    exponent = c.constant(of.unit + of.width - 1, span) - below
    zero = ~total.any()
    return Number(flag & zero, flag & ~zero, zero, total.top, exponent, significand)
