"""What a format's circuits are made of, chosen by its family."""

from __future__ import annotations

from typing import Protocol

from compiler.errors import UnsupportedError
from datatypes.formats import Format
from datatypes.formats.minifloat import FloatCode
from datatypes.formats.posit import PositCode
from datatypes.formats.takum import TakumCode
from datatypes.hardware.floats import FloatCodec
from datatypes.hardware.netlist import Bits, Circuit
from datatypes.hardware.number import Layout, Number
from datatypes.hardware.tapered import PositCodec, TakumCodec


class Codec(Protocol):
    """Decoder and rounding encoder of a format whose numbers have a sign, exponent, significand."""

    fmt: Format
    layout: Layout
    lowest: int
    highest: int

    def decode(self, c: Circuit, a: Bits) -> Number:
        """The number that a code means."""
        ...

    def encode(self, c: Circuit, x: Number) -> Bits:
        """The code that a number of `significand + 2` bits, the last one sticky, rounds to."""
        ...


def aligned_number(codec: Codec, c: Circuit, a: Bits) -> Number:
    """The number of a code with the exponent that aligned sums take (`compiler.op.accumulator`):
    of a float's subnormal numbers, that of the least normal one."""
    return codec.decode(c, a, False) if isinstance(codec, FloatCodec) else codec.decode(c, a)


def codec_of(fmt: Format) -> Codec | None:
    """The circuits of a family that has its own; None of others.

    Raises:
        UnsupportedError: the format rounds stochastically, or only stores values.
    """
    if fmt.rounding == "stochastic":
        raise UnsupportedError(
            f"{fmt.name} has no hardware, because it rounds stochastically; "
            f"the nearest is {fmt.name.partition('_stochastic')[0]}"
        )
    if fmt.storage_only:
        raise UnsupportedError(f"{fmt.name} has no hardware, because it only stores values")
    code: object = fmt.decoder
    if fmt.tables or fmt.negation == "none":
        return None
    if isinstance(code, FloatCode) and fmt.negation == "sign" and _ends_within_a_binade(fmt):
        return FloatCodec(fmt, code)
    tapered = fmt.underflow == "minpos" and fmt.overflow == "saturate"
    if fmt.negation == "complement" and tapered and fmt.nbits >= 6:
        if isinstance(code, PositCode):
            return PositCodec(fmt, code)
        if isinstance(code, TakumCode):
            return TakumCodec(fmt)
    return None


def _ends_within_a_binade(fmt: Format) -> bool:
    """Whether a float's steps go on above its largest number as they are below it; if that is a
    power of two, what overflows begins where no bit of the encoder is (`Format.point`)."""
    largest = fmt.value(fmt.highest)
    power = (largest.numerator & (largest.numerator - 1)) == 0
    return fmt.overflow == "saturate" or not fmt.rounding.startswith("nearest") or not power
