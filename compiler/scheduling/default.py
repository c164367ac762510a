"""Default schedules, chosen from the loop nest alone: no operator is named here. Rules that users
registered go first (see `rules`).

Reductions get a register tile (see `tile`). Elementwise stages are vectorized along the last axis
where it is contiguous. Anything else runs as written.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Protocol

from compiler.errors import ScheduleError
from compiler.lowering.custom_dtypes import works_on_codes
from compiler.scheduling import Schedule
from compiler.scheduling.apply import apply_tile
from compiler.scheduling.choices import OF_A_STAGE, Choice, Decision, Sketch
from compiler.scheduling.computed_bytes import for_dot_products
from compiler.scheduling.element_lanes import vectorize_elements
from compiler.scheduling.gathered import read_where_picked
from compiler.scheduling.group_tile import schedule_groups
from compiler.scheduling.lanewise import in_lanes
from compiler.scheduling.matrix_choice import MatrixChoice
from compiler.scheduling.matrix_tiles import schedule_matrices
from compiler.scheduling.parallelize import share_out
from compiler.scheduling.row_tiles import tile_rows
from compiler.scheduling.rules import scheduled_by_rule
from compiler.scheduling.select import choose_tile, consumer, tileable, widen_blocks
from compiler.scheduling.sketched import apply_sketch, inline_anyway
from compiler.scheduling.tile import Tile, read_once
from compiler.scheduling.tile_config import TileChoice, retile
from compiler.scheduling.turned_sums import with_terms
from compiler.symbolic import Index, Var
from compiler.target.registry import Target, kind_of
from compiler.tensor.expr import (
    BinOp,
    Buffer,
    Call,
    Gather,
    Load,
    loads,
    walk,
)
from compiler.tensor.simplify import simplify
from compiler.tensor.stmt import PrimFunc, Store, stores

DefaultSchedule = Callable[[PrimFunc, Target, Collection[Buffer], Choice | None], None]
"""(loop nests, target, constant parameters, chosen tiles): schedules them in place."""


def schedule_for(target: Target) -> DefaultSchedule:
    """The default schedule of the machines that a target's kind is of."""
    return SCHEDULES[kind_of(target.kind).schedules]


class Watcher(Protocol):
    """Is told where something can be chosen, before the rules choose it."""

    def inlinable(self, s: Schedule, stage: str, inlined: bool) -> None:
        """An elementwise stage that can be computed where it is read, and whether it will be."""

    def by_rows(self) -> None:
        """Tiles of rows go through all stages."""

    def tiled(self, s: Schedule, stage: str, tile: Tile) -> None:
        """A stage gets a register tile."""

    def multiplied(self, stage: str) -> None:
        """Instructions on matrices compute a stage."""

    def looped(self, s: Schedule, stage: str) -> None:
        """The elements of a stage are computed one by one (see `sketched`)."""


def schedule_default(
    f: PrimFunc,
    target: Target,
    constants: Collection[Buffer] = (),
    choices: Choice | None = None,
    watcher: Watcher | None = None,
) -> None:
    """Schedule `f` in place.

    Args:
        f: the loop nests.
        target: what they will run on.
        constants: the parameters whose arrays are known at build time.
        choices: what is chosen (by a tuner, say) for some stages instead of the rule's.
        watcher: is told what can be chosen.

    Raises:
        ScheduleError: a choice does not fit its stage.
    """
    left = dict(choices or {})
    whole = left.pop("", Sketch())
    if not isinstance(whole, Sketch):
        raise ScheduleError("what is chosen for the whole loop nest is a sketch, no tile")
    if wrong := sorted(set(whole.taken) & OF_A_STAGE):
        raise ScheduleError(f"{', '.join(wrong)} can be chosen for stages only")

    def arrange(tile: PrimFunc) -> None:
        _arrange(tile, target, constants, dict(left), whole, watcher)

    def by_rules(tile: PrimFunc) -> None:
        _arrange(tile, target, constants, {}, Sketch(), None)

    cache = target.architecture.caches.next if not choices else whole.rows
    spare = by_rules if target.architecture.slow_subnormals else None
    if not cache or not tile_rows(f, cache, arrange, spare):
        arrange(f)
    elif watcher is not None:
        watcher.by_rows()
    share_out(Schedule(f), constants, whole.tasks)


