"""Observers that choose a range from a histogram: percentile, squared error, relative entropy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from quantize.calibration.observers.entropy import least_entropy
from quantize.calibration.observers.histogram import BINS, Histogram
from quantize.plan.params import power_of_two


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


@dataclass(frozen=True)
class Levels:
    """How many integers stand for a range, and whether as many are on either side of 0."""

    count: int
    symmetric: bool = False

    def step(self, low: float, high: float) -> float:
        """The scale that lets the integers cover [low, high]."""
        if self.symmetric:
            return max(-low, high) / ((self.count - 1) // 2)
        return (high - low) / (self.count - 1)

    def grid(self, low: float, step: float) -> tuple[float, float]:
        """The ends of integers of a scale, 0 among them, that start at the one nearest to `low`."""
        if self.symmetric:
            half = (self.count - 1) // 2
            return -half * step, half * step
        below = int(np.clip(np.rint(-low / step), 0, self.count - 1))
        return -below * step, (self.count - 1 - below) * step


class SquaredError(Histogram):
    """The range with the least expected squared error: scale^2 / 12 inside, the distance outside.

    The candidates shrink the observed range in steps of one percent.
    """

    def __init__(self, levels: Levels):
        super().__init__()
        self.levels = levels

    def range(self) -> tuple[float, float]:
        """See Observer."""
        low, high = min(self.low, 0.0), max(self.high, 0.0)
        candidates = [(low * k / 100, high * k / 100) for k in range(100, 4, -1)]
        return candidates[self._best([self._clipping(*c) for c in candidates])]

    def _clipping(self, low: float, high: float) -> tuple[float, float, float]:
        """The step of a range, and the values that it keeps."""
        step = self.levels.step(low, high)
        if self.levels.symmetric:
            low, high = -max(-low, high), max(-low, high)
        return step, low, high

    def _best(self, candidates: Sequence[tuple[float, float, float]]) -> int:
        """Index of the step and kept range with the least error."""
        used = np.flatnonzero(self.counts)
        centres, counts = self.centres[used], self.counts[used].astype(np.float64)
        inexact = counts.sum() - self.zeros

        def error(k: int) -> float:
            step, low, high = candidates[k]
            outside = centres - np.clip(centres, low, high)
            return float(step**2 / 12 * inexact + (counts * outside**2).sum())

        return min(range(len(candidates)), key=error)


class PowerOfTwo(SquaredError):
    """The range of the scale with the least expected squared error among powers of two.

    The candidates are the least scale that covers all values, and its halves down to a 64th.
    """

    def range(self) -> tuple[float, float]:
        """See Observer: the range of the integers themselves."""
        low, high = min(self.low, 0.0), max(self.high, 0.0)
        if low == high:
            return low, high
        whole = self.levels.step(low, high)
        largest = power_of_two(whole)
        candidates = []
        for k in range(7):
            step = largest / 2**k
            candidates.append((step, *self.levels.grid(low * min(1.0, step / whole), step)))
        return candidates[self._best(candidates)][1:]


class KullbackLeibler(Histogram):
    """The threshold on |x| that keeps the distribution of values most alike after quantization.

    Szymon Migacz, 8-bit Inference with TensorRT (2017): for each threshold, the histogram up to it
    with the rest added to its last bin is compared with its quantized version by relative entropy.
    Exact zeros are left out, as every scheme represents them. Thresholds that clip more than 0.03 %
    of the rest (`clipped`) are not tried: where one bin holds much of the data (a picture's
    background), the method as published would clip all that lies above it.
    """

    clipped = 0.0003

    def __init__(self, bins: int, levels: Levels):
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
        kept = least_entropy(np.diff(below), self._steps(), least)
        threshold = float(wanted[kept])
        return max(self.low, -threshold), min(self.high, threshold)

    def _steps(self) -> int:
        # Values of both signs share the levels.
        shared = self.levels.symmetric or self.low < 0 < self.high
        return self.levels.count // 2 if shared else self.levels.count
