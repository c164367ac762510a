"""How wide exact sums of numbers of a format are, by the weights that they have."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction

import numpy as np

from compiler.errors import UnsupportedError
from compiler.ir.expr import Atom, Binding, Call, Constant, Var, tensor_type
from compiler.op.facts import Moves
from compiler.op.opdef import OpDef, Quantized
from compiler.op.sum_bounds import SumBounds, counted
from compiler.transform.exact_sum import last_bit
from compiler.types.dtypes import Array, DType, custom, span

Made = dict[Var, Binding]
ENUMERATED = 16
"""Bits of the widest formats of which every number is looked at."""
COUNTED = 8
"""Bits of the widest formats whose numbers are counted by their codes."""
NARROW = 31
"""Bits of numbers of which int64 holds the sums of 2**32."""
LIMB_BITS = 30
LIMB = (1 << LIMB_BITS) - 1
NOT_FINITE = "some of its weights are infinite or no numbers"


def exact_bounds(call: Call, positive: Callable[[Atom], bool]) -> tuple[SumBounds, int]:
    """Bounds of the sums of a call whose operands are numbers of formats, in units of a power of
    two that every term is a multiple of; and its exponent.

    Args:
        positive: whether an operand is known not to be negative.

    Raises:
        UnsupportedError: they are not known.
    """
    op = call.op
    assert isinstance(op, OpDef)
    assert op.summation is not None
    operands = [call.args[k] for k in op.summation.operands if k < len(call.args)]
    if not op.summation.products or len(operands) == 1:
        return _added(call, op, operands, positive)
    axes = op.contraction
    if axes is None and len(call.args) > len(operands):
        raise UnsupportedError(f"its terms are products of {len(call.args)} factors")
    data, weights = operands
    grid, low, high = _range(data, positive)
    if axes is not None and axes.by_rows and isinstance(weights, Constant):
        exponent, above, below = _row_sums(weights)
        exponent += grid
        bias = call.args[2] if len(call.args) > 2 else None
        lows, highs = above * low + below * high, above * high + below * low
        terms = int(np.prod(weights.data.shape[1:]))
        return _with_bias(lows, highs, bias, exponent, terms)
    other, least, most = _range(weights, positive)
    terms, ends = _terms(call, op), [x * y for x in (low, high) for y in (least, most)]
    lows, highs = (_whole([terms * end(ends)]) for end in (min, max))
    return _with_bias(lows, highs, None, grid + other, terms)


def _added(
    call: Call, op: OpDef, operands: Sequence[Atom], positive: Callable[[Atom], bool]
) -> tuple[SumBounds, int]:
    """Sums of the operands' own elements, all of one format."""
    grids, lows, highs = zip(*(_range(a, positive) for a in operands), strict=True)
    terms = _terms(call, op)
    least, most = (_whole([terms * end]) for end in (min(lows), max(highs)))
    return _with_bias(least, most, None, min(grids), terms)


def _terms(call: Call, op: OpDef) -> int:
    """How many terms a sum has at most.

    Raises:
        UnsupportedError: as many as an open size says.
    """
    assert op.terms is not None
    types = [tensor_type(a) for a in call.args]
    return counted("its operand has elements", op.terms(call.attrs, types))


def _with_bias(
    lows: Array, highs: Array, bias: Atom | None, exponent: int, terms: int
) -> tuple[SumBounds, int]:
    """Bounds with a last term, in the units of the finer of the two."""
    last = _whole([0])
    if isinstance(bias, Constant):
        finer, above, below = _row_sums(bias)
        shared = min(exponent, finer)
        lows, highs = lows << (exponent - shared), highs << (exponent - shared)
        last, exponent = (above + below) << (finer - shared), shared
    elif bias is not None:
        raise UnsupportedError("its bias is not constant")
    whole = lows + last, highs + last
    least, most = np.minimum(np.minimum(lows, 0), whole[0]), np.maximum(highs, 0)
    return SumBounds(*whole, least, np.maximum(most, whole[1]), terms), exponent


def _whole(values: list[int]) -> Array:
    """Python's integers, which no sum overflows."""
    return np.asarray(values, object)


def _range(a: Atom, positive: Callable[[Atom], bool]) -> tuple[int, int, int]:
    """(grid, least, largest): the numbers of an atom are multiples of 2**grid, in its units at
    least and at most so large. The range is that of the format, or of what is not negative there.

    Raises:
        UnsupportedError: the format's numbers lie on no grid.
    """
    dtype = tensor_type(a).dtype
    grid = span(dtype)
    if grid is None:
        raise UnsupportedError(
            f"{dtype.name or dtype} has no exact sums: its numbers lie on no grid"
        )
    low, high = _finite(dtype, grid)
    return grid[0], 0 if positive(a) else low, high


