"""Register tiles as plain data: what a log keeps and a tuner varies."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import MISSING, asdict, dataclass, fields, replace
from typing import Any

from compiler.errors import ScheduleError
from compiler.scheduling import Schedule
from compiler.scheduling.select import consumer, is_widened
from compiler.scheduling.tile import (
    CONTIGUOUS_STEP,
    Tile,
    best_width,
    guards,
    keeps_order,
    read_once,
    tileable_axis,
)
from compiler.scheduling.turned_sums import SIDES
from compiler.symbolic import Var
from compiler.target.intrinsics import for_target
from compiler.target.registry import Target
from compiler.tensor.expr import Buffer, Load, walk
from compiler.tensor.stmt import Store

OTHER_REGISTERS = 2
"""Vector registers that a candidate leaves for what it does not accumulate."""
LEAST_USE = 0.7
"""Share of a tile's outputs that must be inside the tensor, for a candidate."""
BLOCKS = 16
"""Vectors along the second axis, at most."""
LARGEST = 64
"""Vectors of a tile, at most."""
FARTHEST = 1 << 20
"""Bytes that an operand is fetched ahead, at most."""
_STEPS = (16, 32, 64)
_UNROLLED = (1, 2, 4, 8)


@dataclass(frozen=True)
class TileChoice:
    """The free parameters of a stage's register tile. None of them changes a result.

    Attributes:
        lanes: elements a vector.
        blocks: vectors along the second axis of the constant operand.
        widths: (axis of the output, outputs) of neighbouring outputs, outermost first.
        step: how the first reduction axis is split first; 0: not.
        unrolled: reduction steps in the body of the innermost loop; a dot product is one step.
        dot: whether bytes are multiplied by dot product instructions, where there are any.
        lane_axis, block_axis: axes of the output, of the lanes and of the blocks; None: the rule's.
        walk: where among the loops over tiles that over the lanes' blocks goes, or, if that has one
            iteration, that over the other blocks, from 0, outermost; None: where the rule puts it.
        ahead: bytes by which a packed operand is fetched ahead; None: as the rule does.
        group: tiles along the first axis that has more, that walk the operand in vectors by one
            block of lanes before the next; None: all, or one, as `walk` says.
    """

    lanes: int
    blocks: int
    widths: tuple[tuple[int, int], ...]
    step: int
    unrolled: int
    dot: bool
    lane_axis: int | None = None
    block_axis: int | None = None
    walk: int | None = None
    ahead: int | None = None
    group: int | None = None

    def to_json(self) -> dict[str, Any]:
        """Names and values, for a log."""
        plain = asdict(self) | {"widths": [list(w) for w in self.widths]}
        return {k: v for k, v in plain.items() if v is not None}

    @staticmethod
    def from_json(content: Mapping[str, Any]) -> TileChoice:
        """The inverse of `to_json`.

        Raises:
            ScheduleError: a field is missing, unknown, or not a number where it must be one.
        """
        names = [f.name for f in fields(TileChoice) if f.default is MISSING]
        more = {f.name for f in fields(TileChoice)} - set(names)
        if not isinstance(content, Mapping) or set(content) - more != set(names):
            raise ScheduleError(f"a tile choice has exactly the fields {', '.join(names)}")
        numbers = [content[n] for n in ("lanes", "blocks", "step", "unrolled")]
        numbers += [content[n] for n in sorted(more & set(content))]
        pairs = content["widths"]
        shaped = isinstance(pairs, (list, tuple)) and all(
            isinstance(p, (list, tuple)) and len(p) == 2 for p in pairs
        )
        if not shaped or not isinstance(content["dot"], bool):
            raise ScheduleError(
                "a tile choice has widths [[axis, outputs], ...] and a true/false dot"
            )
        widths = tuple((a, w) for a, w in pairs)
        if any(type(n) is not int or n < 0 for n in (*numbers, *sum(widths, ()))):
            raise ScheduleError("the numbers of a tile choice are whole and not negative")
        return TileChoice(**{**content, "widths": widths})


def choice_of(tile: Tile) -> TileChoice:
    """The choice that gives `tile`."""
    return TileChoice(
        tile.lanes,
        tile.blocks,
        tile.spatial,
        tile.reduce_block,
        tile.unrolled,
        tile.dot is not None,
    )


