"""Formats whose codes are in no order: the codes sorted by value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from compiler.errors import DtypelabError
from datatypes.formats.value import ZERO, Number, Special, Value, as_float


@dataclass(frozen=True)
class SortedCodes:
    """The finite codes of a format by increasing value.

    Attributes:
        codes: the codes.
        first_order: order of the first of them; zero has order 0, or else the first positive value.
        has_zero: whether there is a zero.
        infinities: codes of the infinities.
    """

    codes: tuple[int, ...]
    first_order: int
    has_zero: bool
    infinities: dict[Special, int]

    @cached_property
    def orders(self) -> dict[int, int]:
        """Code -> order, of every finite code."""
        return {code: self.first_order + k for k, code in enumerate(self.codes)}

    def code(self, order: int) -> int:
        """Code of the value number `order`; beyond the range, of an infinity."""
        index = order - self.first_order
        if 0 <= index < len(self.codes):
            return self.codes[index]
        return self.infinities[Special.INF if index > 0 else Special.NEG_INF]


def sort_codes(name: str, values: Sequence[Value]) -> SortedCodes:
    """The codes 0, 1, 2, ... sorted by their `values`.

    Raises:
        DtypelabError: two codes have one value, or there are fewer than two, or none is positive.
    """
    finite: dict[int, Number] = {c: v for c, v in enumerate(values) if not isinstance(v, Special)}
    codes = sorted(finite, key=lambda code: finite[code])
    for a, b in pairwise(codes):
        if finite[a] == finite[b]:
            raise DtypelabError(
                f"format {name!r}: codes {a:#x} and {b:#x} both mean {as_float(finite[a])}; "
                "give every code its own value"
            )
    if len(codes) < 2 or not finite[codes[-1]] > ZERO:
        raise DtypelabError(f"format {name!r} needs two values at least, one of them positive")
    below = sum(value < ZERO for value in finite.values())
    infinities = {v: c for c, v in reversed(list(enumerate(values))) if isinstance(v, Special)}
    infinities.pop(Special.NAN, None)
    return SortedCodes(tuple(codes), -below, ZERO in finite.values(), infinities)
