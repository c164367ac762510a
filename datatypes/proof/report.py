"""What was checked, against what, and what was wrong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from compiler.types.dtypes import Array
from datatypes.formats import Format, as_float

Operands = Sequence[tuple[Format | None, Array]]
"""Arrays of codes with their format; None: of numbers."""

EXAMPLES = 5
"""Counterexamples kept of each row."""


@dataclass(frozen=True)
class Counterexample:
    """Operands as hexadecimal codes and as values, and two results, written the same way."""

    operands: tuple[str, ...]
    got: str
    expected: str


@dataclass(frozen=True)
class Row:
    """One property.

    Attributes:
        name: what holds, such as `Add of pairs`.
        cases: how many were compared.
        against: the judge or peer.
        target: what the kernels were compiled for; empty if no kernel was on trial.
        seconds: how long it took.
        wrong: how many differ.
        examples: the first of them.
    """

    name: str
    cases: int
    against: str
    target: str = ""
    seconds: float = 0.0
    wrong: int = 0
    examples: tuple[Counterexample, ...] = ()


@dataclass(frozen=True)
class Report:
    """The rows of one format and lowering.

    Attributes:
        format, lowering: what was on trial.
        rows: the properties, in the order checked.
        excluded: peers' functions that are not compared -> why.
        missing: operations without a kernel in this lowering -> why.
    """

    format: str
    lowering: str
    rows: tuple[Row, ...]
    excluded: dict[str, str]
    missing: dict[str, str]

    @cached_property
    def passed(self) -> bool:
        """Whether nothing was wrong, and something was checked."""
        return bool(self.rows) and not any(row.wrong for row in self.rows)


def compared(
    name: str,
    operands: Operands,
    results: Format | None,
    got: Array,
    expected: Array,
    against: str,
    target: str = "",
) -> Row:
    """A row of elementwise comparison.

    Args:
        name, against, target: as in Row.
        operands: what it was computed from.
        results: what the results are codes of, or None: numbers. Floats are equal if their bits
            are, NaN aside.
        got, expected: arrays of one shape.
    """
    got, expected = np.asarray(got), np.asarray(expected)
    if got.dtype.kind == "f":
        same = (got == expected) & (np.signbit(got) == np.signbit(expected))
        same |= np.isnan(got) & np.isnan(expected)
    else:
        same = got == expected
    wrong = np.flatnonzero(~same)
    shaped = [(fmt, np.broadcast_to(array, got.shape).ravel()) for fmt, array in operands]
    examples = tuple(
        Counterexample(
            tuple(written(fmt, array[k]) for fmt, array in shaped),
            written(results, got.ravel()[k]),
            written(results, expected.ravel()[k]),
        )
        for k in wrong[:EXAMPLES].tolist()
    )
    return Row(name, got.size, against, target, 0.0, int(wrong.size), examples)


def written(fmt: Format | None, item: object) -> str:
    """`0x4000 = 1.0`, or a plain number."""
    if fmt is None:
        return str(item)
    code = int(np.asarray(item))
    return f"0x{code:0{(fmt.nbits + 3) // 4}x} = {as_float(fmt.decode_exact(code))!r}"