def retile(
    s: Schedule,
    stage: str,
    tile: Tile,
    choice: TileChoice,
    target: Target,
    constants: Collection[Buffer],
) -> Tile:
    """The rule's `tile` with the parameters of `choice`.

    Raises:
        ScheduleError: they do not fit the stage; says which.
    """
    free = Freedom(s, stage, tile, target, constants)
    if problem := free.problem(choice):
        raise ScheduleError(f"stage {stage}: {problem}")
    return free.tile_of(choice)


def candidates(
    s: Schedule, stage: str, tile: Tile, target: Target, constants: Collection[Buffer]
) -> list[TileChoice]:
    """Alternatives to the rule's `tile`, in a fixed order, that fit the stage and the registers."""
    return Freedom(s, stage, tile, target, constants).candidates()


class Freedom:
    """What may vary in the tile of one stage."""

    def __init__(
        self,
        s: Schedule,
        stage: str,
        tile: Tile,
        target: Target,
        constants: Collection[Buffer],
    ):
        ((store, path, _),) = s.stage_stores(stage)
        self.tile, self.store, self.target = tile, store, target
        self.rank = rank = len(store.idx)
        self.extents = [path[k].extent.constant() for k in range(rank)]
        reads = [n for n in walk(store.value) if isinstance(n, Load)]
        packable = read_once(s.func.body, constants)
        packed = next((x for x in reads if x.buffer in packable), None)
        fixed = _follows(packed, store.idx[tile.block_axis].vars()) and packed is not None
        self.fixed = {tile.block_axis} if fixed else set[int]()
        # Neighbouring outputs worth a tile share the constant operand.
        self.free = [
            k
            for k in range(rank)
            if (self.extents[k] or 1) > 1
            and not tile.turned
            and tileable_axis(path, k)
            and not _follows(packed if tile.pack else None, store.idx[k].vars())
        ]
        skipped = {v for f in guards(path) for v in f.extent.vars()}
        wide = [k for k in range(rank) if (self.extents[k] or 1) > 1]
        plain = tile.dot is None and tile.copy is None and not tile.run_time and not tile.turned
        moved = plain and not is_widened(_reader(s, store))
        self.axes = [k for k in wide if path[k].var not in skipped] if moved else []
        """Axes that may be lanes, or blocks, instead of the rule's."""
        data = [x for x in reads if x is not packed]
        first = path[rank].var if len(path) > rank else None
        self.reduction = first
        blocked = any(
            not isinstance(a, Var) and first in a.leaves()
            for x in data
            for i in x.idx
            for a in i.terms
        )
        # Another order of additions would change a sum of floats, or one that saturates.
        any_order = store.buffer.dtype.is_integer and not keeps_order(store)
        self.steps_free = bool(tile.reduce_block) and not blocked and any_order

    def pixels(self, c: TileChoice) -> list[int]:
        """Axes along which a tile may have neighbouring outputs."""
        lane, block = self.places(c)
        if (lane, block) == self.places(None):
            taken = {lane} | self.fixed
        else:
            taken = {lane, block}
        return [k for k in self.free if k not in taken]

    def places(self, c: TileChoice | None) -> tuple[int, int]:
        """The axes of the lanes and of the blocks; None: of the rule's tile."""
        t = self.tile
        lane = t.lane_axis if c is None or c.lane_axis is None else c.lane_axis
        block = t.block_axis if c is None or c.block_axis is None else c.block_axis
        return lane, block

    def problem(self, c: TileChoice) -> str:
        """What is wrong with a choice; empty: nothing."""
        t, (lane, block_axis) = self.tile, self.places(c)
        if (c.lane_axis, c.block_axis) != (None, None) and {lane, block_axis} - {*self.axes}:
            return f"lanes and blocks go along axes {self.axes}, not {lane} and {block_axis}"
        block = self.extents[block_axis] or 1
        most = -(-block // c.lanes) if c.lanes and block_axis == lane else block
        pixels = self.pixels(c)
        if c.dot and t.dot is None:
            return "its operands are not bytes for a dot product: dot must be false"
        if c.lanes not in self.lanes(c):
            return f"lanes must be one of {self.lanes(c)}, not {c.lanes}"
        if not 1 <= c.blocks <= max(1, min(most, BLOCKS)) or (t.skew[0] and c.blocks != t.blocks):
            return f"blocks must be within 1 and {max(1, min(most, BLOCKS))}, not {c.blocks}"
        axes = [a for a, _ in c.widths]
        if axes != sorted(set(axes)) or any(a not in pixels for a in axes):
            return f"widths go along different axes of {pixels} in order, not {axes}"
        for a, w in c.widths:
            if not 1 <= w <= (self.extents[a] or 1) + 3:
                return f"the width along axis {a} must be within 1 and {self.extents[a]}, not {w}"
        if self.size(c) > LARGEST:
            return f"a tile of {self.size(c)} vectors does not fit any registers"
        if c.dot and t.skew[0] and t.spatial:
            ((axis, _),) = t.spatial
            if axes != [axis] or c.widths[0][1] % t.skew[0]:
                return f"a window's width goes along axis {axis} by {t.skew[0]}"
        if c.dot and t.dot is not None and c.step % t.dot.steps:
            return f"step must be a multiple of {t.dot.steps}, not {c.step}"
        plain = t.turned and c.lanes not in SIDES and c.step == CONTIGUOUS_STEP
        if (
            c.step != t.reduce_block
            and not plain
            and not (self.steps_free and c.step in (*_STEPS, 4, 8, 128))
        ):
            return f"step must be {t.reduce_block}, not {c.step}"
        if not 1 <= c.unrolled <= 16:
            return f"unrolled must be within 1 and 16, not {c.unrolled}"
        if c.walk is not None and c.walk >= self.rank:
            return f"walk must be within 0 and {self.rank - 1}, not {c.walk}"
        if c.group is not None and (c.group < 1 or t.run_time):
            return "group must be at least 1, and of tiles whose extents are known"
        if c.ahead is not None and (t.pack is None or c.ahead > FARTHEST):
            return f"ahead must be within 0 and {FARTHEST}, and of an operand that is packed"
        return ""

    def tile_of(self, c: TileChoice) -> Tile:
        """The tile that a choice, which fits, describes."""
        dot = self.tile.dot
        if c.dot and dot is not None and dot.loops["o"] != c.lanes:
            dot = self._dots()[c.lanes]
        lane, block = self.places(c)
        return replace(
            self.tile,
            lane_axis=lane,
            lanes=c.lanes,
            block_axis=block,
            blocks=c.blocks,
            spatial=c.widths,
            reduce_block=c.step,
            unrolled=c.unrolled,
            dot=dot if c.dot else None,
            skew=self.tile.skew if c.dot else (0, 0, 0),
            walk=c.walk,
            ahead=c.ahead,
            group=c.group,
            turned=self.tile.turned and c.lanes in SIDES,
            in_parts=self.tile.in_parts and (lane, block) == self.places(None),
        )

    def candidates(self) -> list[TileChoice]:
        """Alternatives to the rule's tile, in a fixed order, that fit the registers."""
        t, rule = self.tile, choice_of(self.tile)
        limit = self.target.vector_registers - OTHER_REGISTERS
        least = min(self.size(rule), limit // 3)
        found = {self._effect(rule): rule}

        def offer(c: TileChoice) -> None:
            if not self.problem(c):
                found.setdefault(self._effect(c), c)

        for lanes in self._near_lanes(rule.dot):
            for blocks in (1, 2, 3, 4):
                for widths in self.tiles(limit // blocks, rule):
                    c = replace(rule, lanes=lanes, blocks=blocks, widths=widths)
                    if least <= self.size(c) <= limit and self.use(c) >= LEAST_USE:
                        offer(c)
        for step in _STEPS if self.steps_free else (rule.step,):
            for unrolled in _UNROLLED if t.reduce_block else (rule.unrolled,):
                offer(replace(rule, step=step, unrolled=unrolled))
        if rule.dot and t.skew[0]:  # windows of few taps may be quicker one by one
            for widths in self.tiles(8, rule):
                lanes = max(self._near_lanes(False))
                offer(replace(rule, lanes=lanes, widths=widths, dot=False))
        return [c for c in found.values() if c != rule]

    def _effect(self, c: TileChoice) -> TileChoice:
        """The least numbers that give the same loops; squares are unrolled as they are."""
        if self.tile.turned and c.lanes in SIDES:
            return replace(c, unrolled=self.tile.unrolled)
        extent = self.reduction.extent if self.reduction is not None else None
        most = (extent.constant() if extent is not None else None) or c.step
        step = min(c.step, most)
        return replace(c, step=step, unrolled=min(c.unrolled, max(1, step // self._steps(c))))

    def _steps(self, c: TileChoice) -> int:
        """Reduction steps that one operation takes."""
        return self.tile.dot.steps if c.dot and self.tile.dot is not None else 1

    def lanes(self, c: TileChoice) -> list[int]:
        """The lanes that vectors may have."""
        t, dtype = self.tile, self.store.buffer.dtype
        if c.dot or dtype.form == "table" or t.copy is not None or t.run_time:
            return self._near_lanes(c.dot)
        extent, most = self.extents[self.places(c)[0]] or 1, self.target.vector_bytes
        if t.turned:
            return [1, *(n for n in sorted(SIDES) if n <= t.lanes)]
        powers = (1 << k for k in range(8))
        fit = {n for n in powers if n <= extent and n * dtype.nbytes <= 2 * most}
        return sorted(fit | {*self._near_lanes(False)} if c.lane_axis is None else fit)

    def _near_lanes(self, dot: bool) -> list[int]:
        t = self.tile
        if dot:
            return [t.lanes] if t.skew[0] else sorted(self._dots())
        most = self.target.vector_bytes // self.store.buffer.dtype.nbytes
        rule = t.lanes if t.dot is None else min(most, self.extents[t.lane_axis] or 1)
        return [rule // 2, rule] if rule >= 8 and rule % 2 == 0 else [rule]

    def _dots(self) -> dict[int, Any]:
        """Lanes -> the dot product instruction that a register of as many takes."""
        own = self.tile.dot
        assert own is not None
        same = [
            i
            for i in for_target(self.target)
            if i.steps == own.steps
            and i.operand_dtypes == own.operand_dtypes
            and i.pattern.value.dtype == own.pattern.value.dtype
        ]
        return {i.loops["o"]: i for i in reversed(same)} | {own.loops["o"]: own}

    def tiles(self, most: int, c: TileChoice) -> list[tuple[tuple[int, int], ...]]:
        """Widths along the last pixel axis, and along the last two, of at most `most` outputs."""
        pixels = self.pixels(c)
        if not pixels:
            return [()]
        x = pixels[-1]
        extent = self.extents[x] or 1
        unit = self.tile.skew[0] or 1
        sizes = {best_width(extent, m) for m in range(1, most + 1)} | {4, 6, 8, 12, 14}
        widths = sorted({w for w in sizes if w <= min(most, extent)})
        if unit > 1:
            widths = [w * unit for w in range(1, most // unit + 1)]
        out: list[tuple[tuple[int, int], ...]] = [((x, w),) for w in widths]
        if len(pixels) > 1 and unit == 1:
            y = pixels[-2]
            high = self.extents[y] or 1
            out += [
                ((y, h), (x, w)) for w in widths for h in (2, 3, 4) if h <= high and h * w <= most
            ]
        return out

    @staticmethod
    def size(c: TileChoice) -> int:
        """Vectors that a tile accumulates in."""
        return c.blocks * math.prod(w for _, w in c.widths)

    def use(self, c: TileChoice) -> float:
        """The share of a tile's outputs that is inside the tensor."""
        shares = [(self.extents[a] or 1, w) for a, w in c.widths]
        lane, block = self.places(c)
        unit = c.lanes * c.blocks if block == lane else c.blocks
        shares.append((self.extents[block] or unit, unit))
        return math.prod(n / (-(-n // w) * w) for n, w in shares)


def _reader(s: Schedule, store: Store) -> Store:
    reader = consumer(s, store)
    assert reader is not None  # stages with a tile have one
    return reader


def _follows(x: Load | None, variables: Collection[Var]) -> bool:
    """Whether a read moves with any of the variables."""
    return x is not None and any(v in i.vars() for i in x.idx for v in variables)
