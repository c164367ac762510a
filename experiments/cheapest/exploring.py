"""Which assignments are measured: integer programs', and what they must not be worse than."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from compiler.errors import ConfigError
from quantize.search.energies import decibels

from . import assignment, greedy
from .assignment import Array, Chosen
from .bound import Bound

MOST_MEASURED = 50
"""Assignments that are measured at most, besides every layer alone in every candidate."""
BISECTIONS = 12
FRONT = 24
"""Budgets of noise that the front is looked for at, the best candidates' to the worst's."""
Tell = Callable[[str, int, int], None]
"""What is being done, how much of it is done, and how much there is."""


@dataclass(frozen=True)
class Point:
    """An assignment that was measured: the candidate of every layer, its cost, the noise that the
    layers add by themselves over the energy of the results, and its figures on calibration data."""

    chosen: Chosen
    cost: float
    noise: float
    figures: Mapping[str, float]

    @property
    def predicted_db(self) -> float:
        """The SQNR that it would have if errors of layers just added up."""
        return decibels(1.0, self.noise)


class Explorer:
    """Assignments of a network whose layers have been measured alone.

    Of every point of the front, what greedy takes for its cost is measured too, and all uniform
    assignments are, so that no point is worse than either, whatever layers do to each other.

    Args:
        costs, noises: [layers, candidates], as `assignment.cheapest` takes them.
        measured: an assignment -> its figures, `sqnr` (dB) among them.
    """

    def __init__(
        self,
        costs: Array,
        noises: Array,
        measured: Callable[[Chosen], Mapping[str, float]],
        tell: Tell = lambda *_: None,
    ):
        self.costs, self.noises, self._measured, self._tell = costs, noises, measured, tell
        self.points: dict[Chosen, Point] = {}

    def within(self, bounds: Sequence[Bound]) -> Point:
        """The cheapest assignment found to keep the bounds: by bisection of the budget of noise, in
        decibels; what uniform formats and greedy measure counts too.

        Raises:
            ConfigError: none does.
        """
        layers, candidates = self.noises.shape
        for k in range(candidates):
            if np.isfinite(self.noises[:, k]).all():
                self._measure((k,) * layers)
        self._measure(tuple(int(k) for k in self.noises.argmin(axis=1)))
        low, high = self._ends()
        for _ in range(BISECTIONS):
            if not self._room:
                break
            middle = (low + high) / 2
            chosen = assignment.cheapest(self.costs, self.noises, 10 ** (-middle / 10))
            good = chosen is not None and _good(self._measure(chosen), bounds)
            low, high = (low, middle) if good else (middle, high)
        self._close()
        while self._room:
            cheaper = self._greedy(self.best(bounds).cost, below=True)
            if cheaper is None or not _good(self._measure(cheaper), bounds):
                break
        self._close()
        return self.best(bounds)

    def fill_front(self) -> None:
        """Measure the cheapest assignments for budgets of noise from the least to the most, the
        whole range first in coarse steps."""
        low, high = self._ends()
        for step in dict.fromkeys(k for n in (24, 12, 6, 3, 1) for k in range(0, FRONT + 1, n)):
            if not self._room:
                return
            db = low + (high - low) * step / FRONT
            chosen = assignment.cheapest(self.costs, self.noises, 10 ** (-db / 10))
            if chosen is not None:
                self._measure(chosen)
                self._close()

    def best(self, bounds: Sequence[Bound]) -> Point:
        """The cheapest that was measured and keeps the bounds.

        Raises:
            ConfigError: none does; says what comes nearest.
        """
        good = [p for p in self.points.values() if _good(p, bounds)]
        if good:
            return min(good, key=lambda p: (p.cost, -p.figures["sqnr"]))
        every = list(self.points.values())
        reached = ", ".join(f"{b.figure} {b.best(p.figures for p in every):.4g}" for b in bounds)
        alone = "" if len(bounds) == 1 else ", for each bound by itself,"
        raise ConfigError(
            f"nothing keeps {', '.join(map(str, bounds))}; the nearest that was measured{alone} "
            f"has {reached}: add a wider format, or float32, to the formats, or ask for less"
        )

    def front(self) -> list[Point]:
        """What was measured and no other beats in cost and SQNR, the cheapest first; results that
        are NaN beat nothing."""
        known = [p for p in self.points.values() if not math.isnan(p.figures["sqnr"])]
        kept: list[Point] = []
        for p in sorted(known, key=lambda p: (p.cost, -p.figures["sqnr"])):
            if not kept or p.figures["sqnr"] > kept[-1].figures["sqnr"]:
                kept.append(p)
        return kept

    def greedy_for(self, point: Point) -> Point | None:
        """What greedy takes for the cost of a point of the front; None if it has nothing so cheap,
        or nothing more could be measured."""
        chosen = self._greedy(point.cost)
        return None if chosen is None else self.points.get(chosen)

    def uniform(self, candidate: int) -> Point | None:
        """All layers in one candidate; None if one cannot be in it."""
        return self.points.get((candidate,) * len(self.noises))

    def additivity(self) -> tuple[float, float]:
        """Predicted SQNR less the measured one, in dB, of all that was measured: its mean and its
        largest magnitude."""
        gaps = [p.predicted_db - p.figures["sqnr"] for p in self.points.values()]
        known = [g for g in gaps if math.isfinite(g)] or [0.0]
        return float(np.mean(known)), float(np.max(np.abs(known)))

    def _measure(self, chosen: Chosen) -> Point:
        if chosen not in self.points:
            self.points[chosen] = Point(
                chosen,
                assignment.of(self.costs, chosen),
                assignment.of(self.noises, chosen),
                self._measured(chosen),
            )
            self._tell("assignments", len(self.points), MOST_MEASURED)
        return self.points[chosen]

    @property
    def _room(self) -> bool:
        """Whether another assignment can be measured, and what greedy has beside it."""
        return len(self.points) + len(self._missing()) + 2 <= MOST_MEASURED

    def _close(self) -> None:
        """Measure what greedy takes for the cost of every point of the front."""
        while (missing := self._missing()) and len(self.points) < MOST_MEASURED:
            self._measure(missing[0])

    def _missing(self) -> list[Chosen]:
        taken = [self._greedy(p.cost) for p in self.front()]
        return [g for g in dict.fromkeys(taken) if g is not None and g not in self.points]

    def _greedy(self, cost: float, below: bool = False) -> Chosen | None:
        """The last of greedy's assignments that costs no more, or less; None if all do."""
        most = cost * (1 - 1e-12) if below else cost
        affordable = [c for c, spent in self._path if (spent < most if below else spent <= most)]
        return affordable[-1] if affordable else None

    @cached_property
    def _path(self) -> list[tuple[Chosen, float]]:
        steps = greedy.path(self.costs, self.noises)
        return [(chosen, assignment.of(self.costs, chosen)) for chosen in steps]

    def _ends(self) -> tuple[float, float]:
        """The predicted SQNR of the worst and of the best assignment, in decibels, a little wider;
        with float32 among the candidates the best has 40 dB more than the others allow."""
        adds = np.isfinite(self.noises) & (self.noises > 0)
        if not adds.any():
            return 0.0, 0.0
        worst = float(np.where(adds, self.noises, 0.0).max(axis=1).sum())
        least = np.where(adds, self.noises, np.inf).min(axis=1)
        best = float(least[np.isfinite(least)].sum())
        room = 40.0 if (self.noises == 0).any() else 0.0
        return -10 * math.log10(worst) - 0.01, -10 * math.log10(best) + 0.01 + room


def _good(p: Point, bounds: Sequence[Bound]) -> bool:
    return all(b.holds(p.figures) for b in bounds)
