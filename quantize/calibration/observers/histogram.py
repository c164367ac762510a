"""Histograms of values of any magnitude, of constant size.

A histogram spans [-limit, limit) with a power of two as limit. A value outside doubles it, merging
bins in pairs, so that no data has to be kept and two histograms of any data can be merged exactly.
"""

from __future__ import annotations

from typing import Self

import numpy as np

from compiler.types.dtypes import Array
from quantize.calibration.observers.extremes import MinMax

BINS = 8192
"""Histogram bins on either side of 0."""
CHUNK = 1 << 17
"""Values that are counted at a time: few enough to stay in the cache."""


class Histogram(MinMax):
    """Counts of values in 2 * BINS bins over [-limit, limit]; exact zeros are counted apart too."""

    def __init__(self) -> None:
        super().__init__()
        self.limit = 0.0
        self.zeros = 0
        self.counts: Array = np.zeros(2 * BINS, np.int64)

    def update(self, values: Array) -> None:
        """See Observer."""
        super().update(values)
        self._grow(max(abs(self.low), abs(self.high)))
        self.zeros += int(values.size - np.count_nonzero(values))
        if not self.limit:
            self.counts[BINS] += values.size
            return
        # A power of two: multiplying by it is exact, unless it makes small numbers too small.
        scale = BINS / self.limit
        exact = np.float32 if 1 <= scale < 2.0**127 else np.float64
        flat: Array = values.reshape(-1).astype(exact, copy=False)
        for k in range(0, flat.size, CHUNK):
            bins: Array = np.multiply(flat[k : k + CHUNK], scale, dtype=flat.dtype)
            np.floor(bins, out=bins)
            np.add(bins, BINS, out=bins)
            self.counts += np.bincount(bins.astype(np.intp), minlength=2 * BINS)

    def merge(self, other: Self) -> None:
        """See Observer."""
        super().merge(other)
        self._grow(max(abs(other.low), abs(other.high)) if other.limit else 0.0)
        self.zeros += other.zeros
        counts, limit = other.counts, other.limit
        while limit and limit < self.limit:
            counts, limit = _doubled(counts), limit * 2
        self.counts = self.counts + counts

    def _grow(self, reach: float) -> None:
        if reach > 0 and self.limit == 0:
            self.limit = 2.0 ** np.ceil(np.log2(reach))
        # Beyond it, not at it: the value at the end of the last bin would belong to the next one.
        while 0 < self.limit <= reach:
            self.counts, self.limit = _doubled(self.counts), self.limit * 2

    @property
    def edges(self) -> Array:
        """The 2 * BINS + 1 bounds of the bins."""
        return np.linspace(-self.limit, self.limit, 2 * BINS + 1)

    @property
    def centres(self) -> Array:
        """The middles of the bins."""
        return (self.edges[1:] + self.edges[:-1]) / 2


def _doubled(counts: Array) -> Array:
    """Counts over twice the range."""
    out: Array = np.zeros_like(counts)
    out[BINS // 2 : BINS // 2 + BINS] = counts.reshape(BINS, 2).sum(axis=1)
    return out
