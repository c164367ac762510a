"""How the loops of a stage may run whose elements are computed one by one: samples, mutants and
offspring of sketches."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import zip_longest

from compiler.lowering.custom_dtypes import works_on_codes
from compiler.scheduling import Schedule
from compiler.scheduling.choices import Sketch
from compiler.scheduling.lines import runs, step_of
from compiler.scheduling.sketched import MOST_LANES, MOST_UNROLLED, loops_of
from compiler.symbolic import Index, Quasi, Var
from compiler.target.registry import Target
from compiler.tensor.expr import Load, walk

TRIES = 20


@dataclass(frozen=True)
class Axis:
    """A loop: its extent (None: not known), whether neighbours along it are neighbours in the
    result, in some data, and the lengths of the pieces into which positions in data cut it."""

    extent: int | None
    stored: bool
    read: bool
    pieces: tuple[int, ...]


@dataclass(frozen=True)
class LoopSpace:
    """The sketches of one stage: its loops, by how many of the innermost are fused, the elements
    that a vector register holds of its result, and of 4 bytes, and whether it can have lanes."""

    views: Mapping[int, tuple[Axis, ...]]
    vector: tuple[int, ...]
    lanes: bool

    @staticmethod
    def of(s: Schedule, stage: str, target: Target) -> LoopSpace | None:
        """The space of a stage; None: sketches do not decide of it, or it is too small."""
        found = loops_of(s, stage)
        if found is None:
            return None
        store, path = found
        if any(f.extent.vars() & {g.var for g in path} for f in path):
            return None
        reads = [n for n in walk(store.value) if isinstance(n, Load)]
        out = store.buffer.flat(store.idx)
        flats = [n.buffer.flat(n.idx) for n in reads]
        axes = tuple(
            Axis(
                f.extent.constant(),
                step_of(out, f.var) == 1,
                any(_read_along(x, f.var) for x in flats),
                tuple(sorted({p for x in (out, *flats) for p in _pieces(x, f.var)})),
            )
            for f in path
        )
        sizes = {target.vector_bytes // max(1, n) for n in (store.buffer.dtype.nbytes, 4)}
        vector = tuple(sorted(n for n in sizes if n > 1))
        if math.prod(a.extent or 1 for a in axes) < 4:
            return None
        views = {0: axes}
        for count in range(2, len(path) + 1):
            extents = [a.extent for a in axes[-count:]]
            along = [runs(x, [f.var for f in path[-count:]], extents) for x in (out, *flats)]
            if None in extents or not along[0]:
                break
            if extents[0] != 1:
                one = Axis(math.prod(n or 1 for n in extents), True, any(along[1:] or [True]), ())
                views[count] = (*axes[:-count], one)
        return LoopSpace(views, vector, bool(vector) and not works_on_codes(store))

    def sample(self, rng: random.Random) -> Sketch:
        """A sketch at random."""
        fused = rng.choice([*self.views]) if rng.random() < 0.5 else 0
        lanes = self._some_lanes(fused, rng)
        order = self._some_order(fused, rng) if rng.random() < 0.5 else ()
        return self._tiled(Sketch(fused, order=order, lanes=lanes), rng)

    def mutate(self, c: Sketch, rng: random.Random) -> Sketch:
        """A sketch that differs in one decision."""
        for _ in range(TRIES):
            kind = rng.randrange(5)
            if kind == 0:
                new = self._tiled(replace(c, lanes=self._some_lanes(c.fused, rng)), rng)
            elif kind == 1:
                new = replace(c, order=self._some_order(c.fused, rng))
            elif kind == 2:
                new = self._tiled(c, rng)
            elif kind == 3:
                new = self.sample(rng)
            else:
                new = replace(c, unrolled=rng.randint(0, len(c.tiles)))
            new = self._bounded(new)
            if new != c:
                return new
        return c

    def cross(self, a: Sketch, b: Sketch, rng: random.Random) -> Sketch:
        """The lanes and tiles of the one, the order of the other."""
        first, second = rng.sample((a, b), 2)
        return replace(first, order=second.order) if a.fused == b.fused else first

    def neighbours(self) -> list[Sketch]:
        """Squares where the data lies across; vectors along every loop whose neighbours lie
        together, fused with those around it or not, as wide as registers are, of half and of double
        the width; in turns."""
        if not self.lanes:
            return []
        kinds = [self._squares(0), self._vectors(0, True), self._vectors(0, False)]
        whole = [n for n, axes in self.views.items() if n and axes[-1].read]
        kinds += [self._vectors(n, True) for n in reversed(whole)]
        turns = (c for row in zip_longest(*kinds) for c in row if c is not None)
        return list(dict.fromkeys(map(self._bounded, turns)))

    def _vectors(self, fused: int, stored: bool) -> list[Sketch]:
        """Vectors along the loops whose neighbours are neighbours in the result, or in data only,
        one or several side by side."""
        axes, found = self.views[fused], []
        for k, a in enumerate(axes):
            if a.extent is None or a.extent < 2 or a.stored != stored or not (stored or a.read):
                continue
            last = (*(j for j in range(len(axes)) if j != k), k)
            order = () if last == tuple(range(len(axes))) else last
            for several in (1, 2, 4):
                for n in self._widths(a):
                    fits = several > 1 and n * several <= a.extent
                    tile = ((k, n * several),) if fits else ()
                    if several == 1 or tile:
                        found.append(Sketch(fused, tile, order, ((k, n),), len(tile)))
        return found

    def _squares(self, fused: int) -> list[Sketch]:
        found = []
        axes = self.views[fused]
        for i, a in enumerate(axes):
            for j, b in enumerate(axes):
                if i == j or not a.read or not b.stored or a.extent is None or b.extent is None:
                    continue
                for n in (16, 8, 4):
                    if n <= min(a.extent, b.extent):
                        # Pieces of the data, as blocks of channels, are walked one at a time.
                        tile = ((i, a.pieces[0]),) if a.pieces and a.pieces[0] >= n else ()
                        found.append(Sketch(fused, tile, (), ((i, n), (j, n))))
        return found

    def _widths(self, a: Axis) -> list[int]:
        """The lanes that vectors along a loop may have, the most usual first."""
        extent = a.extent or 1
        found = [extent] if extent <= max(self.vector) else []
        found += [n for v in self.vector for n in (v, v // 2, 2 * v, v // 4) if 2 <= n <= extent]
        found += [extent] if extent <= 2 * max(self.vector) else []
        found += [n for n in a.pieces if n <= 2 * max(self.vector)]
        return list(dict.fromkeys(n for n in found if 2 <= n <= extent))

    def _some_lanes(self, fused: int, rng: random.Random) -> tuple[tuple[int, int], ...]:
        axes = self.views[fused]
        known = [k for k, a in enumerate(axes) if (a.extent or 1) > 1]
        if not self.lanes or not known or rng.random() < 0.1:
            return ()
        if rng.random() < 0.25 and (squares := self._squares(fused)):
            return rng.choice(squares).lanes
        weights = [5 if axes[k].stored else 3 if axes[k].read else 1 for k in known]
        (k,) = rng.choices(known, weights)
        widths = self._widths(axes[k])
        return ((k, rng.choice(widths)),) if widths else ()

    def _some_order(self, fused: int, rng: random.Random) -> tuple[int, ...]:
        axes = self.views[fused]
        order = list(range(len(axes)))
        moving = [k for k, a in enumerate(axes) if a.extent != 1]
        if len(moving) > 1:
            k = rng.choice(moving)
            order.remove(k)
            order.insert(rng.randint(0, len(order)), k)
        return () if order == sorted(order) else tuple(order)

    def _tiled(self, c: Sketch, rng: random.Random) -> Sketch:
        """The sketch with other tiles: some vectors of a loop with lanes, or rows of another."""
        lanes, tiles = dict(c.lanes), {}
        for k, a in enumerate(self.views[c.fused]):
            if a.extent is None or a.extent < 2 or rng.random() > (0.5 if k in lanes else 0.25):
                continue
            n = lanes.get(k, 1)
            sizes = [n * m for m in (2, 3, 4, 8, 16) if n * m <= a.extent]
            sizes += [p for p in a.pieces if n <= p <= a.extent]
            if sizes:
                tiles[k] = rng.choice(sizes)
        chosen = list(tiles.items())
        rng.shuffle(chosen)
        return self._bounded(replace(c, tiles=tuple(chosen), unrolled=rng.randint(0, len(chosen))))

    def _bounded(self, c: Sketch) -> Sketch:
        """The sketch with no more written out, and no more lanes, than is allowed."""
        lanes = dict(c.lanes)
        sizes = dict(c.tiles)
        if any(n > sizes.get(k, n) for k, n in c.lanes):
            c = replace(c, tiles=tuple((k, m) for k, m in c.tiles if m >= lanes.get(k, 1)))
        if math.prod(n for _, n in c.lanes) > MOST_LANES:
            c = replace(c, lanes=c.lanes[-1:])
        unrolled = min(c.unrolled, len(c.tiles))
        while unrolled and _written_out(c, unrolled) > MOST_UNROLLED:
            unrolled -= 1
        return replace(c, unrolled=unrolled)


def _written_out(c: Sketch, unrolled: int) -> int:
    lanes = dict(c.lanes)
    tiles = c.tiles[len(c.tiles) - unrolled :]
    return math.prod(-(-m // lanes.get(k, 1)) for k, m in tiles)


def _read_along(flat: Index, v: Var) -> bool:
    """Whether neighbours along a loop are neighbours in the data, within a piece at least."""
    within = [a for a in flat.terms if isinstance(a, Quasi) and a.op == "%" and a.a == v]
    return flat.terms.get(v) == 1 or any(flat.terms[a] == 1 for a in within)


def _pieces(flat: Index, v: Var) -> list[int]:
    """The lengths of the pieces into which a loop is cut by v // n and v % n in an index."""
    cuts = [a.b.constant() for a in flat.terms if isinstance(a, Quasi) and a.a == v]
    return [n for n in cuts if n is not None and n > 1]


__all__ = ["LoopSpace"]
