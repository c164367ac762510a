"""Formats that have circuits of their own but for operations that are tables: approximate
multipliers."""

from __future__ import annotations

from datatypes.arithmetic import oracle
from datatypes.formats import Format
from datatypes.hardware.accumulators import Exact
from datatypes.hardware.codecs import Codec
from datatypes.hardware.datapaths import Rounded
from datatypes.hardware.lookup import pairs_looked_up
from datatypes.hardware.netlist import Bits, Circuit


class PartlyTabulated(Rounded):
    """A format's circuits, where `Format.tables` replaces some of its operations."""

    def __init__(self, fmt: Format, codec: Codec, registers: int = 0) -> None:
        super().__init__(codec, registers)
        self.fmt = fmt

    def add(self, c: Circuit, a: Bits, b: Bits) -> Bits:
        """The code of a sum."""
        return self.looked_up(c, "Add", a, b) or super().add(c, a, b)

    def mul(self, c: Circuit, a: Bits, b: Bits) -> Bits:
        """The code of a product."""
        return self.looked_up(c, "Mul", a, b) or super().mul(c, a, b)

    def looked_up(self, c: Circuit, op: str, a: Bits, b: Bits) -> Bits | None:
        """The code of a result, if its operation is a table."""
        table = self.fmt.table(op)
        if table is None:
            return None
        if self.registers:
            a, b = c.cut(a, b)
        return pairs_looked_up(c, a, b, list(table.codes), self.nbits)

    def exact(self, headroom: int) -> Exact:
        """There is none.

        Raises:
            UnsupportedError: always: what a table gives is a code, rounded already.
        """
        oracle.require_fused(self.fmt)
        return super().exact(headroom)
