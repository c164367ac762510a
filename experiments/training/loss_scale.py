"""Loss scaling: what the loss is multiplied by, so that small gradients are numbers of the format
(Micikevicius et al. 2018)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from compiler.errors import ConfigError

SMALLEST, LARGEST = 2.0**-60, 2.0**60


@dataclass(frozen=True)
class LossScale:
    """A power of two, and how it changes.

    Attributes:
        value: what the loss of the first step is multiplied by; gradients are divided by it.
        dynamic: it halves when a gradient is not finite, and that step changes no weight; and
            doubles after `interval` steps in a row that are.
        interval: that many.
    """

    value: float = 1.0
    dynamic: bool = False
    interval: int = 200

    def __post_init__(self) -> None:
        if not SMALLEST <= self.value <= LARGEST or math.frexp(self.value)[0] != 0.5:
            raise ConfigError(f"a loss scale is a power of two, not {self.value!r}")
        if self.interval < 1:
            raise ConfigError(f"interval must be at least 1, not {self.interval}")

    def __str__(self) -> str:
        """As a column has it."""
        return f"dynamic from {self.value:g}" if self.dynamic else f"{self.value:g}"

    @property
    def used(self) -> bool:
        """Whether there is anything to multiply by."""
        return self.dynamic or self.value != 1


@dataclass(frozen=True)
class ScaleState:
    """The scale of the next step, how many finite steps led to it, and how many were skipped."""

    value: float
    finite: int = 0
    skipped: int = 0

    def after(self, rule: LossScale, finite: bool) -> ScaleState:
        """The state after a step whose gradients were finite, or not."""
        if not rule.dynamic:
            return self
        if not finite:
            return ScaleState(max(self.value / 2, SMALLEST), 0, self.skipped + 1)
        if self.finite + 1 == rule.interval:
            return replace(self, value=min(self.value * 2, LARGEST), finite=0)
        return replace(self, finite=self.finite + 1)
