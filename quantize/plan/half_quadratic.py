"""HQQ: zero points by which fewer weights are far off, without data.

Badri and Shaji, Half-Quadratic Quantization of Large Machine Learning Models, 2023. Of each group,
sum |W - S (Q - z)|^p is made small over its real zero point z, with p < 1 so that outliers count
little. The error is split in two, in turns: E is what shrinking leaves of the error, and z the mean
of Q - (W - E) / S. Errors are measured in units of the scale here, so that the strength of the
shrinking does not depend on how large weights are.
"""

from __future__ import annotations

import numpy as np

from compiler.types.dtypes import Array

POWER = 0.7
"""p of the paper."""
STRENGTH, GROWTH = 10.0, 1.01
"""The weight of the split at first, and what each step multiplies it with."""
STEPS = 20


def half_quadratic(rows: Array, scale: Array, zero: Array, low: int, high: int) -> Array:
    """float64 [N]: the zero point of each row of weights [N, K], no worse than the given ones.

    Args:
        scale: [N], positive.
        zero: [N], integers among `low` to `high`, the ends of the integers.
    """
    w = rows.astype(np.float64) / scale[:, None]
    z = best = zero.astype(np.float64)
    least = _error(w, z, low, high)
    strength = STRENGTH
    for _ in range(STEPS):
        q = np.clip(np.rint(w + z[:, None]), low, high)
        error = _shrunk(w - (q - z[:, None]), strength)
        z = np.clip((q - w + error).mean(axis=1), low, high)
        found = _error(w, z, low, high)
        best, least = np.where(found < least, z, best), np.minimum(found, least)
        strength *= GROWTH
    return best


def _error(w: Array, z: Array, low: int, high: int) -> Array:
    """sum |w - (q - z)|^p of each row, in units of its scale."""
    q = np.clip(np.rint(w + z[:, None]), low, high)
    total: Array = (np.abs(w - (q - z[:, None])) ** POWER).sum(axis=1)
    return total


def _shrunk(x: Array, strength: float) -> Array:
    """The generalized soft threshold: what is left of x by a penalty |x|^p."""
    size = np.maximum(np.abs(x), 1e-12)
    return np.asarray(np.sign(x) * np.maximum(size - size ** (POWER - 1) / strength, 0))
