"""Formats given by a list of values, such as NF4."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from compiler.errors import DtypelabError
from datatypes.formats.description import Format
from datatypes.formats.rules import SORTED_BITS
from datatypes.formats.value import Special, Value


@dataclass(frozen=True)
class Codebook:
    """Code i has the value `entries[i]`."""

    entries: tuple[Value, ...]

    def __call__(self, bits: int, nbits: int) -> Value:
        """Exact value of a code."""
        return self.entries[bits]


def codebook(name: str, values: Sequence[float | Fraction]) -> Format:
    """The format whose code i means `values[i]`; beyond the largest, numbers saturate.

    NaN becomes the first NaN among the values, or else the value nearest to zero.

    Args:
        name: of the format.
        values: 2**n of them, n up to 16, in any order; exact, NaN and infinities included.

    Raises:
        DtypelabError: another number of values, or one that is there twice.
    """
    nbits = max(len(values) - 1, 1).bit_length()
    if len(values) != 1 << nbits or not 2 <= nbits <= SORTED_BITS:
        raise DtypelabError(
            f"format {name!r} has {len(values)} values; list 2**n, 2 <= n <= {SORTED_BITS}"
        )
    entries = tuple(map(exact_value, values))
    nan = next((code for code, value in enumerate(entries) if value is Special.NAN), None)
    near_zero = min(
        (abs(value), code) for code, value in enumerate(entries) if isinstance(value, Fraction)
    )
    return Format(
        name=name,
        nbits=nbits,
        decoder=Codebook(entries),
        nan_code=near_zero[1] if nan is None else nan,
        negation="none",
        overflow="saturate",
        infinity="saturate",
        source="a list of values",
    )


def exact_value(value: float | Fraction | Value) -> Value:
    """A number or NaN or infinity as an exact value."""
    if isinstance(value, float) and not math.isfinite(value):
        return Special(str(value))
    return value if not isinstance(value, int | float) else Fraction(value)


NF4 = codebook(
    "nf4",
    [
        *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453),
        *(-0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0),
        *(0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224),
        *(0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
    ],
)
"""4-bit NormalFloat (T. Dettmers and others, "QLoRA", 2023, appendix E), without block scales."""
