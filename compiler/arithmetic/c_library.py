"""Functions of the C library as references compute them: the numbers that compiled code gets.

numpy has functions of its own, which differ from the C library's in the last bits of float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from compiler.arithmetic.scalar_function import ScalarFunction
from compiler.types.dtypes import Array, DType

_NEAR = 1 << 5
"""Units in the last place of float64 by which two libraries may differ."""
_DIGITS = {16: 10, 32: 23}
_NORMAL = {16: 2.0**-13, 32: 2.0**-125}


def rounded(f: ScalarFunction, dtype: DType, *args: Array) -> Array:
    """The C library's float64 function of float operands, rounded once to `dtype`.

    Where a narrower result cannot depend on the last bits of float64, numpy's (which does many
    numbers at once) serves as well.
    """
    wide = np.broadcast_arrays(*(np.asarray(a, np.float64) for a in args))
    with np.errstate(all="ignore"):
        found = np.array(f.numpy(*wide), np.float64)
    unsure = np.isfinite(found) & _between(found, dtype.bits)
    if unsure.any():
        rows = zip(found[unsure].tolist(), *(w[unsure].tolist() for w in wide), strict=True)
        function = getattr(math, str(f.c))
        found[unsure] = [_called(function, *row) for row in rows]
    with np.errstate(all="ignore"):
        return np.asarray(found.astype(dtype.storage))


def _called(function: Callable[..., float], near: float, *args: float) -> float:
    try:
        return float(function(*args))
    except OverflowError:  # a result next to the largest number
        return math.copysign(math.inf, near)


def _between(x: Array, bits: int) -> Array:
    """Whether numbers are so near the middle between two of a narrower float that these differ."""
    if bits == 64:
        return np.ones(x.shape, bool)
    dropped = 52 - _DIGITS[bits]
    from_middle = (x.view(np.int64) & ((1 << dropped) - 1)) - (1 << (dropped - 1))
    tiny = (np.abs(x) < _NORMAL[bits]) & (x != 0)
    return np.asarray((np.abs(from_middle) <= _NEAR) | tiny)
