"""What emitters of instructions are given that write C."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Operand(NamedTuple):
    """An operand in memory: `first` points to its first element; `steps` are the elements from one
    iteration of each of the instruction's loops to the next.

    Emitters take the accumulator and the operands, and return a statement; None: the instruction is
    not for operands that lie so.
    """

    first: str
    steps: Mapping[str, int]
