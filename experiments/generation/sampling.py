"""Choosing the next id from scores: the greatest, or by chance."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.errors import ConfigError, InputError


def check_number(name: str, value: Any, whole: bool = True) -> None:
    """Check what must be an integer, or a real number.

    Raises:
        ConfigError: it is none.
    """
    if isinstance(value, bool) or not isinstance(value, Integral if whole else Real):
        wanted = "an integer" if whole else "a number"
        raise ConfigError(f"{name} must be {wanted}, not {value!r}")


@dataclass(frozen=True)
class Sampling:
    """How ids are chosen: `temperature` 0 takes the greatest score (of equal ones the smallest id),
    others divide the scores by it; `top_k` leaves the k greatest; `seed` begins the chances.

    Raises:
        ConfigError: a field is out of range.
    """

    temperature: float = 0.0
    top_k: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        check_number("seed", self.seed)
        if self.top_k is not None:
            check_number("top_k", self.top_k)
        check_number("temperature", self.temperature, whole=False)
        if not 0 <= self.temperature < float("inf"):
            raise ConfigError(f"temperature must be 0 or more, not {self.temperature}")
        if self.top_k is not None and self.top_k < 1:
            raise ConfigError(f"top_k must be at least 1, not {self.top_k}")
        if self.seed < 0:
            raise ConfigError(f"seed must not be negative, not {self.seed}")

    def chances(self) -> np.random.Generator:
        """The chances of one generation, in order."""
        return np.random.default_rng(self.seed)

    def choose(self, scores: NDArray[Any], chances: np.random.Generator) -> int:
        """The next id for scores [vocabulary]; computed in float64, so that it follows from the
        scores alone.

        Raises:
            InputError: there is no greatest score: there are none, one is NaN, or all are
                -infinity.
        """
        scores = np.asarray(scores, np.float64)
        if np.isnan(scores).any():
            raise InputError("the scores of the next id hold NaN: the format cannot hold them")
        if not (scores > -np.inf).any():
            raise InputError("no id has a score above -infinity: there is none to go on with")
        if self.temperature == 0:
            return int(scores.argmax())
        order = np.argsort(-scores, kind="stable")[: self.top_k]
        best = scores[order]
        if np.isposinf(best[0]):  # nothing else has a chance
            return int(order[0])
        with np.errstate(over="ignore"):  # next to no temperature: only the best is left
            weights = np.exp((best - best[0]) / self.temperature)
        limits = np.cumsum(weights)
        at = np.searchsorted(limits, chances.random() * limits[-1], side="right")
        return int(order[min(int(at), len(order) - 1)])
