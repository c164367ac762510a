"""Operations given as tables: approximate multipliers, and any other semantics of 8-bit codes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from compiler.arithmetic.scalar_functions import UNARY
from compiler.errors import DtypelabError, unknown

BINARY = ("Add", "Sub", "Mul", "Div", "Max", "Min")
FUNCTIONS = tuple(f.name for f in UNARY.values() if f.in_formats)
PAIRS_BITS = 8
"""Widest format whose pairs of operands are tabulated."""


@dataclass(frozen=True)
class OperationTable:
    """One operation of a format of at most 8 bits, replaced by a table of result codes.

    Attributes:
        op: one of `BINARY` or `FUNCTIONS`.
        codes: one byte for every operand code, or pair of them (the first in the upper bits).
    """

    op: str
    codes: bytes

    def __repr__(self) -> str:
        return f"OperationTable({self.op}, {len(self.codes)} codes)"

    def results(self, *operands: npt.NDArray[np.generic]) -> npt.NDArray[np.uint8]:
        """Result codes for arrays of operand codes, which broadcast."""
        entries: npt.NDArray[np.uint8] = np.frombuffer(self.codes, np.uint8)
        if self.op in FUNCTIONS:
            return np.asarray(entries[operands[0]])
        side = 1 << (len(entries).bit_length() // 2)
        return np.asarray(entries.reshape(side, side)[operands])


def operation_tables(
    name: str, nbits: int, tables: Mapping[str, npt.ArrayLike]
) -> tuple[OperationTable, ...]:
    """Checked tables of a format, sorted by operation.

    Args:
        name: of the format, for messages.
        nbits: its width, at most 8.
        tables: operation -> array of codes, [2**nbits, 2**nbits] (first operand, second operand)
            for `BINARY`, [2**nbits] for `FUNCTIONS`.

    Raises:
        DtypelabError: an unknown operation, a wrong shape, or entries that are no codes.
    """
    if tables and nbits > PAIRS_BITS:
        raise DtypelabError(
            f"format {name!r} has {nbits} bits; tables of operations are for at most {PAIRS_BITS}"
        )
    made = []
    count = 1 << nbits
    for op, table in sorted(tables.items()):
        if op not in (*BINARY, *FUNCTIONS):
            raise DtypelabError(unknown("operation", op, [*BINARY, *FUNCTIONS]))
        entries = np.asarray(table)
        wanted = (count,) if op in FUNCTIONS else (count, count)
        if entries.shape != wanted:
            raise DtypelabError(
                f"format {name!r}: the table of {op} has shape {entries.shape}, but {nbits} bits "
                f"need {wanted}"
            )
        if entries.dtype.kind not in "ui" or entries.min() < 0 or entries.max() >= count:
            raise DtypelabError(
                f"format {name!r}: the table of {op} must hold codes, integers 0 to {count - 1}"
            )
        made.append(OperationTable(op, entries.astype(np.uint8).tobytes()))
    return tuple(made)
