"""Quick ways to exact sums of products: those that data of ordinary magnitudes allow.

`SplitExact` makes parts so short that float64 holds any sum of their products. Most data need far
fewer: the leading bit of a sum and the last bit of its smallest product are seldom more than 53
apart. So one product of the whole operands is tried first, or, where a constant operand is known to
be of many magnitudes, a few products of its parts; what the CPU says about rounding decides whether
that was exact (see `if_exact`).

A multiply-add of float64 costs twice one of float32. With a product of 4 x 4 parts instead, each 7
bits of a fixed-point row, bytes would cost as much as 16 / 4 float64: ordinary rows span 20 bits
and more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from compiler.dtypes import Array, DType, custom
from compiler.op.accumulate import EXACT_BITS

MOST = 3
"""Parts of a constant that are worth a try."""
_ROW = 512
_MARGIN = 6
"""Bits by which the widest of many rows exceeds most."""


def spread(values: Array) -> int:
    """Bits from the last one of any value to above the leading one of any (0: no such values)."""
    known = values[np.isfinite(values) & (values != 0)]
    if not known.size:
        return 0
    low, high = last_bit(known), int(np.frexp(known)[1].max())
    return high - low


def last_bit(known: Array) -> int:
    """The least exponent that any bit of finite non-zero values has."""
    fractions, exponents = np.frexp(known)
    integers = np.abs(fractions * 2.0**53).astype(np.int64)
    trailing = np.log2((integers & -integers).astype(np.float64)).astype(np.int64)
    return int((exponents - 53 + trailing).min())


def ordinary_spread(dtype: DType) -> int:
    """The spread of a row of normal numbers in a custom datatype."""
    kind, row = custom(dtype.name), np.random.default_rng(0).normal(size=_ROW)
    return spread(np.asarray(kind.decode(kind.encode(row, dtype), dtype), np.float64))


def row_spread(rows: Array) -> int:
    """The spread of most rows (along the first axis) of a constant."""
    return int(np.median([spread(r) for r in rows.reshape(len(rows), -1)])) if rows.size else 0


def parts_to_try(spreads: Sequence[int], widths: Sequence[int], terms: int) -> int:
    """How many parts (numbered as `widths`, from 1 on) of the second operand make exact sums
    likely; 0: none.

    Args:
        spreads: of a row of each operand.
        widths: bits of a part of the second operand, if there are so many.
        terms: of a sum, which grows as its square root.
    """
    room = EXACT_BITS - _MARGIN - spreads[0] - math.ceil(math.log2(max(terms, 1)) / 2)
    found = (n for n, width in enumerate(widths, 1) if min(width, spreads[1]) <= room)
    return next(found, 0)
