"""The search of calibration by relative entropy, for all thresholds at once."""

from __future__ import annotations

import numpy as np

from compiler.types.dtypes import Array

UNSEEN = 1e-9
"""The share that an outlier bin which quantization left empty counts as if it held."""
TRIED = 256
"""About how many thresholds are tried."""


def least_entropy(counts: Array, levels: int, fewest: int) -> int:
    """How many bins to keep, at least `fewest`, so that quantizing them to `levels` loses least.

    Args:
        counts: values in each bin [n], not negative.
        levels: values after quantization; each stands for about as many bins.
    """
    first, step = max(levels, fewest), max(1, len(counts) // TRIED)
    kept = np.arange(first, len(counts) + 1, step)
    if not len(kept) or not counts.any():
        return len(counts)
    entropy = entropies(counts, levels, kept)
    return int(kept[entropy.argmin()]) if np.isfinite(entropy).any() else len(counts)


def entropies(counts: Array, levels: int, kept: Array) -> Array:
    """Relative entropy between the first `kept` bins, the rest added to the last of them, and what
    quantizing the first `kept` leaves of them; inf where they are empty.

    A level spreads its values evenly over those of its bins that hold any. Sums over bins are
    differences of sums from the first bin on, so that a threshold takes `levels` steps.

    Args:
        counts: as for `least_entropy`; not all 0.
        kept: numbers of bins [k], at least `levels` each.
    """
    bounds = kept[:, np.newaxis] * np.arange(levels + 1) // levels
    live = np.diff(_before(counts > 0)[bounds], axis=1)
    total = np.where(live > 0, np.diff(_before(counts)[bounds], axis=1), 0.0)
    each = total / np.maximum(live, 1)  # what a bin of the level gets

    whole, inside = counts.sum(), total.sum(axis=1)
    last = counts[kept - 1]
    beyond = whole - _before(counts)[kept]
    seen = last > 0
    p_log_p = _before(_x_log_x(counts))[kept]
    p_log_p += np.where(seen, _x_log_x(last + beyond) - _x_log_x(last), 0.0)
    p_log_q = (total * _log(each)).sum(axis=1) + np.where(seen, beyond * _log(each[:, -1]), 0.0)
    share = (inside + np.where(seen, beyond, 0.0)) / whole
    found = (p_log_p - p_log_q) / whole + share * (_log(inside) - _log(whole))
    outliers = np.where(seen, 0.0, beyond / whole)
    result: Array = np.where(inside > 0, found + outliers * _log(outliers / UNSEEN), np.inf)
    return result


def _before(values: Array) -> Array:
    """Sums of the values before each, and of all: [n + 1]."""
    out: Array = np.concatenate([[0], np.cumsum(values)])
    return out


def _log(x: Array) -> Array:
    """Logarithm, of 0 taken as 0: it is multiplied by 0."""
    out: Array = np.log(np.where(x > 0, x, 1.0))
    return out


def _x_log_x(x: Array) -> Array:
    out: Array = x * _log(x)
    return out
