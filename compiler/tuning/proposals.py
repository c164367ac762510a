"""Which candidates of a kernel come next: evolution by predicted time, and some at random."""

from __future__ import annotations

import random
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

import numpy as np

from compiler.scheduling.choices import Choice
from compiler.tuning.cost_model import CostModel, hopeless
from compiler.tuning.tasks import Look, Task
from compiler.types.dtypes import Array

EPSILON = 0.2
"""Share of a batch that is drawn at random, so that the model learns of what it does not know."""
POOL = 3
"""Candidates that are looked at for each that is measured."""
PARENTS = 8
"""Measured candidates that others come from."""
ATTEMPTS = 6
"""Draws for each candidate that is wanted, before the space counts as used up."""
ENOUGH = 0.75
"""Share of the candidates to rank without which others are drawn in place of those that do not
fit."""


@dataclass(frozen=True)
class Candidate:
    """A choice that fits, and is not known to be hopeless: with a digest of its loops and their
    features."""

    choice: Choice
    program: str
    features: Array


Proposing = Generator[list[Choice], Sequence[Look] | None, list[Candidate]]
"""See `Search.proposing`."""


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
        steps = self.proposing(n, model, others)
        try:
            asked = next(steps)
            while True:
                asked = steps.send([self.task.look(c) for c in asked])
        except StopIteration as end:
            found: list[Candidate] = end.value
            return found

    def proposing(self, n: int, model: CostModel, others: Iterable[Choice] = ()) -> Proposing:
        """The same, with the looks from elsewhere: this generates choices that are to be looked at,
        and is sent what was seen of each."""
        (out,) = yield from self._collect((_taken(self.first), n if n == 1 else n - n // 4))
        if not self.ratios:
            (near,) = yield from self._collect((_taken(self.near), (n - len(out)) // 2))
            out += near
        left = n - len(out)
        if not left:
            return out
        draws = (self._draw() for _ in range(left * ATTEMPTS))
        wanted = (POOL - 1) * left - min(left, len(self.near))
        bred = (self._breed(others) for _ in range(wanted * 2))
        pool, drawn, more = yield from self._collect(
            (_taken(self.near), left), (draws, left), (bred, wanted), enough=ENOUGH
        )
        pool += more
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

    def _collect(
        self, *groups: tuple[Iterator[Choice], int], enough: float = 1.0
    ) -> Generator[list[Choice], Sequence[Look] | None, list[list[Candidate]]]:
        """Of each (choices, n), the first `n` new ones that fit; no more are asked for where there
        is such a share of them."""
        found: list[list[Candidate]] = [[] for _ in groups]
        while True:
            asked: list[tuple[list[Candidate], Choice]] = []
            for (choices, n), have in zip(groups, found, strict=True):
                if len(have) < enough * n:
                    new = (c for c in choices if str(c) not in self._refused)
                    asked += [(have, c) for c in islice(new, n - len(have))]
            if not asked:
                return found
            looks = yield [choice for _, choice in asked]
            for (have, choice), look in zip(asked, looks or (), strict=True):
                candidate = self._candidate(choice, look)
                if candidate is not None:
                    have.append(candidate)

    def _candidate(self, choice: Choice, look: Look) -> Candidate | None:
        """One of what was seen; None, and it is refused from now on: it does not fit, is hopeless,
        or does what another one does."""
        if look is not None:
            program, features = look
            known = program in self.programs or program == self.task.default[0]
            if not known and not hopeless(features, self.task.default[1]):
                self.programs.add(program)
                return Candidate(choice, program, features)
            self.discarded += not known
        self._refused.add(str(choice))
        return None

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


def _taken(given: list[Choice]) -> Iterator[Choice]:
    """The choices of a list, which leave it."""
    while given:
        yield given.pop(0)
