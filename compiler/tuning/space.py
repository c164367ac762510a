"""The choices that there are for a loop nest: what a tuner samples, mutates and crosses over.

They are derived from the loops alone, wherever the rules decide something; no operator is named
here.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from compiler.errors import ScheduleError
from compiler.scheduling import Schedule
from compiler.scheduling.choices import Choice, Decision, Sketch
from compiler.scheduling.default import schedule_default, schedule_for
from compiler.scheduling.matrix_choice import MatrixChoice
from compiler.scheduling.tile import Tile
from compiler.scheduling.tile_config import Freedom, TileChoice, choice_of
from compiler.scheduling.user_schedules import arranged
from compiler.target.registry import Target
from compiler.tensor.copying import Copy
from compiler.tensor.expr import Buffer
from compiler.tensor.stmt import PrimFunc
from compiler.tuning.loop_space import LoopSpace
from compiler.tuning.matrix_space import MatrixSpace
from compiler.tuning.tile_space import TileSpace

StageSpace = TileSpace | MatrixSpace | LoopSpace
"""The choices for a stage, by what it is computed."""
WHOLE = ""
"""The key of what is chosen for the whole loop nest."""
FEW = 0.75
"""How likely a sample leaves a stage to the rules, where there are several."""
GRAINS = (1, 4, 16, 64)
"""Numbers of tasks that threads may share."""


class Space(Protocol):
    """The choices for one loop nest. A choice that does not fit raises ScheduleError when it is
    applied; all others compute the bits that the rules' schedule computes."""

    def sample(self, rng: random.Random) -> Choice:
        """A choice at random."""

    def mutate(self, c: Choice, rng: random.Random) -> Choice:
        """A choice that differs in one decision, or few."""

    def cross(self, a: Choice, b: Choice, rng: random.Random) -> Choice:
        """A choice that takes some decisions from the one, the others from the other."""

    def neighbours(self) -> list[Choice]:
        """What is worth trying first: near to the rules, those nearest first."""


def space_of(func: PrimFunc, target: Target, constants: Collection[Buffer]) -> NestSpace | None:
    """The choices for an unscheduled loop nest, which stays as it is; None: there are none.

    Args:
        func: the loop nest.
        target: what it will run on.
        constants: the parameters whose arrays are known at build time.
    """
    if arranged(func) or schedule_for(target) is not schedule_default:
        return None
    copy = Copy()
    nest = copy.func(func)
    known = {copy.buffer(b) for b in constants}
    found = _Found(target, known)
    schedule_default(nest, target, known, watcher=found)
    whole = WholeSpace(dict(found.inlined), found.cache)
    if not found.stages and not whole.inlined and not whole.cache:
        return None
    return NestSpace(found.stages, whole)


@dataclass
class _Found:
    """Notes where the rules decide something."""

    target: Target
    constants: Collection[Buffer]
    stages: dict[str, StageSpace] = field(default_factory=dict)
    inlined: dict[str, bool] = field(default_factory=dict)
    cache: int = 0

    def inlinable(self, s: Schedule, stage: str, inlined: bool) -> None:
        self.inlined[stage] = inlined

    def by_rows(self) -> None:
        self.cache = self.target.architecture.caches.next

    def tiled(self, s: Schedule, stage: str, tile: Tile) -> None:
        free = Freedom(s, stage, tile, self.target, self.constants)
        space = TileSpace.of(free, choice_of(tile))
        if space is not None:
            self.stages[stage] = space

    def multiplied(self, stage: str) -> None:
        self.stages[stage] = MatrixSpace()

    def looped(self, s: Schedule, stage: str) -> None:
        space = LoopSpace.of(s, stage, self.target)
        if space is not None:
            self.stages[stage] = space


