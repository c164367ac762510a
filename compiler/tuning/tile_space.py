"""The register tiles that a stage may have: samples, mutants and offspring of them."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from itertools import zip_longest

from compiler.scheduling.tile_config import OTHER_REGISTERS, Freedom, TileChoice

TRIES = 20
"""Random tiles that are looked at until one fits."""
WIDTHS = 3
"""Widths of vectors that are looked at, the widest first."""
UNROLLED = (1, 2, 4, 8, 16)
AHEAD = (0, 2048, 8192, 32768, 131072)
"""Bytes by which a packed operand is fetched ahead."""
SPILLED = 1.3
"""Vectors that a tile may have for each register there is: what is spilled may cost less than it
saves."""


@dataclass(frozen=True)
class TileSpace:
    """The register tiles of one stage: what may vary, the rule's, and others that fit the registers
    by count."""

    free: Freedom
    rule: TileChoice
    near: tuple[TileChoice, ...]

    @staticmethod
    def of(free: Freedom, rule: TileChoice) -> TileSpace | None:
        """The space around the rule's tile; None: there is no other tile."""
        near = tuple(free.candidates())
        out = TileSpace(free, rule, near)
        return out if near or out.neighbours() else None

    def sample(self, rng: random.Random) -> TileChoice:
        """A tile at random, half of them among those that fit the registers."""
        if self.near and rng.random() < 0.5:
            return rng.choice(self.near)
        c = self.rule
        for change in self._changes():
            if rng.random() < 0.6:
                c = self._tried(c, change, rng)
        return c if c != self.rule else self.mutate(c, rng)

    def mutate(self, c: TileChoice, rng: random.Random) -> TileChoice:
        """A tile that differs in one decision, if there is one that fits."""
        for _ in range(TRIES):
            new = self._tried(c, rng.choice(self._changes()), rng)
            if new != c:
                return new
        return c

    def cross(self, a: TileChoice, b: TileChoice, rng: random.Random) -> TileChoice:
        """A tile with decisions of both, if one fits; else one of the two."""
        for _ in range(TRIES):
            mixed = {f.name: getattr(rng.choice((a, b)), f.name) for f in fields(TileChoice)}
            c = replace(a, **mixed)
            if c not in (a, b) and not self.free.problem(c):
                return c
        return rng.choice((a, b))

    def neighbours(self) -> list[TileChoice]:
        """Tiles that differ from the rule's in one decision, or two where one is not enough."""
        rule, free = self.rule, self.free
        one = [c for c in self.near if differences(c, rule) == 1]
        lanes = [
            replace(rule, lanes=lanes, blocks=blocks)
            for blocks in dict.fromkeys((2, rule.blocks, 4, 1))
            for lanes in free.lanes(rule)[: -WIDTHS - 1 : -1]
        ]
        others = []
        for axis in free.axes:
            where = replace(rule, lane_axis=axis, block_axis=axis, widths=())
            for n in reversed(free.lanes(where)[-2:]):
                others += [replace(where, lanes=n, blocks=blocks) for blocks in (2, 4)]
        kinds = [lanes, others, one] if rule.lanes == 1 else [one, others, lanes]
        turns = [c for row in zip_longest(*kinds) for c in row if c is not None]
        if free.tile.pack is not None:  # the rule knows these best
            turns = [*one, *lanes, *others]
        return [c for c in dict.fromkeys(turns) if c != rule and not free.problem(c)]

    def _changes(self) -> list[Callable[[TileChoice, random.Random], TileChoice]]:
        """What changes one decision, those first that others depend on."""
        limit = int(SPILLED * self.free.target.vector_registers) - OTHER_REGISTERS

        def axes(c: TileChoice, rng: random.Random) -> TileChoice:
            lane = rng.choice([None, *self.free.axes])
            if lane is None:
                return replace(c, lane_axis=None, block_axis=None, widths=self.rule.widths)
            block = rng.choice([lane, lane, *self.free.axes])
            widths = tuple(w for w in c.widths if w[0] not in (lane, block))
            lanes = self.free.lanes(replace(c, lane_axis=lane))[-1]
            return replace(c, lane_axis=lane, block_axis=block, widths=widths, lanes=lanes)

        def lanes(c: TileChoice, rng: random.Random) -> TileChoice:
            return replace(c, lanes=rng.choice(self.free.lanes(c)[-WIDTHS:]))

        def blocks(c: TileChoice, rng: random.Random) -> TileChoice:
            return replace(c, blocks=rng.choice((1, 2, 2, 3, 4, 4, 6, 8, 12, 16)))

        def widths(c: TileChoice, rng: random.Random) -> TileChoice:
            return replace(c, widths=rng.choice(self.free.tiles(max(1, limit // c.blocks), c)))

        def step(c: TileChoice, rng: random.Random) -> TileChoice:
            return replace(c, step=rng.choice((4, 8, 16, 32, 64, 128)))

        def dot(c: TileChoice, rng: random.Random) -> TileChoice:
            other = replace(c, dot=not c.dot)
            return replace(other, lanes=self.free.lanes(other)[-1])

        def unrolled(c: TileChoice, rng: random.Random) -> TileChoice:
            return replace(c, unrolled=rng.choice(UNROLLED))

        def walk(c: TileChoice, rng: random.Random) -> TileChoice:
            return replace(c, walk=rng.choice([None, *range(self.free.rank)]))

        def group(c: TileChoice, rng: random.Random) -> TileChoice:
            return replace(c, group=rng.choice((None, 2, 3, 4, 6, 8, 12, 16, 24, 32)))

        def ahead(c: TileChoice, rng: random.Random) -> TileChoice:
            return replace(c, ahead=rng.choice([None, *AHEAD]))

        free = self.free
        axes_of_parts = (free.tile.lane_axis, free.tile.block_axis)
        several = any((free.extents[k] or 1) > self.rule.lanes for k in axes_of_parts)
        possible = {
            dot: self.rule.dot,
            axes: bool(free.axes),
            lanes: True,
            blocks: True,
            widths: True,
            unrolled: True,
            step: free.steps_free,
            walk: several and free.rank > 1,
            group: several and free.rank > 1,
            ahead: free.tile.pack is not None,
        }
        return [change for change, can in possible.items() if can]

    def _tried(
        self,
        c: TileChoice,
        change: Callable[[TileChoice, random.Random], TileChoice],
        rng: random.Random,
    ) -> TileChoice:
        """The first of some changed tiles that fits; else the tile itself."""
        for _ in range(TRIES):
            new = change(c, rng)
            if new != c and not self.free.problem(new):
                return new
        return c


def differences(a: TileChoice, b: TileChoice) -> int:
    """In how many decisions two tiles differ."""
    return sum(getattr(a, f.name) != getattr(b, f.name) for f in fields(TileChoice))


__all__ = ["TileSpace", "differences"]
