"""Carrying out what a sketch says of a stage whose elements are computed one by one."""

from __future__ import annotations

import math
from collections.abc import Sequence

from compiler.errors import ScheduleError
from compiler.lowering.custom_dtypes import works_on_codes
from compiler.scheduling import Schedule
from compiler.scheduling.choices import OF_A_STAGE, Sketch
from compiler.scheduling.tile import is_product
from compiler.tensor.expr import Gather, Load, walk
from compiler.tensor.stmt import For, Store

MOST_LANES = 256
"""Lanes of all vectors of one statement: a square of as many as there are registers for."""
MOST_UNROLLED = 64
"""Statements of a body that is written out."""


def loops_of(s: Schedule, stage: str) -> tuple[Store, tuple[For, ...]] | None:
    """The statement and the loops of a stage of which a sketch may decide; None: it is none.

    It is a perfect nest of serial loops, whose iterations each compute an element of their own.
    """
    ((store, path, home), *more) = s.stage_stores(stage)
    if more or store.update or store.init is not None or not path or len(home) != 1:
        return None
    chain = zip(path, [*path[1:], store], strict=True)  # with nothing between, as a condition
    nest = all(f.body == [inner] and f.kind == "serial" for f, inner in chain)
    if not nest or path[-1].body is not home or path[0] not in s.func.body:
        return None
    used = [v for i in store.idx for v in i.vars()]
    if any(f.extent != 1 and f.var not in used for f in path):
        return None  # the last of several iterations counts, that is, their order
    others = (n.idx for n in walk(store.value) if isinstance(n, Load) and n.buffer is store.buffer)
    return (store, path) if all(idx == store.idx for idx in others) else None


def apply_sketch(s: Schedule, stage: str, sketch: Sketch) -> None:
    """Cut, reorder, vectorize and unroll the loops of a stage.

    Raises:
        ScheduleError: the sketch does not fit; says why.
    """
    found = loops_of(s, stage)
    if found is None:
        raise ScheduleError(f"stage {stage} is not one of which a sketch decides")
    store, path = found
    if len(path) < sketch.fused:
        raise ScheduleError(f"stage {stage}: it has {len(path)} loops, not {sketch.fused} to fuse")
    fuse_innermost(s, path, sketch.fused)
    ((store, path, _),) = s.stage_stores(stage)
    if problem := _problem(sketch, store, path):
        raise ScheduleError(f"stage {stage}: {problem}")
    outer = [f.var.name for f in path]
    order = sketch.order or range(len(outer))
    inner: dict[int, str] = {}
    lanes = []
    for k, size in sketch.tiles:
        outer[k], inner[k] = s.split(outer[k], size)
    between = []
    for k, size in sketch.lanes:
        home = inner if k in inner else dict(enumerate(outer))
        several, lane = s.split(home[k], size)
        if k in inner:
            inner[k] = several
        else:
            outer[k] = several
        between.append(several)
        lanes.append(lane)
    tiles = [inner[k] for k, _ in sketch.tiles]
    s.reorder(*(outer[k] for k in order), *tiles, *lanes)
    unrolled = tiles[len(tiles) - sketch.unrolled :]
    s.unroll(*unrolled)
    for name in (*outer, *(n for n in between if n not in outer and n not in unrolled)):
        s.peel(name)
    s.vectorize(*lanes)


def fuse_innermost(s: Schedule, path: Sequence[For], count: int) -> None:
    """Make the last `count` loops of a perfect nest one, called as the last of them."""
    last = path[-1].var.name
    for f in reversed(path[len(path) - count : -1] if count else ()):
        s.fuse(f.var.name, last, last)


def _problem(sketch: Sketch, store: Store, path: tuple[For, ...]) -> str:
    """What is wrong with a sketch; empty: nothing."""
    if wrong := sorted(set(sketch.taken) - OF_A_STAGE):
        return f"{', '.join(wrong)} can be chosen for the whole loop nest only"
    every, extents = set(range(len(path))), [f.extent.constant() for f in path]
    if any(f.extent.vars() & {g.var for g in path} for f in path):
        return "the extents of its loops depend on each other"
    if sketch.order and sorted(sketch.order) != sorted(every):
        return f"order must have each of its {len(path)} loops once"
    sizes = dict(sketch.tiles)
    for what, pairs in (("tiles", sketch.tiles), ("lanes", sketch.lanes)):
        named = [k for k, _ in pairs]
        if len(set(named)) < len(named) or not set(named) <= every:
            return f"{what} must name different loops of its {len(path)}"
        for k, size in pairs:
            most = sizes.get(k, extents[k]) if what == "lanes" else extents[k]
            if most is None:
                return f"the extent of loop {k} is known only when it runs"
            if not 1 <= size <= most:
                return f"{what} of loop {k} must be within 1 and {most}, not {size}"
    lanes = math.prod(size for _, size in sketch.lanes)
    if len(sketch.lanes) > 2 or lanes > MOST_LANES:
        return f"{lanes} lanes of {len(sketch.lanes)} loops are too many"
    if lanes > 1 and works_on_codes(store):
        return "it works on codes, one by one"
    if sketch.unrolled > len(sketch.tiles):
        return f"it has {len(sketch.tiles)} tiles, of which {sketch.unrolled} cannot be unrolled"
    mine = dict(sketch.lanes)
    written_out = sketch.tiles[len(sketch.tiles) - sketch.unrolled :]
    body = math.prod(-(-size // mine.get(k, 1)) for k, size in written_out)
    return f"{body} statements are too many to write out" if body > MOST_UNROLLED else ""


def inline_anyway(s: Schedule, stage: str, readers: Sequence[Store]) -> None:
    """Compute an elementwise stage where it is read, although the rules would not.

    Raises:
        ScheduleError: that is not possible, or would change how a sum of products is rounded.
    """
    sums = [x for x in readers if x.update]
    gathered = (n for x in readers for e in (x.value, x.init) if e is not None for n in walk(e))
    ((store, _, _),) = s.stage_stores(stage)
    if not readers or any(isinstance(n, Gather) and n.buffer is store.buffer for n in gathered):
        raise ScheduleError(f"stage {stage} is not read at positions that are known")
    before = any(is_product(x) for x in sums)
    s.compute_inline(stage)
    if before or any(is_product(x) for x in sums):
        raise ScheduleError(f"stage {stage} is part of a sum of products")


__all__ = ["apply_sketch", "inline_anyway", "loops_of"]