def _arrange(
    f: PrimFunc,
    target: Target,
    constants: Collection[Buffer],
    left: dict[str, Decision],
    whole: Sketch,
    watcher: Watcher | None,
) -> None:
    """Tile and vectorize all stages of `f`, in place, with what is in `left` for some."""
    s = untiled(f, target, constants, whole, watcher, left)
    done: frozenset[str] = frozenset()
    for stage in s.stages():
        if stage in done or stage not in s.stages():
            continue  # the tile of an earlier stage made it an instruction, or took it along
        if scheduled_by_rule(s, stage, target, constants):
            left.pop(stage, None)
            continue
        chosen = left.get(stage)
        tile_chosen = isinstance(chosen, TileChoice)
        if not tile_chosen and (taken := schedule_groups(s, stage, target, constants)):
            done |= taken
            continue
        walk_chosen = chosen if isinstance(chosen, MatrixChoice) else MatrixChoice()
        taken = frozenset[str]()
        if not tile_chosen:
            taken = schedule_matrices(s, stage, target, constants, walk_chosen)
        if taken:
            if watcher is not None:
                watcher.multiplied(stage)
            if walk_chosen is chosen:
                del left[stage]
            done |= taken
            continue
        tile = rule_tile(s, stage, target, constants)
        if tile is not None and watcher is not None:
            watcher.tiled(s, stage, tile)
        if tile is not None and isinstance(chosen, TileChoice):
            tile = retile(s, stage, tile, chosen, target, constants)
            del left[stage]
        if tile is not None:
            row_bytes = target.vector_bytes if target.architecture.row_copies else 0
            caches, vectors = target.architecture.caches, target.vector_registers
            apply_tile(s, stage, tile, target.fma, caches, row_bytes, vectors)
    for stage in s.stages():
        _decompose(s, stage)
    for stage in s.stages():
        if watcher is not None:
            watcher.looped(s, stage)
        if isinstance(chosen := left.get(stage), Sketch):
            apply_sketch(s, stage, chosen)
            del left[stage]
        else:
            vectorize_elements(s, stage, target)
    walks = sorted(k for k, c in left.items() if isinstance(c, MatrixChoice))
    if walks:
        raise ScheduleError(
            f"no instructions on matrices compute {', '.join(walks)} of {f.name} on this target "
            "(is AMX off, or refused?); leave it out"
        )
    if left:
        raise ScheduleError(f"{f.name} has no tile for {', '.join(sorted(left))}; leave it out")


def untiled(
    f: PrimFunc,
    target: Target | None = None,
    constants: Collection[Buffer] = (),
    whole: Sketch | None = None,
    watcher: Watcher | None = None,
    chosen: Collection[str] = (),
) -> Schedule:
    """A schedule of `f` with elementwise stages inlined (as `whole` says, where it differs from the
    rules) and expressions simplified, and, for a target, reductions of rows in lanes, what sums in
    squares add computed there (but for stages for which something is `chosen`), and products of
    computed bytes as its dot products take them: what tiles are chosen for."""
    s = Schedule(f)
    inline_elementwise(s, whole, watcher)
    read_where_picked(s, whole.apart if whole is not None else ())
    for x in stores(f.body):
        x.value = simplify(x.value)
    if target is not None:
        in_lanes(s, target)
        with_terms(s, target, {*chosen, *(whole.apart if whole is not None else ())})
        for_dot_products(s, target, constants)
    return s


def rule_tile(
    s: Schedule, stage: str, target: Target, constants: Collection[Buffer]
) -> Tile | None:
    """The register tile that the rule gives a stage; None: the stage is none for a tile."""
    every = [x for x, _, _ in s.stage_stores(stage)]
    looked_up = all(x.buffer.dtype.form == "table" for x in every)
    if any(works_on_codes(x) for x in every) and not looked_up:
        return None
    if not tileable(s, stage):
        return None
    ((store, _, _),) = s.stage_stores(stage)
    if store.buffer in s.func.params or consumer(s, store) is None:
        s.accumulate_apart(stage)
    packable = read_once(s.func.body, constants)
    widen_blocks(s, stage, target, packable)
    return choose_tile(s, stage, target, packable)