def _finite(dtype: DType, grid: tuple[int, int]) -> tuple[int, int]:
    """The ends of the finite numbers, in units of the grid; of wide formats, a power of two."""
    if dtype.bits > ENUMERATED:
        most = 1 << (grid[1] - grid[0])
        return -most, most
    codes = np.arange(1 << dtype.bits).astype(dtype.storage)
    values = custom(dtype.name).decode(codes, dtype)
    values = values[np.isfinite(values)]
    low, high = (Fraction(float(v)) / Fraction(2) ** grid[0] for v in (values.min(), values.max()))
    return int(low), int(high)


def not_negative(a: Atom, made: Made) -> bool:
    """Whether a value was clipped at zero, and only moved since then."""
    b = made.get(a) if isinstance(a, Var) else None
    if b is None or not isinstance(b.value, Call) or not isinstance(b.value.op, OpDef):
        return False
    op, attrs = b.value.op, b.value.attrs
    if op.clips is not None:
        return op.clips(attrs)[0] >= 0 or not_negative(b.value.args[0], made)
    if op.quantized != Quantized.SAME and op.moves != Moves.PAD:
        return False
    filled = op.moves != Moves.PAD or attrs.mode != "constant" or attrs.value >= 0
    same = [x for x in b.value.args if tensor_type(x).dtype == tensor_type(a).dtype]
    return filled and bool(same) and all(not_negative(x, made) for x in same)


def _row_sums(c: Constant) -> tuple[int, Array, Array]:
    """(exponent, sums of the positive numbers, sums of the negative ones) of the rows of a constant
    in units of 2**exponent, exact.

    Raises:
        UnsupportedError: some are infinite or no numbers.
    """
    dtype = c.dtype
    if dtype.bits <= COUNTED and c.data.ndim:
        return _counted_sums(c)
    values = np.asarray(custom(dtype.name).decode(c.data, dtype), np.float64)
    if not np.isfinite(values).all():
        raise UnsupportedError(NOT_FINITE)
    rows = values.reshape(len(values), -1) if values.ndim else values.reshape(1, 1)
    known = values[values != 0]
    exponent = last_bit(known) if known.size else 0
    _, exponents = np.frexp(rows)
    above, below = _whole([0] * len(rows)), _whole([0] * len(rows))
    for e in np.unique(exponents[rows != 0]):
        # Numbers of one binade are integers of few bits, in units of their own last one.
        here = np.where(exponents == e, rows, 0.0)
        last = last_bit(here[here != 0])
        parts = (here * 2.0**-last).astype(np.int64 if e - last <= NARROW else object)
        above += np.maximum(parts, 0).sum(axis=1).astype(object) << (last - exponent)
        below += np.minimum(parts, 0).sum(axis=1).astype(object) << (last - exponent)
    return exponent, above, below


def _counted_sums(c: Constant) -> tuple[int, Array, Array]:
    """`_row_sums`, by how often each row has each of a few codes."""
    dtype, rows, many = c.dtype, len(c.data), 1 << c.dtype.bits
    codes = c.data.reshape(rows, -1).astype(np.int64) + many * np.arange(rows)[:, None]
    counts = np.bincount(codes.reshape(-1), minlength=rows * many).reshape(rows, many)
    values = custom(dtype.name).decode(np.arange(many).astype(dtype.storage), dtype)
    values = np.asarray(values, np.float64)
    there = counts.any(axis=0)
    if not np.isfinite(values[there]).all():
        raise UnsupportedError(NOT_FINITE)
    known = values[there & (values != 0)]
    exponent = last_bit(known) if known.size else 0
    sums = []
    for kept in (there & (values > 0), there & (values < 0)):
        units = [int(Fraction(float(v)) / Fraction(2) ** exponent) for v in values[kept]]
        total, shift = _whole([0] * rows), 0
        while any(unit >> shift not in (0, -1) for unit in units) or shift == 0:
            # Limbs of few bits, whose sums int64 holds; the last one has the sign.
            limbs = [(unit >> shift) & LIMB for unit in units]
            total += (counts[:, kept] @ np.asarray(limbs, np.int64)).astype(object) << shift
            shift += LIMB_BITS
        below = [unit >> shift for unit in units]  # 0, or -1 of negative numbers
        total += (counts[:, kept] @ np.asarray(below, np.int64)).astype(object) << shift
        sums.append(total)
    return exponent, sums[0], sums[1]
