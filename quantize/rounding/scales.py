"""Scales of weights: how much of their range the integers cover."""

from __future__ import annotations

import numpy as np

from compiler.dtypes import Array

RATIOS = np.linspace(1.0, 0.3, 71)
"""Shares of the largest weight that `least_error` tries."""


def largest(rows: Array, qmax: int) -> Array:
    """float64 [N]: scales by which the largest magnitude of each row of [N, K] becomes `qmax`."""
    top: Array = np.abs(rows).max(axis=1).astype(np.float64) / qmax
    return top


def least_error(rows: Array, qmax: int) -> Array:
    """float64 [N]: scales with the least squared rounding error of each row of [N, K].

    Of those that clip up to 70 % of the range (the search of Banner et al., Post Training 4-bit
    Quantization of Convolutional Networks, 2019, by trial); the largest of equally good ones.
    """
    w = rows.astype(np.float64)
    full = largest(rows, qmax)
    best, least = full, np.full(len(w), np.inf)
    for ratio in RATIOS:
        scale = full * ratio
        unit = np.where(scale > 0, scale, 1.0)[:, None]
        error = np.square(np.clip(np.rint(w / unit), -qmax, qmax) * unit - w).sum(axis=1)
        best, least = np.where(error < least, scale, best), np.minimum(error, least)
    return best
