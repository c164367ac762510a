"""Observers of a few moments of a value: its ends, their moving average, mean and deviation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, Self

import numpy as np

from compiler.types.dtypes import Array


class Observer(Protocol):
    """Watches the values of one tensor.

    Attributes:
        any_order: whether only the values count, not their shape and order.
    """

    @property
    def any_order(self) -> bool:
        """See above."""
        ...

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

    any_order = True

    def __init__(self) -> None:
        self.low, self.high = np.inf, -np.inf

    def update(self, values: Array) -> None:
        """See Observer."""
        self.extend(float(values.min()), float(values.max()))

    def extend(self, low: float, high: float) -> None:
        """Take in values whose smallest and largest are known."""
        self.low, self.high = min(self.low, low), max(self.high, high)

    def merge(self, other: Self) -> None:
        """See Observer."""
        self.extend(other.low, other.high)

    def range(self) -> tuple[float, float]:
        """See Observer."""
        return self.low, self.high


class MovingAverage:
    """The average of the batches' smallest and largest values, the later the heavier.

    Of n batches, batch i counts momentum^(n - i), and the weights are brought to a sum of 1, so
    that the first batch counts no more than its share (Kingma and Ba, Adam, 2015, section 3). The
    order of batches matters: `merge` takes the other's to come after this one's.
    """

    any_order = True

    def __init__(self, momentum: float) -> None:
        self.momentum = momentum
        self.ends: Array = np.zeros(2)
        self.weight = 0.0
        self.decay = 1.0

    def update(self, values: Array) -> None:
        """See Observer."""
        self._append(np.array([values.min(), values.max()], np.float64), 1.0, self.momentum)

    def merge(self, other: MovingAverage) -> None:
        """See Observer."""
        self._append(other.ends, other.weight, other.decay)

    def _append(self, ends: Array, weight: float, decay: float) -> None:
        """Take batches with weighted sums `ends`; `decay` is that of their number."""
        self.ends = self.ends * decay + ends
        self.weight = self.weight * decay + weight
        self.decay *= decay

    def range(self) -> tuple[float, float]:
        """See Observer."""
        low, high = self.ends / self.weight
        return float(low), float(high)


class MeanSigma(MinMax):
    """The mean and `sigmas` standard deviations on either side, as far as there are values.

    Sums of squares are merged around their means (Chan, Golub and LeVeque, Updating Formulae and a
    Pairwise Algorithm for Computing Sample Variances, 1979).
    """

    any_order = False  # sums are rounded

    def __init__(self, sigmas: float) -> None:
        super().__init__()
        self.sigmas = sigmas
        self.count, self.mean, self.squares = 0, 0.0, 0.0

    def update(self, values: Array) -> None:
        """See Observer."""
        super().update(values)
        wide = values.astype(np.float64)
        mean = float(wide.mean())
        self._take(values.size, mean, float(np.square(wide - mean).sum()))

    def merge(self, other: Self) -> None:
        """See Observer."""
        super().merge(other)
        self._take(other.count, other.mean, other.squares)

    def _take(self, count: int, mean: float, squares: float) -> None:
        if not count:
            return
        both, apart = self.count + count, mean - self.mean
        self.squares += squares + apart * apart * (self.count / both) * count
        self.mean += apart * (count / both)
        self.count = both

    def range(self) -> tuple[float, float]:
        """See Observer."""
        reach = self.sigmas * float(np.sqrt(self.squares / self.count))
        return max(self.low, self.mean - reach), min(self.high, self.mean + reach)


class Several:
    """Observers of one value, for nodes that want different things of it."""

    def __init__(self, parts: Sequence[Observer]):
        self.parts = parts
        self.any_order = all(part.any_order for part in parts)

    def update(self, values: Array) -> None:
        """See Observer."""
        for part in self.parts:
            part.update(values)

    def merge(self, other: Self) -> None:
        """See Observer."""
        for mine, theirs in zip(self.parts, other.parts, strict=True):
            mine.merge(theirs)

    def range(self) -> tuple[float, float]:
        """See Observer: what the first of them says."""
        return self.parts[0].range()
