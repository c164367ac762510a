"""Observers: what calibration remembers of a value. Streaming, mergeable, of constant size.

A histogram spans [-limit, limit) with a power of two as limit. A value outside doubles it, merging
bins in pairs, so that no data has to be kept and two histograms of any data can be merged exactly.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from compiler.dtypes import Array
from quantize.config import QConfig
from quantize.params import ValueParams

BINS = 8192
"""Histogram bins on either side of 0."""


class Observer(Protocol):
    """Watches the values of one tensor."""

    def update(self, values: Array) -> None:
        """Take in an array of finite values."""
        ...

    def merge(self, other: Any) -> None:
        """Take in all that another observer of the same kind has seen."""
        ...

    def range(self) -> tuple[float, float]:
        """The real range (low, high) to be represented."""
        ...


class MinMax:
    """The smallest and the largest value."""

    def __init__(self) -> None:
        self.low, self.high = np.inf, -np.inf

    def update(self, values: Array) -> None:
        """See Observer."""
        self.low = min(self.low, float(values.min()))
        self.high = max(self.high, float(values.max()))

    def merge(self, other: MinMax) -> None:
        """See Observer."""
        self.low, self.high = min(self.low, other.low), max(self.high, other.high)

    def range(self) -> tuple[float, float]:
        """See Observer."""
        return self.low, self.high


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
        bins: Array = np.zeros(values.size, np.int64)
        if self.limit:
            scaled = np.floor(values.reshape(-1).astype(np.float64) * (BINS / self.limit))
            bins = np.clip(scaled.astype(np.int64), -BINS, BINS - 1)
        self.counts += np.bincount(bins + BINS, minlength=2 * BINS)

    def merge(self, other: Histogram) -> None:  # type: ignore[override]
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


class Percentile(Histogram):
    """The range that leaves out (100 - percentile) percent of the values, half on each side."""

    def __init__(self, percentile: float):
        super().__init__()
        self.percentile = percentile

    def range(self) -> tuple[float, float]:
        """See Observer."""
        below = np.concatenate([[0], np.cumsum(self.counts)])
        outside = below[-1] * (100.0 - self.percentile) / 200.0
        low, high = np.interp([outside, below[-1] - outside], below, self.edges)
        return max(float(low), self.low), min(float(high), self.high)


class SquaredError(Histogram):
    """The range with the least expected squared error: scale^2 / 12 inside, the distance outside.

    The candidates shrink the observed range in steps of one percent.
    """

    def __init__(self, levels: int):
        super().__init__()
        self.levels = levels

    def range(self) -> tuple[float, float]:
        """See Observer."""
        used = np.flatnonzero(self.counts)
        centres, counts = self.centres[used], self.counts[used].astype(np.float64)
        inexact = counts.sum() - self.zeros
        low, high = min(self.low, 0.0), max(self.high, 0.0)

        def error(share: float) -> float:
            a, b = low * share, high * share
            outside = centres - np.clip(centres, a, b)
            noise = ((b - a) / (self.levels - 1)) ** 2 / 12
            return float(noise * inexact + (counts * outside**2).sum())

        best = min((k / 100 for k in range(100, 4, -1)), key=error)
        return low * best, high * best


class KullbackLeibler(Histogram):
    """The threshold on |x| that keeps the distribution of values most alike after quantization.

    Szymon Migacz, 8-bit Inference with TensorRT (2017): for each threshold, the histogram up to it
    with the rest added to its last bin is compared with its quantized version by relative entropy.
    Exact zeros are left out, as every scheme represents them. Thresholds that clip more than a
    thousandth are not tried: where one bin holds much of the data (a picture's background), the
    method as published would clip all that lies above it.
    """

    clipped = 0.0003

    def __init__(self, bins: int, levels: int):
        super().__init__()
        self.bins, self.levels = bins, levels

    def range(self) -> tuple[float, float]:
        """See Observer."""
        reach = max(abs(self.low), abs(self.high))
        if reach == 0:
            return self.low, self.high
        magnitudes = self.counts[BINS:].astype(np.float64) + self.counts[BINS - 1 :: -1]
        magnitudes[0] -= self.zeros
        edges = np.linspace(0, self.limit, BINS + 1)
        wanted = np.linspace(0, reach, self.bins + 1)
        below = np.interp(wanted, edges, np.concatenate([[0], np.cumsum(magnitudes)]))
        least = int(np.searchsorted(below, below[-1] * (1 - self.clipped)))
        kept = _least_entropy(np.diff(below), self._steps(), least)
        threshold = float(wanted[kept])
        return max(self.low, -threshold), min(self.high, threshold)

    def _steps(self) -> int:
        # Values of both signs share the levels.
        return self.levels // 2 if self.low < 0 < self.high else self.levels


def _least_entropy(counts: Array, levels: int, fewest: int) -> int:
    """How many bins to keep, at least `fewest`, so that quantizing them to `levels` loses least."""
    best, least = len(counts), np.inf
    for kept in range(max(levels, fewest), len(counts) + 1, max(1, len(counts) // 256)):
        p = counts[:kept].copy()
        starts = np.arange(levels) * kept // levels
        width = np.diff([*starts, kept])
        present = p > 0
        total = np.add.reduceat(p, starts)
        live = np.maximum(np.add.reduceat(present.astype(np.int64), starts), 1)
        q = np.where(present, np.repeat(total / live, width), 0.0)
        p[-1] += counts[kept:].sum()
        both = (p > 0) & (q > 0)
        if not both.any():
            continue
        p, q = p / p.sum(), q / q.sum()
        # An outlier bin that quantization left empty counts as if it held one part in 10^9.
        lost = float((p[(p > 0) & ~both] * np.log(p[(p > 0) & ~both] * 1e9)).sum())
        entropy = float((p[both] * np.log(p[both] / q[both])).sum()) + lost
        if entropy < least:
            best, least = kept, entropy
    return best


def observer(config: QConfig) -> Observer:
    """A fresh observer of the kind that `config.calibrate` names."""
    whole = ValueParams(1.0, 0, config.activation_dtype, config.activation_bits)
    levels = whole.qmax - whole.qmin + 1
    made: dict[str, Any] = {
        "minmax": MinMax,
        "percentile": lambda: Percentile(config.percentile),
        "kl": lambda: KullbackLeibler(config.kl_bins, levels),
        "mse": lambda: SquaredError(levels),
    }
    result: Observer = made[config.calibrate]()
    return result
