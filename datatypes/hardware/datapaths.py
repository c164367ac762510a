"""The operations of a format on codes, from its decoder and its encoder."""

from __future__ import annotations

from typing import Protocol

from datatypes.hardware import accumulators
from datatypes.hardware.accumulators import Exact, InFormat
from datatypes.hardware.codecs import Codec, aligned_number
from datatypes.hardware.netlist import Bits, Circuit
from datatypes.hardware.number import Number, added, compressed, multiplied, registered


class Datapath(Protocol):
    """The circuits of a format: each puts itself into a module and returns the result's wire."""

    @property
    def name(self) -> str:
        """Of the format or integer dtype."""
        ...

    @property
    def nbits(self) -> int:
        """Width of a code."""
        ...

    @property
    def registers(self) -> int:
        """Rows of registers."""
        ...

    @property
    def parts(self) -> str:
        """What the port `parts` holds."""
        ...

    def decode(self, c: Circuit, a: Bits) -> Bits:
        """The parts of a code."""
        ...

    def encode(self, c: Circuit, parts: Bits) -> Bits:
        """The code of parts that `decode` gave."""
        ...

    def parts_width(self) -> int:
        """Of the port `parts`."""
        ...

    def add(self, c: Circuit, a: Bits, b: Bits) -> Bits:
        """The code of a sum."""
        ...

    def mul(self, c: Circuit, a: Bits, b: Bits) -> Bits:
        """The code of a product."""
        ...

    def exact(self, headroom: int) -> Exact:
        """The accumulator of exact sums."""
        ...

    def mac_exact(self, c: Circuit, a: Bits, b: Bits, acc: Bits, into: Exact) -> Bits:
        """acc + a * b in an exact accumulator."""
        ...

    def round_exact(self, c: Circuit, acc: Bits, of: Exact) -> Bits:
        """The code of an exact accumulator."""
        ...

    def product(self, c: Circuit, a: Bits, b: Bits) -> Number:
        """The exact product of two codes, its leading one on top."""
        ...

    def factors(self, c: Circuit, a: Bits, b: Bits) -> tuple[Number, Number]:
        """The numbers of two codes."""
        ...

    def aligned_factors(self, c: Circuit, a: Bits, b: Bits) -> tuple[Number, Number]:
        """The same with the exponents that aligned sums take."""
        ...

    def from_format(self, c: Circuit, acc: Bits, codec: Codec) -> Bits:
        """The code of a number that is in another format."""
        ...


class Rounded:
    """The operations of a family that has a codec: decode, compute exactly, round once."""

    def __init__(self, codec: Codec, registers: int = 0) -> None:
        self.codec, self.registers = codec, registers
        self.name, self.nbits = codec.fmt.name, codec.fmt.nbits
        self.kept = codec.layout.significand + 2

    @property
    def parts(self) -> str:
        """What the port `parts` holds."""
        return self.codec.layout.about

    def parts_width(self) -> int:
        """Of the port `parts`."""
        return self.codec.layout.width

    def decode(self, c: Circuit, a: Bits) -> Bits:
        """The parts of a code."""
        return c.joint(*self.codec.decode(c, a).bits)

    def encode(self, c: Circuit, parts: Bits) -> Bits:
        """The code of parts that `decode` gave."""
        return self.rounded(c, self.codec.layout.split(parts))

    def add(self, c: Circuit, a: Bits, b: Bits) -> Bits:
        """The code of a sum, rounded once."""
        x, y = self.decoded(c, a, b)
        return self.last(c, added(c, x, y, self.codec.layout.significand))

    def mul(self, c: Circuit, a: Bits, b: Bits) -> Bits:
        """The code of a product, rounded once."""
        return self.last(c, self.product(c, a, b))

    def product(self, c: Circuit, a: Bits, b: Bits) -> Number:
        """The exact product of two codes, its leading one on top."""
        return multiplied(c, *self.factors(c, a, b))

    def factors(self, c: Circuit, a: Bits, b: Bits) -> tuple[Number, Number]:
        """The numbers of two codes."""
        x, y = self.decoded(c, a, b)
        return x, y

    def aligned_factors(self, c: Circuit, a: Bits, b: Bits) -> tuple[Number, Number]:
        """The same with the exponents that aligned sums take."""
        x, y = self.stored(c, [aligned_number(self.codec, c, code) for code in (a, b)])
        return x, y

    def exact(self, headroom: int) -> Exact:
        """The accumulator of exact sums."""
        return accumulators.exact(self.codec.fmt, headroom)

    def mac_exact(self, c: Circuit, a: Bits, b: Bits, acc: Bits, into: Exact) -> Bits:
        """acc + a * b in an exact accumulator."""
        x, y = self.decoded(c, a, b)
        product = multiplied(c, x, y, normalize=False)
        if self.registers >= 1:
            (product,) = registered(c, [product])
        return accumulators.accumulated(c, acc, product, into, 2 * self.codec.lowest)

    def round_exact(self, c: Circuit, acc: Bits, of: Exact) -> Bits:
        """The code of an exact accumulator."""
        return self.last(c, accumulators.number_of(c, acc, of, self.kept))

    def from_format(self, c: Circuit, acc: Bits, codec: Codec) -> Bits:
        """The code of a number that is in another format."""
        return self.last(c, codec.decode(c, acc))

    def decoded(self, c: Circuit, *codes: Bits) -> list[Number]:
        """Numbers of codes; in registers, if there are two rows of them."""
        return self.stored(c, [self.codec.decode(c, code) for code in codes])

    def stored(self, c: Circuit, numbers: list[Number]) -> list[Number]:
        """Decoded numbers; in registers, if there are two rows of them."""
        return registered(c, numbers) if self.registers >= 2 else numbers

    def last(self, c: Circuit, x: Number) -> Bits:
        """The code of a result; the row of registers is before the rounding."""
        x = self.shortened(c, x)
        if self.registers >= 1:
            (x,) = registered(c, [x])
        return self.codec.encode(c, x)

    def rounded(self, c: Circuit, x: Number) -> Bits:
        """The code that a number rounds to."""
        return self.codec.encode(c, self.shortened(c, x))

    def shortened(self, c: Circuit, x: Number) -> Number:
        """A number with as many bits as the encoder takes."""
        significand = compressed(c, x.significand, self.kept)
        return Number(x.nan, x.inf, x.zero, x.sign, x.exponent, significand)


def mac_in_format(
    c: Circuit, path: Datapath, codes: list[Bits], acc: Bits, into: InFormat, sums: Rounded
) -> Bits:
    """acc + a * b, rounded to the accumulator's format once, or after the product too."""
    a, b = codes
    product = path.product(c, a, b)
    if into.rounds_products:
        product = sums.codec.decode(c, sums.rounded(c, product))
    if sums.registers >= 1:
        (product,) = registered(c, [product])
    total = added(c, product, sums.codec.decode(c, acc), sums.codec.layout.significand)
    return sums.rounded(c, total)
