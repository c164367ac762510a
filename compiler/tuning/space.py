"""The choices that there are for a loop nest: what a tuner samples, mutates and crosses over.

They are derived from the loops alone; no operator is named here.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields, replace
from typing import Protocol

from compiler.scheduling.choices import Choice, Sketch
from compiler.scheduling.default import rule_tile, untiled
from compiler.scheduling.rules import scheduled_by_rule
from compiler.scheduling.tile_config import TileChoice, candidates, choice_of
from compiler.target.registry import Target
from compiler.tensor.copying import Copy
from compiler.tensor.expr import Buffer
from compiler.tensor.stmt import PrimFunc


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


def space_of(func: PrimFunc, target: Target, constants: Collection[Buffer]) -> Space | None:
    """The choices for an unscheduled loop nest, which stays as it is; None: there are none.

    Args:
        func: the loop nest.
        target: what it will run on.
        constants: the parameters whose arrays are known at build time.
    """
    copy = Copy()
    nest = copy.func(func)
    known = {copy.buffer(b) for b in constants}
    s = untiled(nest, target, known)
    tiles = {}
    for stage in s.stages():
        if scheduled_by_rule(s, stage, target, known):
            continue
        tile = rule_tile(s, stage, target, known)
        if tile is None:
            continue
        found = candidates(s, stage, tile, target, known)
        if found:
            tiles[stage] = TileSpace(choice_of(tile), tuple(found))
    return StageSpace(tiles) if tiles else None


@dataclass(frozen=True)
class TileSpace:
    """The register tiles of one stage: the rule's and the alternatives."""

    rule: TileChoice
    others: tuple[TileChoice, ...]

    def mutate(self, c: TileChoice, rng: random.Random) -> TileChoice:
        """One of the tiles that differ least from `c`."""
        near = sorted((x for x in self.others if x != c), key=lambda x: _differences(c, x))
        least = [x for x in near if _differences(c, x) == _differences(c, near[0])]
        return rng.choice(least) if least else c

    def cross(self, a: TileChoice, b: TileChoice, rng: random.Random) -> TileChoice:
        """A tile with parameters of both, if there is one; else one of the two."""
        mixed = {f.name: getattr(rng.choice((a, b)), f.name) for f in fields(TileChoice)}
        c = replace(a, **mixed)
        return c if c in self.others else rng.choice((a, b))


def _differences(a: TileChoice, b: TileChoice) -> int:
    return sum(getattr(a, f.name) != getattr(b, f.name) for f in fields(TileChoice))


@dataclass(frozen=True)
class StageSpace:
    """Independent choices for several stages."""

    tiles: Mapping[str, TileSpace]

    def sample(self, rng: random.Random) -> Choice:
        """Tiles for some stages, one at least."""
        some = rng.sample([*self.tiles], rng.randint(1, len(self.tiles)))
        return {stage: rng.choice(self.tiles[stage].others) for stage in sorted(some)}

    def mutate(self, c: Choice, rng: random.Random) -> Choice:
        """Another tile for one stage, or the rule's."""
        stage = rng.choice([*self.tiles])
        space, now = self.tiles[stage], c.get(stage)
        if isinstance(now, TileChoice) and len(c) > 1 and rng.random() < 0.2:
            return {k: v for k, v in c.items() if k != stage}
        new = space.mutate(now if isinstance(now, TileChoice) else space.rule, rng)
        return dict(sorted({**c, stage: new}.items()))

    def cross(self, a: Choice, b: Choice, rng: random.Random) -> Choice:
        """The tile of each stage from one of the two, or of both."""
        out: dict[str, TileChoice | Sketch] = {}
        for stage in sorted({*a, *b}):
            mine, other = a.get(stage), b.get(stage)
            if isinstance(mine, TileChoice) and isinstance(other, TileChoice):
                out[stage] = self.tiles[stage].cross(mine, other, rng)
            elif (taken := rng.choice((mine, other))) is not None:
                out[stage] = taken
        return out or dict(a)

    def neighbours(self) -> list[Choice]:
        """Every tile that differs from the rule's in one parameter."""
        found = [
            (_differences(t.rule, c), stage, c) for stage, t in self.tiles.items() for c in t.others
        ]
        found.sort(key=lambda x: x[0])
        return [{stage: c} for n, stage, c in found if n == 1]


__all__ = ["Choice", "Space", "space_of"]