def inline_elementwise(
    s: Schedule, whole: Sketch | None = None, watcher: Watcher | None = None
) -> None:
    """Inline every elementwise stage that is read by one non-reduction stage, at one position, or
    by two if it is a single operation, but for slow ones that would be computed again and again
    there, as the deviation of a row is for every element of that; and those that `whole` says.

    Raises:
        ScheduleError: what `whole` says is not possible.
    """
    whole = whole or Sketch()
    if wrong := sorted({*whole.apart, *whole.inlined} - {*s.stages()}):
        raise ScheduleError(f"{s.func.name} has no stages {', '.join(wrong)}")
    for stage in reversed(s.stages()):  # readers first: then several may have become one
        ((store, _, _), *more) = s.stage_stores(stage)
        b = store.buffer
        written = sum(x.buffer is b for x in stores(s.func.body))
        if more or store.update or b not in s.func.temps or written > 1:
            if stage in (*whole.apart, *whole.inlined):
                raise ScheduleError(f"stage {stage} is not one that could be computed elsewhere")
            continue
        readers = [x for x in stores(s.func.body) if any(n.buffer is b for n in _reads(x))]
        wanted = _worth_inlining(s, store, readers)
        if watcher is not None and readers:
            watcher.inlinable(s, stage, wanted)
        if stage in whole.inlined:
            inline_anyway(s, stage, readers)
        elif wanted and stage not in whole.apart:
            try:
                s.compute_inline(stage)
            except ScheduleError:
                continue  # a shifted or strided copy: it stays a stage of its own


def _worth_inlining(s: Schedule, store: Store, readers: list[Store]) -> bool:
    b = store.buffer
    places = [{n.idx for n in loads(x.value) if n.buffer is b} for x in readers]
    gathered = any(isinstance(n, Gather) for x in readers for n in _reads(x) if n.buffer is b)
    once = not gathered and all(len(p) == 1 for p in places)
    few = len(readers) == 1 or (len(readers) == 2 and _light(store))
    if not few or not once or any(x.update for x in readers):
        return False
    again = (_repeated(s, x, *p) for x, p in zip(readers, places, strict=True))
    return not (_slow(store) and any(again))


def _slow(store: Store) -> bool:
    """Whether a value takes a division or a function."""
    nodes = walk(store.value)
    return any(isinstance(e, Call) or (isinstance(e, BinOp) and e.op == "Div") for e in nodes)


def _light(store: Store) -> bool:
    """Whether a value takes one operation of the processor, no more than reading it would."""
    e = store.value
    plain = isinstance(e, BinOp) and e.op in ("Add", "Sub", "Mul") and not e.dtype.is_custom
    return plain and all(isinstance(x, Load) for x in e.children())


def _repeated(s: Schedule, reader: Store, position: tuple[Index, ...]) -> bool:
    """Whether loops of a stage read the same position more than once."""
    ((_, path, _),) = s.stage_stores(reader.stage)
    used: set[Var] = set().union(*(i.vars() for i in position))
    return any(f.extent != 1 and f.var not in used for f in path)


def _reads(s: Store) -> list[Load | Gather]:
    exprs = [s.value] + ([s.init] if s.init is not None else [])
    return [n for e in exprs for n in walk(e) if isinstance(n, (Load, Gather))]


def _decompose(s: Schedule, stage: str) -> None:
    for store, path, _ in s.stage_stores(stage):
        if store.init is None:
            continue
        used: set[Var] = set().union(*(i.vars() for i in store.idx))
        reduction = next((f for f in path if f.var not in used), None)
        if reduction is None:
            raise ScheduleError(f"{stage} starts from a value but reduces over nothing")
        s.decompose_reduction(stage, reduction.var.name)


def _grids(
    f: PrimFunc, target: Target, constants: Collection[Buffer] = (), choices: Choice | None = None
) -> None:
    from compiler.scheduling.grid import schedule_grids

    schedule_grids(f, target, constants, choices)


SCHEDULES: dict[str, DefaultSchedule] = {"cpu": schedule_default, "cuda": _grids}
"""Kind of machine (`TargetKind.schedules`) -> how loop nests are scheduled for it by default."""
