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
from compiler.scheduling.choices import OF_A_STAGE, Choice, Sketch
from compiler.scheduling.computed_bytes import for_dot_products
from compiler.scheduling.gathered import read_where_picked
from compiler.scheduling.group_tile import schedule_groups
from compiler.scheduling.lanewise import in_lanes
from compiler.scheduling.lines import fuse_short_rows, one_line
from compiler.scheduling.matrix_tiles import schedule_matrices
from compiler.scheduling.parallelize import share_out
from compiler.scheduling.row_tiles import tile_rows
from compiler.scheduling.rules import scheduled_by_rule
from compiler.scheduling.select import choose_tile, consumer, tileable, widen_blocks
from compiler.scheduling.sketched import apply_sketch, inline_anyway
from compiler.scheduling.tile import Tile, read_once
from compiler.scheduling.tile_config import TileChoice, retile
from compiler.scheduling.turned import turn_squares
from compiler.scheduling.turned_sums import with_terms
from compiler.symbolic import Index, Quasi, Var
from compiler.target.registry import Target, kind_of
from compiler.tensor.expr import (
    BinOp,
    Buffer,
    Call,
    CallExtern,
    Cast,
    Expr,
    Gather,
    IndexValue,
    Load,
    loads,
    walk,
)
from compiler.tensor.simplify import simplify
from compiler.tensor.stmt import For, PrimFunc, Store, stores
from compiler.types.dtypes import DType

FEW = 64
"""Nodes of an expression that is computed for several vectors at once."""

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
    left: dict[str, TileChoice | Sketch],
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
        if not tile_chosen and (taken := schedule_matrices(s, stage, target, constants)):
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
            apply_tile(s, stage, tile, target.fma, target.architecture.caches, row_bytes)
    for stage in s.stages():
        _decompose(s, stage)
    for stage in s.stages():
        if watcher is not None:
            watcher.looped(s, stage)
        if isinstance(chosen := left.get(stage), Sketch):
            apply_sketch(s, stage, chosen)
            del left[stage]
        else:
            _vectorize(s, stage, target)
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


