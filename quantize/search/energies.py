"""Signal and noise, and the ratio of the two."""

from __future__ import annotations

import math

import numpy as np

from compiler.types.dtypes import Array


def energies(found: Array, reference: Array) -> tuple[float, float]:
    """The sums of squares of what was wanted, and of how far from it what was found is; both of
    one shape, real, the sums in float64."""
    wanted = reference.astype(np.float64, copy=False)
    with np.errstate(over="ignore"):
        return float(np.square(wanted).sum()), float(np.square(found - wanted).sum())


def decibels(signal: float, noise: float) -> float:
    """The ratio of two energies in decibels: inf without noise, else -inf without a signal, or
    beside so much noise that nothing is left of it."""
    if noise == 0.0:
        return math.inf
    ratio = signal / noise
    return -math.inf if ratio == 0.0 else 10.0 * math.log10(ratio)
