"""Which candidates of a kernel come next: evolution by predicted time, and some at random."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from compiler.errors import ScheduleError
from compiler.scheduling.choices import Choice
from compiler.tuning.cost_model import CostModel, hopeless
from compiler.tuning.tasks import Task
from compiler.types.dtypes import Array

EPSILON = 0.2
"""Share of a batch that is drawn at random, so that the model learns of what it does not know."""
POOL = 3
"""Candidates that are looked at for each that is measured."""
PARENTS = 8
"""Measured candidates that others come from."""
ATTEMPTS = 6
"""Draws for each candidate that is wanted, before the space counts as used up."""


@dataclass(frozen=True)
class Candidate:
    """A choice that fits, and is not known to be hopeless: with a digest of its loops and their
    features."""

    choice: Choice
    program: str
    features: Array


@dataclass
class Search:
    """The search of one task.

    Attributes:
        task: the task.
        rng: what all its draws come from.
        first: choices to try before others, whatever the model says of them.
        near: those near to the rules': half of the first batch, later ranked with others.
        ratios: (ratio, choice) of what was measured, the best first.
        programs: digests of what was proposed or measured.
        exhausted: whether nothing new was found the last time.
        discarded: candidates that the analysis found hopeless.
    """

    task: Task
    rng: random.Random
    first: list[Choice] = field(default_factory=list)
    near: list[Choice] = field(default_factory=list)
    ratios: list[tuple[float, Choice]] = field(default_factory=list)
    programs: set[str] = field(default_factory=set)
    exhausted: bool = False
    discarded: int = 0
    _refused: set[str] = field(default_factory=set)

    def known(self, choice: Choice, program: str) -> None:
        """Do not propose a choice, or others with the same loops: a log has them."""
        self._refused.add(str(choice))
        self.programs.add(program)

    def measured(self, choice: Choice, ratio: float) -> None:
        """Take note of a result."""
        self.ratios.append((ratio, choice))
        self.ratios.sort(key=lambda r: r[0])

    def propose(self, n: int, model: CostModel, others: Iterable[Choice] = ()) -> list[Candidate]:
        """The next candidates, at most `n`, those that promise most first.

        Args:
            n: how many.
            model: what ranks them.
            others: the best choices of tasks of the same structure.
        """
        out = self._from(self.first, n if n == 1 else n - n // 4)
        if not self.ratios:
            out += self._from(self.near, (n - len(out)) // 2)
        left = n - len(out)
        if not left:
            return out
        pool = self._from(self.near, left)
        drawn = self._collect((self._draw() for _ in range(left * ATTEMPTS)), left)
        wanted = POOL * left - len(drawn) - len(pool)
        pool += self._collect((self._breed(others) for _ in range(wanted * 2)), wanted)
        chance = min(len(drawn), round(EPSILON * left) if self.ratios else left // 2)
        taken = drawn[:chance]
        pool += drawn[chance:]
        scores = model.predict([c.features for c in pool], self.task.default[1])
        ranked = [pool[int(k)] for k in np.argsort(scores, kind="stable")]
        chosen = ranked[: left - len(taken)]
        self.programs.difference_update(c.program for c in ranked[len(chosen) :])
        out += chosen + taken
        self.exhausted = not out
        return out

    def _from(self, given: list[Choice], n: int) -> list[Candidate]:
        """The first of a list that are new and fit, which leave it."""
        found: list[Candidate] = []
        while given and len(found) < n:
            found += self._collect([given.pop(0)], 1)
        return found

    def _collect(self, choices: Iterable[Choice], n: int) -> list[Candidate]:
        """The first `n` new ones that fit."""
        found: list[Candidate] = []
        if n <= 0:
            return found
        for choice in choices:
            candidate = self._candidate(choice)
            if candidate is not None:
                found.append(candidate)
                if len(found) == n:
                    break
        return found

    def _candidate(self, choice: Choice) -> Candidate | None:
        if str(choice) in self._refused:
            return None
        try:
            program, features = self.task.seen(choice)
        except ScheduleError:
            self._refused.add(str(choice))
            return None
        known = program in self.programs or program == self.task.default[0]
        if known or hopeless(features, self.task.default[1]):
            self.discarded += not known
            self._refused.add(str(choice))
            return None
        self.programs.add(program)
        return Candidate(choice, program, features)

    def _draw(self) -> Choice:
        return self.task.space.sample(self.rng)

    def _breed(self, others: Iterable[Choice]) -> Choice:
        """A choice that comes from good ones."""
        space, rng = self.task.space, self.rng
        parents = [c for _, c in self.ratios[:PARENTS]] + list(others)
        if not parents:
            return space.mutate(space.sample(rng), rng)
        one = rng.choice(parents)
        if len(parents) > 1 and rng.random() < 0.4:
            one = space.cross(one, rng.choice(parents), rng)
            return one if rng.random() < 0.5 else space.mutate(one, rng)
        for _ in range(1 if rng.random() < 0.7 else 2):
            one = space.mutate(one, rng)
        return one
