"""Quick ways to exact sums of products: those that data of ordinary magnitudes allow.

`SplitExact` makes parts so short that float64 holds any sum of their products. Most data need far
fewer: the leading bit of a sum and the last bit of its smallest product are seldom more than 53
apart. So one product of the whole operands is tried first, or, where a constant operand is known to
be of many magnitudes, a few products of its parts; what the CPU says about rounding decides whether
that was exact (see `if_exact`).

What a multiply-accumulate costs, in 512-bit operations of one core: 1/8 in float64, 1/16 in
float32, 1/32 with int16, 1/64 with int8. posit8_es0 has integers of 13 bits in units of 2**-6: one
product of int16, where int32 holds the sums (four of int8 parts would cost twice that). A row of
posit16_es1 spans 20 bits and more: nine products of int8 parts, which is as much as one of float64.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from compiler.ir.expr import Atom, Call, Constant
from compiler.op.accumulate import EXACT_BITS
from compiler.op.elementwise import MULTIPLY
from compiler.op.exact_sum_parts import ADD_TO_ODD
from compiler.op.mixed import CAST
from compiler.transform.exact_sum import ExactSum, last_bit, width_of
from compiler.types.dtypes import FLOAT32, INT16, INT32, Array, DType, custom, span

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


def quick_sum(s: ExactSum, sure: int) -> Atom | None:
    """The sum, rounded to odd, if nothing rounds before; None where that is not likely, or
    where it takes no less than the `sure` products."""
    if not s.products:
        return None
    first, second, *bias = s.value.args
    spreads = [_spread(s, a) for a in (first, second)]
    low, high = s.range_of(second)
    finite = isinstance(second, Constant) and bool(np.isfinite(s.decoded(second)).all())
    most = range(1, (MOST if finite else 1) + 1)
    n = parts_to_try(spreads, [width_of(high - low, k) for k in most], s.terms)
    if not 0 < n < sure:
        return None
    x, w = s.wide(first), s.parts(second, low, n, width_of(high - low, n))
    home = min(range(n), key=lambda k: abs(w.grids[k]))  # where a bias, which is near one, fits
    sums = [
        s.apply([x, q, *(map(s.wide, bias) if k == home else ())]) for k, q in enumerate(w.values)
    ]
    return sums[0] if n == 1 else s.call(ADD_TO_ODD, *sums)


def _spread(s: ExactSum, a: Atom) -> int:
    """Bits that a row of an operand is likely to span."""
    if isinstance(a, Constant):
        return row_spread(s.decoded(a))
    return ordinary_spread(s.dtype)


# ---- integers ------------------------------------------------------------------------------------
def _in_units(values: Array, low: int) -> Array:
    """Multiples of 2**low as int64."""
    return np.asarray(values * 2.0**-low).astype(np.int64)


def _fit(weights: Array, bias: Sequence[Array], grid: tuple[int, int]) -> bool:
    """Whether int32 holds every sum of products with rows of integer weights, and the bias."""
    most = np.abs(weights).reshape(len(weights), -1).sum(1) * (1 << (grid[1] - grid[0]))
    return bool((sum((np.abs(b) for b in bias), most) < 1 << 31).all())


def integer_sum(s: ExactSum) -> Atom | None:
    """The sum of products of int16, if values are so many units of one grid and int32 is known
    to hold the sum; None if not. (Converting what is no number is an invalid operation.)"""
    v = s.value
    grid, contraction = span(s.dtype), s.op.contraction
    assert grid is not None
    first, *rest = v.args
    known = [s.decoded(a) for a in rest if isinstance(a, Constant)]
    if contraction is None or not contraction.by_rows:
        return None
    if grid[1] - grid[0] > 15:
        return None
    if len(known) < len(rest) or not all(np.isfinite(k).all() for k in known):
        return None
    weights = _in_units(known[0], grid[0])
    bias = [_in_units(k, 2 * grid[0]) for k in known[1:]]
    if weights.shape[1] % 2 or not _fit(weights, bias, grid):
        return None
    x = s.call(CAST, first, dtype="float32")
    x = s.call(MULTIPLY, x, Constant(np.asarray(2.0 ** -grid[0], np.float32), FLOAT32))
    x = s.call(CAST, x, dtype="int16")
    attrs = replace(v.attrs, accumulate="sequential", out_dtype="int32")
    constants = [Constant(weights.astype(np.int16), INT16)]
    constants += [Constant(b.astype(np.int32), INT32) for b in bias]
    total = s.emit(Call(v.op, (x, *constants), attrs))
    wide = s.call(CAST, total, dtype="float64")
    return s.call(MULTIPLY, wide, s.scalar(2.0 ** (2 * grid[0])))