def _vectorize(s: Schedule, stage: str, target: Target) -> None:
    """Vectorize an elementwise stage (a perfect nest of serial loops) along its last axis, or its
    last two if the last is that short."""
    found = s.stage_stores(stage)
    ((store, path, home), *more) = found
    if more or store.update or not path or any(f.kind != "serial" for f in path) or len(home) != 1:
        return
    last = path[-1]
    if (
        works_on_codes(store) or last.body is not home
    ):  # in a condition, which all lanes would share
        return
    widest = _widest(store, target)
    lanes = target.vector_bytes // min(4, widest)
    if not _is_line(store, path, widest) and _vectorize_pair(s, store, path, target):
        return
    if turn_squares(s, store, path, target):
        return
    ((store, path, home),) = s.stage_stores(stage)  # its loops may have been cut
    if not any(_hinders_lanes(e) for e in walk(store.value)):
        store, path = fuse_short_rows(s, store, path, lanes, target.vectors_at_once)
    last = path[-1]
    n = last.extent.constant()
    whole = n is not None and n <= 2 * lanes
    if n is not None and n < 2:
        return
    if not _contiguous(store, last.var, whole, lanes) and not _picked(store, last.var, target):
        return
    if whole:
        s.vectorize(last.var.name)
        return
    plain = _moves_plainly(store, last.var)
    outer, inner = s.split(last.var.name, lanes)
    s.peel(outer)
    few = n is not None and sum(1 for _ in walk(store.value)) <= FEW
    several = min(target.vectors_at_once, (n or 0) // lanes) if few else 1
    if several > 1:
        outer, beside = s.split(outer, several)
        s.peel(outer)
        (s.vectorize if plain else s.unroll)(beside)
    for loop, _, _ in s.find(inner):
        # What is left of an extent that is known at run time only goes one by one.
        loop.kind = "serial" if loop.extent.constant() is None else "vector"


def _widest(store: Store, target: Target) -> int:
    """Bytes of the widest element that a statement computes with; integers alone, and what is
    looked up in tables of bytes, count as less than 4, and without vectors only the latter."""
    nodes = list(walk(store.value))
    looked_up = any(isinstance(e, Gather) for e in nodes)
    dtypes = [e.dtype for e in nodes if not (looked_up and isinstance(e, Cast))]

    def width(d: DType) -> int:
        narrow = d.nbytes == 1 if looked_up else d.is_integer or d.kind == "bool"
        return d.nbytes if narrow and (looked_up or not target.scalar) else max(4, d.nbytes)

    return max(width(d) for d in [store.buffer.dtype, *dtypes])


def _is_line(store: Store, path: tuple[For, ...], widest: int) -> bool:
    """Whether the two innermost loops go along one line in all that a statement reads and writes,
    elements of one width: they are better one loop than a vector of a few rows."""
    return len(path) > 1 and store.buffer.dtype.nbytes == widest and one_line(store, path[-2:])


def _moves_plainly(store: Store, v: Var) -> bool:
    """Whether all data is read as `v` goes, or not moved by it: other patterns, and rows that are
    looked up, are recognized in one loop of lanes, not in two."""
    nodes = list(walk(store.value))
    flats = [e.buffer.flat(e.idx) for e in nodes if isinstance(e, Load)]
    odd = any(isinstance(e, Gather | IndexValue) for e in nodes)
    return not odd and all(x.terms.get(v, 0) in (0, 1) and not _hides(x, v) for x in flats)


def _vectorize_pair(s: Schedule, store: Store, path: tuple[For, ...], target: Target) -> bool:
    """Vectorize a short last axis together with the one before it, where the result is contiguous
    over both, and so is the data, or (for the shortest) neighbours along the latter are neighbours
    in the data."""
    if len(path) < 3 or path[-1] not in path[-2].body:
        return False
    x, last = path[-2:]
    n, wide = last.extent.constant(), x.extent.constant()
    step = target.vector_bytes // store.buffer.dtype.nbytes // (n or 1)
    out = store.buffer.flat(store.idx)
    fits = n is not None and wide is not None and n >= 2 and 2 <= step <= wide
    if n is None or not fits or out.terms.get(x.var) != n:
        return False
    for e in walk(store.value):
        if isinstance(e, Load):
            flat = e.buffer.flat(e.idx)
            odd = [a for a in flat.terms if not isinstance(a, Var) and a.leaves() - {last.var}]
            contiguous = (flat.terms.get(x.var), flat.terms.get(last.var)) == (n, 1)
            if odd or not (contiguous or (n <= 4 and flat.terms.get(x.var) == 1)):
                return False
        elif _hinders_lanes(e):
            return False
    if out.terms.get(last.var) != 1 or _hides(out, x.var) or _hides(out, last.var):
        return False
    outer, inner = s.split(x.var.name, step)
    s.vectorize(inner, last.var.name)
    s.peel(outer)
    return True


def _contiguous(store: Store, v: Var, whole: bool, lanes: int) -> bool:
    """Whether neighbours along `v` are neighbours in memory, or their distances are known at build
    time, as all of `v` becomes the lanes of one vector (`whole`), or vectors of `lanes` hold whole
    pieces in which several read the same, or every so manieth."""
    out = store.buffer.flat(store.idx)
    if out.terms.get(v) != 1 or _hides(out, v):
        return False
    rows = [n for n in walk(store.value) if isinstance(n, Gather) and n.row(v) is not None]
    apart = {id(e) for n in rows for e in walk(n)}
    for n in walk(store.value):
        if id(n) in apart:
            continue
        if isinstance(n, Load):
            flat = n.buffer.flat(n.idx)
            hiding = [a for a in flat.terms if not isinstance(a, Var) and v in a.leaves()]
            alone = all(a.leaves() == {v} if whole else _in_pieces(a, v, lanes) for a in hiding)
            if flat.terms.get(v, 0) not in (0, 1) or (_hides(flat, v) and not alone):
                return False
        elif _hinders_lanes(n):
            return False
    return True


def _picked(store: Store, v: Var, target: Target) -> bool:
    """Whether neighbours along `v` are neighbours in the result, and what they are made of can be
    picked out of the data, lane by lane: that is quicker than to compute them one by one."""
    out = store.buffer.flat(store.idx)
    nodes = list(walk(store.value))
    return (
        target.vector_bytes >= 32
        and out.terms.get(v) == 1
        and not _hides(out, v)
        and not any(isinstance(e, CallExtern) for e in nodes)
        and not any(isinstance(e, Load) and e.dtype.nbytes < 4 for e in nodes)
    )


def _in_pieces(a: Quasi, v: Var, lanes: int) -> bool:
    """Whether a position is v // n or v % n, and n divides `lanes`."""
    return a.op in ("//", "%") and a.a == v and lanes % (a.b.constant() or lanes + 1) == 0


def _hinders_lanes(e: Expr) -> bool:
    """Whether lanes do `e` one by one, other than a look-up in a table for every byte (or in a row,
    see `_contiguous`)."""
    return isinstance(e, (CallExtern, Gather, IndexValue)) and not (
        isinstance(e, Gather) and e.byte is not None
    )


def _hides(flat: Index, v: Var) -> bool:
    return any(v in a.leaves() for a in flat.terms if not isinstance(a, Var))


def _grids(
    f: PrimFunc, target: Target, constants: Collection[Buffer] = (), choices: Choice | None = None
) -> None:
    from compiler.scheduling.grid import schedule_grids

    schedule_grids(f, target, constants, choices)


SCHEDULES: dict[str, DefaultSchedule] = {"cpu": schedule_default, "cuda": _grids}
"""Kind of machine (`TargetKind.schedules`) -> how loop nests are scheduled for it by default."""
