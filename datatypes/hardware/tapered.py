"""Posits and linear takums: two's complement, and exponents of varying length.

Both round on the code: what does not fit is cut off from one long string of bits.
"""

from __future__ import annotations

from datatypes.formats import Format
from datatypes.formats.posit import PositCode
from datatypes.hardware.netlist import Bits, Circuit
from datatypes.hardware.number import Layout, Number, leading_zeros, signed_width
from datatypes.hardware.rounding import finished, incremented


def magnitude_of(fmt: Format, a: Bits) -> Bits:
    """[nbits - 1] size of a code in two's complement."""
    low = fmt.nbits - 1
    return (a[:low] ^ a.top.repeated(low)) + a.top.zero_extended(low)


def shortened(fmt: Format, c: Circuit, x: Number, string: Bits) -> Bits:
    """The code of a number whose string of bits below the sign is given, rounded."""
    low = fmt.nbits - 1
    rest = string.width - low
    body = string[rest:]
    rounded = incremented(fmt, c, body, x.sign, string[rest - 1], string[: rest - 1].any())
    kept = rounded.top.chosen(body, rounded[:low])  # maxpos stays
    return finished(fmt, c, x, kept, None)


class PositCodec:
    """Decoder and rounding encoder of a posit."""

    def __init__(self, fmt: Format, code: PositCode) -> None:
        self.fmt, self.es = fmt, code.es
        self.highest = fmt.nbits - 2 << code.es
        self.lowest = -self.highest
        bits = max(fmt.nbits - 3 - code.es, 0)
        self.layout = Layout(signed_width(self.lowest, self.highest), bits + 1)

    def decode(self, c: Circuit, a: Bits) -> Number:
        """The number that a code means (Posit Standard 2022, section 3)."""
        low = self.fmt.nbits - 1
        size = magnitude_of(self.fmt, a).named("magnitude")
        leading = size.top
        changed = size[: low - 1] ^ leading.repeated(low - 1)
        run = leading_zeros(c, c.joint(changed, c.constant(1, 1))).named("run")
        tail = size[: low - 1].shifted_left(run)[: low - 2]  # without the bit that ends the run
        wanted = self.es + self.layout.significand - 1
        tail = tail.raised(max(wanted - tail.width, 0))
        fraction = self.layout.significand - 1
        width = self.layout.exponent
        regime = run.zero_extended(run.width + 1) ^ (~leading).repeated(run.width + 1)
        parts = [regime, tail[tail.width - self.es :]] if self.es else [regime]
        exponent = c.joint(*parts).sign_extended(width)
        special = ~a[:low].any()
        one = ~special
        start = tail.width - self.es - fraction
        significand = c.joint(one, tail[start : start + fraction]) if fraction else one
        return Number(
            special & a.top, c.constant(0, 1), special & ~a.top, a.top, exponent, significand
        )

    def encode(self, c: Circuit, x: Number) -> Bits:
        """The code that a number of `significand + 2` bits rounds to."""
        low = self.fmt.nbits - 1
        width = max(x.exponent.width, self.layout.exponent + 1)
        exponent = x.exponent.sign_extended(width)
        regime = exponent[self.es :]
        negative = exponent.top
        run = regime ^ negative.repeated(regime.width)
        size = low.bit_length()
        if run.width > size:
            far = run[size:].any() | c.constant(low, size).below(run[:size])
            run = far.chosen(c.constant(low, size), run[:size])
        below = [exponent[: self.es]] if self.es else []
        fraction = x.significand[: x.significand.width - 1]
        string = c.joint(~negative, negative, *below, fraction)
        # Whatever is shifted out at the bottom is still wanted, as sticky bits.
        string = string.raised(low)
        return shortened(self.fmt, c, x, string.shifted_right_signed(run))


class TakumCodec:
    """Decoder and rounding encoder of a linear takum of at least 6 bits."""

    def __init__(self, fmt: Format) -> None:
        self.fmt = fmt
        self.lowest, self.highest = -255, 254
        self.layout = Layout(9, max(fmt.nbits - 5, 0) + 1)

    def decode(self, c: Circuit, a: Bits) -> Number:
        """The number that a code means (Hunhold 2024, definition 2)."""
        low = self.fmt.nbits - 1
        size = magnitude_of(self.fmt, a).named("magnitude")
        direction, rest = size.top, size[: low - 4]
        regime = size[low - 4 : low - 1]
        length = (regime ^ (~direction).repeated(3)).named("characteristic_length")
        bits = self.layout.significand - 1
        tail = rest.raised(max(7 - rest.width, 0))
        # The characteristic's bits come to lie above the others, below a leading one.
        digits = tail ^ (~direction).repeated(tail.width)
        lifted = c.joint(c.constant(1, 8), digits).shifted_left(length)
        count = lifted[tail.width :]  # 2**length + digits: characteristic + 1, or its negative
        fraction = tail.shifted_left(length)
        width = self.layout.exponent
        minus = count.zero_extended(width) - c.constant(1, width)
        exponent = minus ^ (~direction).repeated(width)
        special = ~a[:low].any()
        significand = c.joint(~special, fraction[tail.width - bits :])
        return Number(
            special & a.top, c.constant(0, 1), special & ~a.top, a.top, exponent, significand
        )

    def encode(self, c: Circuit, x: Number) -> Bits:
        """The code that a number of `significand + 2` bits rounds to."""
        width = max(x.exponent.width, 10)
        exponent = x.exponent.sign_extended(width)
        negative = exponent.top
        count = (exponent ^ negative.repeated(width)) + c.constant(1, width)
        far = count[8:].any()
        count = count[:8] | far.repeated(8)
        zeros = leading_zeros(c, count)
        regime = zeros ^ (~negative).repeated(3)
        stored = count[:7] ^ negative.repeated(7)
        fraction = x.significand[: x.significand.width - 1]
        beyond = far.chosen((~negative).repeated(fraction.width), fraction)
        rest = c.joint(stored, beyond).shifted_left(zeros)
        string = c.joint(~negative, regime, rest)
        return shortened(self.fmt, c, x, string)
