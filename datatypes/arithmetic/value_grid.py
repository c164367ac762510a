"""The grid that a format's values lie on: what exact sums of them need."""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache

from datatypes.formats import Format


@lru_cache(maxsize=256)
def span(fmt: Format) -> tuple[int, int] | None:
    """(low, high): every finite value is a multiple of 2**low and below 2**high in magnitude.

    None for formats whose operations are not those of their values: logarithms and tables.
    """
    if fmt.logarithmic or fmt.tables:
        return None
    largest = max(abs(fmt.value(fmt.lowest)), fmt.maxpos)
    high = (largest.numerator // largest.denominator).bit_length() if largest >= 1 else 1
    return -_fraction_bits(fmt), high


def _fraction_bits(fmt: Format) -> int:
    """Bits behind the point that some value needs."""
    if fmt.nbits <= 16:
        values = [fmt.value(k) for k in range(fmt.lowest, fmt.highest + 1)]
    else:  # the values next to zero are the finest, or those of the binades around one
        near = (0, fmt.nearest(Fraction(1)), fmt.nearest(fmt.minpos * 2**20))
        values = [fmt.value(k + d) for k in near for d in range(-40, 41)]
    return max(v.denominator for v in values).bit_length() - 1
