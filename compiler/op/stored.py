"""What an operator keeps beside its operands: the numbers among its attributes, and operands that
its arithmetic keeps otherwise than their dtype says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from compiler.types.dtypes import DType

SHIFT_BITS = 8
"""A shift, of -128 to 127 places."""


@dataclass(frozen=True)
class Stored:
    """What a program keeps of an operator.

    Attributes:
        attributes: bits of scales and zero points among the attributes.
        operands: operand -> bits of each of its elements, where they are not those of the dtype (a
            multiplier and a shift in place of a scale).
    """

    attributes: int = 0
    operands: Mapping[int, int] = field(default_factory=dict)


def zero_points(*given: tuple[int, DType]) -> int:
    """Bits of zero points, each as wide as the integers that it belongs to. One of 0, which nothing
    adds, takes none."""
    return sum(dtype.bits for zero, dtype in given if zero)
