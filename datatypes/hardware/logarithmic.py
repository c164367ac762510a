"""Logarithmic formats of up to 8 bits: products add logarithms, sums look a correction up."""

from __future__ import annotations

from typing import NoReturn

from compiler.errors import UnsupportedError
from datatypes.arithmetic import logarithms
from datatypes.formats import Format
from datatypes.formats.logarithmic import LogarithmCode
from datatypes.hardware.accumulators import Exact
from datatypes.hardware.codecs import Codec
from datatypes.hardware.lookup import looked_up
from datatypes.hardware.netlist import Bits, Circuit
from datatypes.hardware.number import Number
from datatypes.hardware.tabulated import TABLE_BITS


class Logarithmic:
    """The operations of a sign and a biased logarithm (Swartzlander and Alexopoulos 1975)."""

    def __init__(self, fmt: Format, code: LogarithmCode, registers: int = 0) -> None:
        if fmt.nbits > TABLE_BITS:
            raise UnsupportedError(
                f"{fmt.name} has no hardware: sums look corrections up in tables, which are for "
                f"at most {TABLE_BITS} bits; the nearest is lns8_{min(code.fraction, 5)}"
            )
        self.fmt, self.registers, self.bias = fmt, registers, code.bias
        self.name, self.nbits = fmt.name, fmt.nbits

    @property
    def parts(self) -> str:
        """What the port `parts` holds."""
        low = self.nbits - 2
        return f"parts = {{nan, zero, sign, logarithm[{low}:0]}}: biased by {self.bias}"

    def parts_width(self) -> int:
        """Of the port `parts`."""
        return self.nbits + 2

    def decode(self, c: Circuit, a: Bits) -> Bits:
        """The parts of a code."""
        none = ~a[: self.nbits - 1].any()
        return c.joint(none & a.top, none & ~a.top, a)

    def encode(self, c: Circuit, parts: Bits) -> Bits:
        """The code of parts that `decode` gave."""
        return parts[: self.nbits]

    def mul(self, c: Circuit, a: Bits, b: Bits) -> Bits:
        """The code of a product: never rounded, only limited to the range."""
        low, width = self.nbits - 1, self.nbits + 2
        x, y = a[:low], b[:low]
        total = x.zero_extended(width) + y.zero_extended(width) - c.constant(self.bias, width)
        zero = ~x.any() | ~y.any()
        nan = (~x.any() & a.top) | (~y.any() & b.top)
        return self.packed(c, total, a.top ^ b.top, zero, nan)

    def add(self, c: Circuit, a: Bits, b: Bits) -> Bits:
        """The code of a sum, rounded once: the larger logarithm and a correction."""
        low, width = self.nbits - 1, self.nbits + 2
        swap = a[:low].below(b[:low])
        large, small = swap.chosen(b, a), swap.chosen(a, b)
        x, y = large[:low], small[:low]
        distance = x - y
        tables = [logarithms.corrections(self.fmt, sign) for sign in (1, -1)]
        least = -(1 << (width - 2))  # so low that nothing is left
        same, differ = (
            looked_up(c, distance, [max(int(n), least) for n in table], width) for table in tables
        )
        wide = x.zero_extended(width)
        total = wide + (a.top ^ b.top).chosen(differ, same)
        total = y.any().chosen(total, wide)
        nan = (~a[:low].any() & a.top) | (~b[:low].any() & b.top)
        return self.packed(c, total, large.top, ~x.any(), nan)

    def packed(self, c: Circuit, total: Bits, sign: Bits, zero: Bits, nan: Bits) -> Bits:
        """A code: saturated above the range, zero below it."""
        if self.registers:
            total, sign, zero, nan = c.cut(total, sign, zero, nan)
        low = self.nbits - 1
        most = c.constant(self.fmt.highest, total.width)
        over = most.below_signed(total)
        none = zero | total.below_signed(c.constant(1, total.width))
        size = over.chosen(most, total)[:low]
        code = none.chosen(c.constant(0, self.nbits), c.joint(sign, size))
        return nan.chosen(c.constant(self.fmt.nan_code, self.nbits), code)

    def refuse(self) -> NoReturn:
        """Sums are of rounded products only."""
        raise UnsupportedError(
            f"{self.name} has only sequential accumulation, because its values, or what lies "
            "between them, are no sums of powers of two; the nearest is accumulate='sequential'"
        )

    def exact(self, headroom: int) -> Exact:
        """There is none."""
        self.refuse()

    def mac_exact(self, c: Circuit, a: Bits, b: Bits, acc: Bits, into: Exact) -> Bits:
        """There is none."""
        self.refuse()

    def round_exact(self, c: Circuit, acc: Bits, of: Exact) -> Bits:
        """There is none."""
        self.refuse()

    def product(self, c: Circuit, a: Bits, b: Bits) -> Number:
        """There is none."""
        self.refuse()

    def factors(self, c: Circuit, a: Bits, b: Bits) -> tuple[Number, Number]:
        """There are none."""
        self.refuse()

    def aligned_factors(self, c: Circuit, a: Bits, b: Bits) -> tuple[Number, Number]:
        """There are none."""
        self.refuse()

    def from_format(self, c: Circuit, acc: Bits, codec: Codec) -> Bits:
        """There is none."""
        self.refuse()