@dataclass(frozen=True)
class WholeSpace:
    """Decisions about a whole nest: the stages that can be computed where they are read, and
    whether the rules do that; bytes of a tile of rows, 0 where there are none."""

    inlined: Mapping[str, bool]
    cache: int

    @property
    def rule(self) -> Sketch:
        """What the rules do."""
        return Sketch(rows=self.cache)

    def mutate(self, c: Sketch, rng: random.Random) -> Sketch:
        """Another stage inlined, or apart, or tiles of rows of another size."""
        names = sorted(self.inlined)
        if self.cache and (not names or rng.random() < 0.5):
            sizes = [self.cache * m // 8 for m in (1, 2, 4, 8, 16, 32)]
            return replace(c, rows=rng.choice([0, *(n for n in sizes if n != c.rows)]))
        if not names:
            return c
        name = rng.choice(names)
        return self.flipped(c, name)

    def flipped(self, c: Sketch, name: str) -> Sketch:
        """The other way for a stage than now: inlined, or apart."""
        if self.inlined[name]:
            return replace(c, apart=tuple(sorted({*c.apart} ^ {name})))
        return replace(c, inlined=tuple(sorted({*c.inlined} ^ {name})))

    def cross(self, a: Sketch, b: Sketch, rng: random.Random) -> Sketch:
        """Each decision from one of the two."""
        apart, inlined, rows = (rng.choice((a, b)) for _ in range(3))
        return replace(a, apart=apart.apart, inlined=inlined.inlined, rows=rows.rows)


@dataclass(frozen=True)
class NestSpace:
    """The choices for the stages of a loop nest, and for the whole of it."""

    stages: Mapping[str, StageSpace]
    whole: WholeSpace

    def sample(self, rng: random.Random) -> Choice:
        """Something else than the rules for some stages, or for the whole."""
        names = [*self.stages]
        some = [n for n in names if rng.random() > FEW]
        if names and not some:
            some = [rng.choice(names)]
        whole = self.whole.rule
        if self._about_all and (not names or rng.random() < 0.3):
            whole = self.whole.mutate(whole, rng)
        return self._choice({n: self.stages[n].sample(rng) for n in some}, whole)

    def mutate(self, c: Choice, rng: random.Random) -> Choice:
        """Another decision for one stage, or the rule's, or for the whole."""
        stages, whole = self._parts(c)
        names = [*self.stages]
        if self._about_all and (not names or rng.random() < 0.2):
            return self._choice(stages, self.whole.mutate(whole, rng))
        if not names:
            return c
        # What has been chosen is refined more often than something else is begun.
        begun = [n for n in names if n in stages]
        name = rng.choice(begun if begun and rng.random() < 0.7 else names)
        if name in stages and len(stages) > 1 and rng.random() < 0.15:
            return self._choice({k: v for k, v in stages.items() if k != name}, whole)
        return self._choice({**stages, name: self._changed(name, stages.get(name), rng)}, whole)

    def cross(self, a: Choice, b: Choice, rng: random.Random) -> Choice:
        """What is chosen for each stage from one of the two, or of both."""
        (mine, whole), (others, other_whole) = self._parts(a), self._parts(b)
        out: dict[str, Decision] = {}
        for name in sorted({*mine, *others}):
            first, second = mine.get(name), others.get(name)
            both = self._crossed(name, first, second, rng)
            if both is not None:
                out[name] = both
            elif (taken := rng.choice((first, second))) is not None:
                out[name] = taken
        return self._choice(out, self.whole.cross(whole, other_whole, rng))

    def neighbours(self) -> list[Choice]:
        """The nearest alternatives of each stage in turns; then of the whole."""
        near = [[(n, c) for c in space.neighbours()] for n, space in self.stages.items()]
        out = []
        for k in range(max(map(len, near), default=0)):
            out += [self._choice(dict([x[k]]), self.whole.rule) for x in near if k < len(x)]
        flips = [self.whole.flipped(self.whole.rule, name) for name in self.whole.inlined]
        sizes = [0, self.whole.cache // 4, 4 * self.whole.cache] if self.whole.cache else []
        flips += [replace(self.whole.rule, rows=n) for n in sizes]
        return [*out, *(self._choice({}, w) for w in flips)]

    def grains(self, c: Choice) -> list[Choice]:
        """The choice with other numbers of tasks for threads to share: what kernels that are
        measured on one thread say nothing about."""
        stages, whole = self._parts(c)
        return [self._choice(stages, replace(whole, tasks=n)) for n in GRAINS if n != whole.tasks]

    @property
    def _about_all(self) -> bool:
        return bool(self.whole.inlined) or bool(self.whole.cache)

    def _changed(self, name: str, now: Decision | None, rng: random.Random) -> Decision:
        space = self.stages[name]
        if isinstance(space, TileSpace):
            return space.mutate(now if isinstance(now, TileChoice) else space.rule, rng)
        if isinstance(space, MatrixSpace):
            return space.mutate(now if isinstance(now, MatrixChoice) else MatrixChoice(), rng)
        return space.mutate(now, rng) if isinstance(now, Sketch) else space.sample(rng)

    def _crossed(
        self,
        name: str,
        a: Decision | None,
        b: Decision | None,
        rng: random.Random,
    ) -> Decision | None:
        """What is chosen for a stage from both; None: they are not of one kind."""
        space = self.stages.get(name)
        if isinstance(space, TileSpace) and isinstance(a, TileChoice) and isinstance(b, TileChoice):
            return space.cross(a, b, rng)
        if isinstance(a, MatrixChoice) and isinstance(b, MatrixChoice):
            return space.cross(a, b, rng) if isinstance(space, MatrixSpace) else None
        if isinstance(space, LoopSpace) and isinstance(a, Sketch) and isinstance(b, Sketch):
            return space.cross(a, b, rng)
        return None

    def _parts(self, c: Choice) -> tuple[dict[str, Decision], Sketch]:
        whole = c.get(WHOLE, self.whole.rule if not c else Sketch())
        if not isinstance(whole, Sketch):
            raise ScheduleError("what is chosen for the whole loop nest is a sketch, no tile")
        return {k: v for k, v in c.items() if k != WHOLE}, whole

    def _choice(self, stages: Mapping[str, Decision], whole: Sketch) -> Choice:
        """The choice of these decisions; {} for those of the rules."""
        if not stages and whole == self.whole.rule:
            return {}
        every = dict(sorted(stages.items()))
        return {WHOLE: whole, **every} if whole != Sketch() else every


__all__ = ["WHOLE", "Choice", "NestSpace", "Space", "space_of"]
