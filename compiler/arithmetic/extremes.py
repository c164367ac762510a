"""Larger and smaller of two numbers, as IEEE 754-2019's maximum and minimum: NaN if one is NaN, and
+0 is larger than -0 (of which numpy takes either, as the processor and the length go)."""

from __future__ import annotations

import numpy as np

from compiler.types.dtypes import Array


def maximum(a: Array, b: Array) -> Array:
    """The larger, element by element."""
    out = np.maximum(a, b)
    zeros = _zeros(out, a, b)
    if zeros is None:
        return out
    with np.errstate(all="ignore"):
        return np.where(zeros, np.add(a, b), out)


def minimum(a: Array, b: Array) -> Array:
    """The smaller, element by element."""
    out = np.minimum(a, b)
    zeros = _zeros(out, a, b)
    if zeros is None:
        return out
    with np.errstate(all="ignore"):
        return np.where(zeros, -(np.negative(a) - b), out)


def _zeros(out: Array, a: Array, b: Array) -> Array | None:
    """Where floats a and b are zeros, None if nowhere."""
    if out.dtype.kind != "f":
        return None
    zeros = out == 0
    return (np.equal(a, 0) & np.equal(b, 0)) if np.any(zeros) else None
