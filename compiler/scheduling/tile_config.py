"""Register tiles as plain data: what a log keeps and a tuner varies."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from compiler.errors import ScheduleError
from compiler.scheduling import Schedule
from compiler.scheduling.tile import Tile, best_width, keeps_order, read_once, tileable_axis
from compiler.symbolic import Var
from compiler.target.intrinsics import for_target
from compiler.target.registry import Target
from compiler.tensor.expr import Buffer, Load, walk

OTHER_REGISTERS = 2
"""Vector registers that a candidate leaves for what it does not accumulate."""
LEAST_USE = 0.7
"""Share of a tile's outputs that must be inside the tensor, for a candidate."""
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
    """

    lanes: int
    blocks: int
    widths: tuple[tuple[int, int], ...]
    step: int
    unrolled: int
    dot: bool

    def to_json(self) -> dict[str, Any]:
        """Names and values, for a log."""
        return asdict(self) | {"widths": [list(w) for w in self.widths]}

    @staticmethod
    def from_json(content: Mapping[str, Any]) -> TileChoice:
        """The inverse of `to_json`.

        Raises:
            ScheduleError: a field is missing, unknown, or not a number where it must be one.
        """
        names = [f.name for f in fields(TileChoice)]
        if not isinstance(content, Mapping) or set(content) != set(names):
            raise ScheduleError(f"a tile choice has exactly the fields {', '.join(names)}")
        numbers = [content[n] for n in ("lanes", "blocks", "step", "unrolled")]
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
    free = _Freedom(s, stage, tile, target, constants)
    if problem := free.problem(choice):
        raise ScheduleError(f"stage {stage}: {problem}")
    return free.tile_of(choice)


def candidates(
    s: Schedule, stage: str, tile: Tile, target: Target, constants: Collection[Buffer]
) -> list[TileChoice]:
    """Alternatives to the rule's `tile`, in a fixed order, that fit the stage and the registers."""
    return _Freedom(s, stage, tile, target, constants).candidates()


