"""Integers and fixed point: the code is the number, in two's complement.

A fixed-point format saturates and rounds, by its rules. Of an integer dtype, sums and products wrap
around, as they do in the operators of networks; what is rounded into it saturates, and NaN becomes
0, as casts do.
"""

from __future__ import annotations

from dataclasses import dataclass

from datatypes.formats import Format
from datatypes.formats.fixed import FixedCode
from datatypes.hardware.accumulators import Exact
from datatypes.hardware.codecs import Codec
from datatypes.hardware.netlist import Bits, Circuit
from datatypes.hardware.number import Number, normalized


@dataclass(frozen=True)
class Whole:
    """The operations of `nbits` bits, `fraction` of them after the point.

    Attributes:
        name: of the format or integer dtype.
        nbits: width of a code.
        fraction: bits after the binary point.
        signed: whether the top bit is negative.
        wraps: whether sums and products wrap around.
        rounding: how bits after the point are left out, see `Format`.
        nan_code: what NaN becomes.
        registers: rows of registers.
    """

    name: str
    nbits: int
    fraction: int = 0
    signed: bool = True
    wraps: bool = False
    rounding: str = "nearest"
    nan_code: int = 0
    registers: int = 0

    @property
    def parts(self) -> str:
        """What the port `parts` holds."""
        kind = "two's complement" if self.signed else "an unsigned integer"
        return f"parts = the code: {kind}, in units of 2**{-self.fraction}"

    def parts_width(self) -> int:
        """Of the port `parts`."""
        return self.nbits

    def decode(self, c: Circuit, a: Bits) -> Bits:
        """The parts of a code."""
        return a

    def encode(self, c: Circuit, parts: Bits) -> Bits:
        """The code of parts that `decode` gave."""
        return parts

    def add(self, c: Circuit, a: Bits, b: Bits) -> Bits:
        """The code of a sum."""
        if self.wraps:
            return a + b
        total = self.wide(a, self.nbits + 1) + self.wide(b, self.nbits + 1)
        return self.limited(c, self.late(c, total))

    def mul(self, c: Circuit, a: Bits, b: Bits) -> Bits:
        """The code of a product."""
        product = self.late(c, self.multiplied(c, a, b))
        if self.wraps:
            return product[: self.nbits]
        return self.limited(c, self.cut_off(c, product, self.fraction))

    def multiplied(self, c: Circuit, a: Bits, b: Bits) -> Bits:
        """[2 * nbits] the exact product."""
        width = 2 * self.nbits
        if not self.signed:
            return a * b
        return c.wire(width, "$signed({}) * $signed({})", a, b, name="product")

    def wide(self, value: Bits, width: int) -> Bits:
        """The same number in more bits."""
        return value.sign_extended(width) if self.signed else value.zero_extended(width)

    def late(self, c: Circuit, value: Bits) -> Bits:
        """A value behind the row of registers, if there is one."""
        return c.cut(value)[0] if self.registers else value

    def cut_off(self, c: Circuit, value: Bits, places: int) -> Bits:
        """A number without its lowest bits, rounded; one bit wider at the top."""
        if not places:
            return self.wide(value, value.width + 1)
        if places >= value.width:
            value = self.wide(value, places + 1)
        kept, guard = value[places:], value[places - 1]
        sticky = value[: places - 1].any() if places > 1 else c.constant(0, 1)
        negative = value.top if self.signed else c.constant(0, 1)
        up = {
            "nearest": guard & (sticky | kept[0]),
            "nearest_away": guard & (sticky | ~negative),
            "zero": negative & (guard | sticky),
            "up": guard | sticky,
            "down": c.constant(0, 1),
        }[self.rounding]
        wide = self.wide(kept, kept.width + 1)
        return wide + up.zero_extended(wide.width)

    def limited(self, c: Circuit, value: Bits) -> Bits:
        """The code of a number, the nearest one if it is beyond the range."""
        if value.width <= self.nbits:
            return self.wide(value, self.nbits)
        above, low = value[self.nbits :], value[: self.nbits]
        if not self.signed:
            return low | above.any().repeated(self.nbits)
        top = value[self.nbits - 1 :]
        over = top.any() & ~top.all()
        end = c.joint(value.top, (~value.top).repeated(self.nbits - 1))
        return over.chosen(end, low)

    def exact(self, headroom: int) -> Exact:
        """The accumulator of exact sums."""
        most = 1 << (self.nbits - 1 if self.signed else self.nbits)
        largest = most * most if self.signed else (most - 1) ** 2
        return Exact(-2 * self.fraction, (largest << headroom).bit_length() + 1)

    def mac_exact(self, c: Circuit, a: Bits, b: Bits, acc: Bits, into: Exact) -> Bits:
        """acc + a * b; nothing here is no number, but what `acc` says of it stays."""
        product = self.wide(self.late(c, self.multiplied(c, a, b)), into.width)
        return c.joint(acc[into.width], acc[: into.width] + product)

    def round_exact(self, c: Circuit, acc: Bits, of: Exact) -> Bits:
        """The code of an exact accumulator."""
        signed = Whole("sum", of.width, rounding=self.rounding)
        value = self.clipped(c, signed.cut_off(c, acc[: of.width], self.fraction))
        return acc[of.width].chosen(c.constant(self.nan_code, self.nbits), value)

    def clipped(self, c: Circuit, value: Bits) -> Bits:
        """The code of a signed number; 0 of a negative one where there are none."""
        if self.signed:
            return self.limited(c, value)
        return self.limited(c, value[: value.width - 1]) & (~value.top).repeated(self.nbits)

    def product(self, c: Circuit, a: Bits, b: Bits) -> Number:
        """The exact product of two codes, its leading one on top."""
        return self.number(c, self.multiplied(c, a, b), 2 * self.fraction)

    def factors(self, c: Circuit, a: Bits, b: Bits) -> tuple[Number, Number]:
        """The numbers of two codes."""
        return self.number(c, a, self.fraction), self.number(c, b, self.fraction)

    def aligned_factors(self, c: Circuit, a: Bits, b: Bits) -> tuple[Number, Number]:
        """The same: these have no subnormal numbers."""
        return self.factors(c, a, b)

    def number(self, c: Circuit, value: Bits, fraction: int) -> Number:
        """An integer in units of 2**-fraction, its leading one on top."""
        sign = value.top if self.signed else c.constant(0, 1)
        size = (value ^ sign.repeated(value.width)) + sign.zero_extended(value.width)
        significand, zeros = normalized(c, size)
        width = (value.width + fraction).bit_length() + 1
        start = c.constant(value.width - 1 - fraction, width)
        exponent = start - zeros.zero_extended(width)
        none = c.constant(0, 1)
        return Number(none, none, ~value.any(), sign, exponent, significand)

    def from_format(self, c: Circuit, acc: Bits, codec: Codec) -> Bits:
        """The code of a number that is in another format."""
        x = codec.decode(c, acc)
        top = self.nbits - 1 - self.fraction  # exponent of a number that fills the code
        span = max(x.exponent.width, abs(top).bit_length() + 1) + 1
        exponent = x.exponent.sign_extended(span)
        over = c.constant(top, span).below_signed(exponent) & ~x.zero
        places = c.constant(top, span) - exponent
        most = self.nbits + 1
        size = most.bit_length()
        far = c.constant(most, max(span, size)).below(places.zero_extended(max(span, size)))
        places = far.chosen(c.constant(most, size), places.zero_extended(size))
        width = max(x.significand.width, self.nbits)
        placed = x.significand.raised(width - x.significand.width + most).shifted_right(places)
        # One bit more above, for the sign.
        size_bits = placed.zero_extended(placed.width + 1)
        minus = (size_bits ^ x.sign.repeated(size_bits.width)) + x.sign.zero_extended(
            size_bits.width
        )
        signed = Whole("number", minus.width, rounding=self.rounding)
        value = self.clipped(c, signed.cut_off(c, minus, placed.width - self.nbits))
        ends = [c.constant(self.nearest_end(side), self.nbits) for side in (False, True)]
        value = (over | x.inf).chosen(x.sign.chosen(ends[1], ends[0]), value)
        value = (x.zero & ~x.inf).chosen(c.constant(0, self.nbits), value)
        return x.nan.chosen(c.constant(self.nan_code, self.nbits), value)

    def nearest_end(self, negative: bool) -> int:
        """The code of the least number, or of the largest."""
        if self.signed:
            return 1 << (self.nbits - 1) if negative else (1 << (self.nbits - 1)) - 1
        return 0 if negative else (1 << self.nbits) - 1


def fixed_point(fmt: Format, registers: int) -> Whole | None:
    """The data path of a fixed-point format; None of others."""
    code: object = fmt.decoder
    plain = fmt.overflow == fmt.infinity == "saturate" and fmt.underflow == "zero"
    if not isinstance(code, FixedCode) or fmt.ties != "value" or fmt.tables or not plain:
        return None
    return Whole(
        fmt.name, fmt.nbits, code.fraction, rounding=fmt.rounding, nan_code=fmt.nan_code,
        registers=registers,
    )  # fmt: skip
