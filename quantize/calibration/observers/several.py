"""Several observers of one value."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from compiler.types.dtypes import Array
from quantize.calibration.observers.extremes import Observer


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
