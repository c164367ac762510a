"""Learning rates, by the step."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from compiler.errors import ConfigError, unknown


@dataclass(frozen=True)
class Schedule:
    """The learning rate of every step.

    Attributes:
        name: one of `NAMES`: "constant"; "step" (times `factor` after each of `milestones`, shares
            of the training); "cosine" (from `rate` to `rate * final`, along half a cosine).
        rate: the largest one.
        warmup: steps in which it grows to `rate`, evenly, before what `name` says begins.
    """

    name: str = "constant"
    rate: float = 0.05
    warmup: int = 0
    factor: float = 0.1
    milestones: tuple[float, ...] = (0.5, 0.75)
    final: float = 0.0

    def __post_init__(self) -> None:
        if self.name not in NAMES:
            raise ConfigError(unknown("schedule", self.name, NAMES))
        if not 0 < self.rate < math.inf:
            raise ConfigError(f"rate must be a number above 0, not {self.rate!r}")
        if not all(0 < m < 1 for m in self.milestones):
            raise ConfigError(f"milestones are shares of the training, not {self.milestones}")

    def at(self, step: int, steps: int) -> float:
        """The rate of step number `step` of `steps`, counted from 0."""
        if step < self.warmup:
            return self.rate * (step + 1) / self.warmup
        after = steps - self.warmup
        return self.rate * _SHARES[self.name](self, (step - self.warmup) / max(after, 1))


def _constant(s: Schedule, done: float) -> float:
    return 1.0


def _step(s: Schedule, done: float) -> float:
    return s.factor ** sum(done >= m for m in s.milestones)


def _cosine(s: Schedule, done: float) -> float:
    return s.final + (1 - s.final) * (1 + math.cos(math.pi * done)) / 2


_SHARES: Mapping[str, Callable[[Schedule, float], float]] = {
    "constant": _constant,
    "step": _step,
    "cosine": _cosine,
}
NAMES = tuple(_SHARES)
