"""Minifloats: sign, exponent field, fraction, with subnormal numbers or without."""

from __future__ import annotations

from datatypes.formats import Format
from datatypes.formats.minifloat import FloatCode
from datatypes.hardware.netlist import Bits, Circuit
from datatypes.hardware.number import Layout, Number, normalized, signed_width
from datatypes.hardware.rounding import finished, incremented


class FloatCodec:
    """Decoder and rounding encoder of a minifloat."""

    def __init__(self, fmt: Format, code: FloatCode) -> None:
        self.fmt, self.code = fmt, code
        self.lowest = (1 - code.mantissa if code.subnormals else 0) - code.bias
        self.highest = (1 << code.exponent) - 1 - code.bias
        self.layout = Layout(signed_width(self.lowest - 1, self.highest), code.mantissa + 1)

    def decode(self, c: Circuit, a: Bits, shifted: bool = True) -> Number:
        """The number that a code means; subnormal ones are `shifted` up, or have the exponent of
        the least normal number, and zeros on top."""
        code, low = self.code, self.fmt.nbits - 1
        field, magnitude = a[code.mantissa : low], a[:low]
        none = c.constant(0, 1)
        nan = inf = none
        if code.style == "ieee":
            fraction = a[: code.mantissa].any()
            nan, inf = field.all() & fraction, field.all() & ~fraction
        elif code.style == "nan":
            nan = field.all()
        elif code.style == "fn":
            nan = magnitude.all()
        elif code.style in ("fnuz", "p3109"):
            nan = a.equals(self.fmt.sign_bit)
            inf = magnitude.all() if code.style == "p3109" else none
        subnormal = ~field.any() if code.subnormals else none
        hidden = ~subnormal if code.subnormals else magnitude.any()
        raw = c.joint(hidden, a[: code.mantissa]) if code.mantissa else hidden
        shifted &= code.subnormals
        significand, zeros = normalized(c, raw) if shifted else (raw, None)
        width = self.layout.exponent
        start = c.joint(field[1:], field[0] | subnormal) if code.exponent > 1 else c.constant(1, 1)
        exponent = start.zero_extended(width) - c.constant(code.bias, width)
        if zeros is not None:
            exponent = exponent - zeros.zero_extended(width)
        return Number(nan, inf, ~magnitude.any(), a.top, exponent, significand)

    def encode(self, c: Circuit, x: Number) -> Bits:
        """The code that a number of `significand + 2` bits rounds to."""
        code = self.code
        wanted = signed_width(1 << code.exponent, code.bias, self.layout.significand + 2)
        width = max(x.exponent.width, wanted) + 1
        biased = (x.exponent.sign_extended(width) + c.constant(code.bias, width)).named("biased")
        cut = self.gradual if code.subnormals else self.abrupt
        magnitude, guard, sticky = cut(c, x, biased)
        rounded = incremented(self.fmt, c, magnitude, x.sign, guard, sticky)
        past = c.constant((1 << code.exponent) - 1, width).below_signed(biased)
        over = past | c.constant(self.fmt.highest, rounded.width).below(rounded)
        return finished(self.fmt, c, x, rounded[: self.fmt.nbits - 1], over.named("over"))

    def gradual(self, c: Circuit, x: Number, biased: Bits) -> tuple[Bits, Bits, Bits]:
        """(magnitude toward zero, the first bit left out, whether any other is set): what is below
        the least normal number has fewer bits."""
        code, kept, width = self.code, self.layout.significand, biased.width
        most = kept + 2
        subnormal = biased.below_signed(c.constant(1, width))
        places = c.constant(1, width) - biased
        far = c.constant(most, width).below(places)
        size = most.bit_length()
        places = far.chosen(c.constant(most, size), places.zero_extended(size))
        places = subnormal.chosen(places, c.constant(0, size))
        shifted = x.significand.raised(most).shifted_right(places)
        field = biased[: code.exponent] & (~subnormal).repeated(code.exponent)
        top = shifted[most + 2 : most + 1 + kept] if code.mantissa else None
        magnitude = field if top is None else c.joint(field, top)
        return magnitude, shifted[most + 1], shifted[: most + 1].any()

    def abrupt(self, c: Circuit, x: Number, biased: Bits) -> tuple[Bits, Bits, Bits]:
        """The same without subnormal numbers: what is below the least number is near it or zero.

        That number is 2**-bias but for its last bit, whose code zero has; or 2**(1 - bias), if
        there is no such bit.
        """
        field, one = biased[: self.code.exponent], c.constant(1, biased.width)
        guard, sticky = x.significand[1], x.significand[0]
        negative, zero = biased.top, biased.equals(0)
        if not self.code.mantissa:
            low, half = biased.below_signed(one), zero
            sticky = low.chosen(~half | guard | sticky, sticky)
            return field & (~low).repeated(field.width), low.chosen(half, guard), sticky
        fraction = x.significand[2 : self.layout.significand + 1]
        least = zero & ~fraction.any()  # between half of the least number and all of it
        below = negative & biased.all()  # the binade in which that half is
        half = below & fraction.equals(1) & ~guard & ~sticky
        whole = c.joint(field, fraction) & (~negative).repeated(field.width + fraction.width)
        upper = least | below & fraction.any()
        return (
            whole,
            (least | negative).chosen(upper, guard),
            (least | negative).chosen(~half, sticky),
        )