class _Freedom:
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
        rank = len(store.idx)
        self.extents = [path[k].extent.constant() for k in range(rank)]
        reads = [n for n in walk(store.value) if isinstance(n, Load)]
        packable = read_once(s.func.body, constants)
        packed = next((x for x in reads if x.buffer in packable), None)
        fixed = _follows(packed, store.idx[tile.block_axis].vars()) and packed is not None
        taken = {tile.lane_axis} | ({tile.block_axis} if fixed else set())
        # Neighbouring outputs worth a tile share the constant operand.
        self.pixels = [
            k
            for k in range(rank)
            if k not in taken
            and (self.extents[k] or 1) > 1
            and tileable_axis(path, k)
            and not _follows(packed if tile.pack else None, store.idx[k].vars())
        ]
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

    def problem(self, c: TileChoice) -> str:
        """What is wrong with a choice; empty: nothing."""
        t = self.tile
        block = self.extents[t.block_axis] or 1
        most = -(-block // c.lanes) if c.lanes and t.block_axis == t.lane_axis else block
        if c.dot and t.dot is None:
            return "its operands are not bytes for a dot product: dot must be false"
        if c.lanes not in self._lanes(c.dot):
            return f"lanes must be one of {self._lanes(c.dot)}, not {c.lanes}"
        if not 1 <= c.blocks <= max(1, min(most, 8)) or (t.skew[0] and c.blocks != t.blocks):
            return f"blocks must be within 1 and {max(1, min(most, 8))}, not {c.blocks}"
        axes = [a for a, _ in c.widths]
        if axes != sorted(set(axes)) or any(a not in self.pixels for a in axes):
            return f"widths go along different axes of {self.pixels} in order, not {axes}"
        for a, w in c.widths:
            if not 1 <= w <= (self.extents[a] or 1) + 3:
                return f"the width along axis {a} must be within 1 and {self.extents[a]}, not {w}"
        if self._size(c) > 64:
            return f"a tile of {self._size(c)} vectors does not fit any registers"
        if c.dot and t.skew[0] and t.spatial:
            ((axis, _),) = t.spatial
            if axes != [axis] or c.widths[0][1] % t.skew[0]:
                return f"a window's width goes along axis {axis} by {t.skew[0]}"
        if c.dot and t.dot is not None and c.step % t.dot.steps:
            return f"step must be a multiple of {t.dot.steps}, not {c.step}"
        if c.step != t.reduce_block and not (self.steps_free and c.step in (*_STEPS, 4, 8, 128)):
            return f"step must be {t.reduce_block}, not {c.step}"
        if not 1 <= c.unrolled <= 16:
            return f"unrolled must be within 1 and 16, not {c.unrolled}"
        return ""

    def tile_of(self, c: TileChoice) -> Tile:
        dot = self.tile.dot
        if c.dot and dot is not None and dot.loops["o"] != c.lanes:
            dot = self._dots()[c.lanes]
        return replace(
            self.tile,
            lanes=c.lanes,
            blocks=c.blocks,
            spatial=c.widths,
            reduce_block=c.step,
            unrolled=c.unrolled,
            dot=dot if c.dot else None,
            skew=self.tile.skew if c.dot else (0, 0, 0),
        )

    def candidates(self) -> list[TileChoice]:
        t, rule = self.tile, choice_of(self.tile)
        limit = self.target.vector_registers - OTHER_REGISTERS
        least = min(self._size(rule), limit // 3)
        found = {self._effect(rule): rule}

        def offer(c: TileChoice) -> None:
            if not self.problem(c):
                found.setdefault(self._effect(c), c)

        for lanes in self._lanes(rule.dot):
            for blocks in (1, 2, 3, 4):
                for widths in self._tiles(limit // blocks):
                    c = replace(rule, lanes=lanes, blocks=blocks, widths=widths)
                    if least <= self._size(c) <= limit and self._use(c) >= LEAST_USE:
                        offer(c)
        for step in _STEPS if self.steps_free else (rule.step,):
            for unrolled in _UNROLLED if t.reduce_block else (rule.unrolled,):
                offer(replace(rule, step=step, unrolled=unrolled))
        if rule.dot and t.skew[0]:  # windows of few taps may be quicker one by one
            for widths in self._tiles(8):
                lanes = max(self._lanes(False))
                offer(replace(rule, lanes=lanes, widths=widths, dot=False))
        return [c for c in found.values() if c != rule]

    def _effect(self, c: TileChoice) -> TileChoice:
        """The least numbers that give the same loops."""
        extent = self.reduction.extent if self.reduction is not None else None
        most = (extent.constant() if extent is not None else None) or c.step
        step = min(c.step, most)
        return replace(c, step=step, unrolled=min(c.unrolled, max(1, step // self._steps(c))))

    def _steps(self, c: TileChoice) -> int:
        """Reduction steps that one operation takes."""
        return self.tile.dot.steps if c.dot and self.tile.dot is not None else 1

    def _lanes(self, dot: bool) -> list[int]:
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

    def _tiles(self, most: int) -> list[tuple[tuple[int, int], ...]]:
        """Widths along the last pixel axis, and along the last two, of at most `most` outputs."""
        if not self.pixels:
            return [()]
        x = self.pixels[-1]
        extent = self.extents[x] or 1
        unit = self.tile.skew[0] or 1
        sizes = {best_width(extent, m) for m in range(1, most + 1)} | {4, 6, 8, 12, 14}
        widths = sorted({w for w in sizes if w <= min(most, extent)})
        if unit > 1:
            widths = [w * unit for w in range(1, most // unit + 1)]
        out: list[tuple[tuple[int, int], ...]] = [((x, w),) for w in widths]
        if len(self.pixels) > 1 and unit == 1:
            y = self.pixels[-2]
            high = self.extents[y] or 1
            out += [
                ((y, h), (x, w)) for w in widths for h in (2, 3, 4) if h <= high and h * w <= most
            ]
        return out

    @staticmethod
    def _size(c: TileChoice) -> int:
        return c.blocks * math.prod(w for _, w in c.widths)

    def _use(self, c: TileChoice) -> float:
        shares = [(self.extents[a] or 1, w) for a, w in c.widths]
        t = self.tile
        unit = c.lanes * c.blocks if t.block_axis == t.lane_axis else c.blocks
        shares.append((self.extents[t.block_axis] or unit, unit))
        return math.prod(n / (-(-n // w) * w) for n, w in shares)


def _follows(x: Load | None, variables: Collection[Var]) -> bool:
    """Whether a read moves with any of the variables."""
    return x is not None and any(v in i.vars() for i in x.idx for v in variables)
