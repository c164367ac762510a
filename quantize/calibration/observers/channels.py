"""An observer for each channel of a value, or for each group of channels."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from compiler.errors import InputError
from compiler.types.dtypes import Array
from quantize.calibration.observers.extremes import Observer


class PerChannel:
    """One observer for every `size` neighbours on an axis.

    Its memory is that of so many observers, whatever the number of batches.

    Args:
        make: gives a fresh observer.
        axis: the axis of the channels.
        size: channels that share an observer; it divides their number.
    """

    any_order = False

    def __init__(self, make: Callable[[], Observer], axis: int, size: int = 1) -> None:
        self.make, self.axis, self.size = make, axis, size
        self.parts: list[Observer] = []

    def update(self, values: Array) -> None:
        """See Observer.

        Raises:
            InputError: another number of channels than before, or one that `size` does not divide.
        """
        channels = values.shape[self.axis]
        count, rest = divmod(channels, self.size)
        if rest or (self.parts and count != len(self.parts)):
            had = f"; there were {len(self.parts) * self.size} before" if self.parts else ""
            raise InputError(
                f"{channels} channels cannot be observed in groups of {self.size}{had}"
            )
        self.parts = self.parts or [self.make() for _ in range(count)]
        for part, slab in zip(self.parts, np.split(values, count, self.axis), strict=True):
            part.update(slab)

    def merge(self, other: PerChannel) -> None:
        """See Observer.

        Raises:
            InputError: the other has seen another number of channels.
        """
        if not other.parts:
            return
        self.parts = self.parts or [self.make() for _ in other.parts]
        if len(self.parts) != len(other.parts):
            raise InputError(
                f"observers of {len(self.parts)} and of {len(other.parts)} channels cannot be "
                "merged"
            )
        for mine, theirs in zip(self.parts, other.parts, strict=True):
            mine.merge(theirs)

    def ranges(self) -> Array:
        """The real range of every channel or group: [groups, 2] float64, low and high."""
        return np.array([part.range() for part in self.parts], np.float64)

    def range(self) -> tuple[float, float]:
        """See Observer: the range that holds those of all channels."""
        ranges = self.ranges()
        return float(ranges[:, 0].min()), float(ranges[:, 1].max())
