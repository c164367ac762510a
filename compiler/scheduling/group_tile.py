"""Sums of groups, scaled and added up: three stages, as products with weights that have a scale for
every few inputs are written, become one loop nest whose sums stay in registers.

    sums[i, n, g] = reduction over what belongs to group g
    parts[i, n, g] = sums[i, n, g] * scales[n, g]
    acc[i, n] = sum over g of parts[i, n, g]

Lanes go along n, and weights and scales are packed in the order in which they are walked, so that
all of them are read once for every tile of rows. The order of both sums stays as it is written.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, replace

from compiler.scheduling import Schedule
from compiler.scheduling.select import consumer
from compiler.scheduling.tile import reads_of
from compiler.target.intrinsics import for_target
from compiler.target.registry import Target
from compiler.tensor.expr import Buffer, Load, loads
from compiler.tensor.intrinsic import Intrinsic
from compiler.tensor.stmt import Store, stores

ALONE = 8
"""Vectors of units side by side of one row: enough sums to hide how long a multiply-add takes."""
ROWS = 4
"""Rows that share what is unpacked."""
AHEAD = 2048
"""Bytes by which scales are fetched ahead, which are read too seldom for the processor to foresee
it. Weights, which it does foresee, come up to twice as fast if nothing else asks for them."""


@dataclass(frozen=True)
class Groups:
    """The stages that were found, and the constant operands of the first two."""

    sums: str
    parts: str
    total: str
    weights: Buffer
    scales: Buffer


def schedule_groups(
    s: Schedule, stage: str, target: Target, constants: Collection[Buffer]
) -> frozenset[str]:
    """Schedule `stage` if it is the first of such stages, and the others with it; the stages that
    are done, none where it is no such stage."""
    found = _found(s, stage, constants)
    if found is None:
        return frozenset()
    ((store, path, _),) = s.stage_stores(found.total)
    units = path[len(store.idx) - 1].extent.constant() or 0
    dot = _dot_product(s, found, target)
    lanes = dot.loops["o"] if dot else math.gcd(units, target.vector_bytes // 4)
    if lanes < 4:
        return frozenset()
    s.compute_inline(found.parts)
    if store.buffer in s.func.params or consumer(s, store) is None:
        s.accumulate_apart(found.total)
    reader = consumer(s, store)
    assert reader is not None
    rows = path[-3].extent.constant() if len(path) > 2 else 1
    # Sums, of dot products totals beside them that are read as often, take half of the registers.
    several = max(target.vector_registers // ((4 if dot else 2) * ROWS), 2) if rows != 1 else ALONE
    vectors = math.gcd(units // lanes, several)
    done = [found.sums, found.total, reader.stage]
    if rows is None:  # known when it runs: fewer than share what is unpacked go one by one
        s.versions(found.total, reader.stage, len(path) - 3, ROWS, before=found.sums)
        few = replace(found, sums=f"{found.sums}.few", total=f"{found.total}.few")
        _arranged(s, found, reader.stage, lanes, vectors, dot)
        _arranged(s, few, f"{reader.stage}.few", lanes, vectors, dot, 1)
        done += [f"{name}.few" for name in done]
    else:
        _arranged(s, found, reader.stage, lanes, vectors, dot, min(rows, ROWS))
    return frozenset(done)


def _found(s: Schedule, stage: str, constants: Collection[Buffer]) -> Groups | None:
    """The three stages, if `stage` is the first of them."""
    ((store, path, _), *more) = s.stage_stores(stage)
    rank = len(store.idx)
    if more or not store.update or store.init is None or len(path) <= rank or rank < 2:
        return None
    if any(f.extent.vars() for f in path[rank:]):
        return None
    weights = [x.buffer for x in loads(store.value) if x.buffer in constants]
    parts = _only_reader(s, store)
    if parts is None or parts.update or len(weights) != 1:
        return None
    scales = [x for x in loads(parts.value) if x.buffer is not store.buffer]
    total = _only_reader(s, parts)
    if total is None or total.update != "Add" or total.init is None or len(scales) != 1:
        return None
    ((_, around, _),) = s.stage_stores(total.stage)
    plain = isinstance(total.value, Load) and len(around) == rank == len(total.idx) + 1
    if not plain or scales[0].buffer not in constants or len(scales[0].idx) != 2:
        return None
    return Groups(stage, parts.stage, total.stage, weights[0], scales[0].buffer)


def _dot_product(s: Schedule, found: Groups, target: Target) -> Intrinsic | None:
    """The target's dot product of such bytes as the first stage multiplies, whose steps divide its
    groups and whose lanes divide its units."""
    ((store, path, _),) = s.stage_stores(found.sums)
    steps, units = (path[k].extent.constant() or 1 for k in (-1, len(store.idx) - 2))
    if store.update != "Add":
        return None
    dtypes = [x.dtype for x in loads(store.value)]
    for i in for_target(target):
        fits = i.steps and steps % i.steps == 0 and units % i.loops["o"] == 0
        if fits and i.operand_dtypes == dtypes and i.computes(store.value):
            return i
    return None


def _only_reader(s: Schedule, store: Store) -> Store | None:
    """The one statement that reads a temporary, which it does once, by its own loops in order."""
    b = store.buffer
    readers = [x for x in stores(s.func.body) if any(n.buffer is b for n in reads_of(x))]
    readers = [x for x in readers if x is not store]
    if b not in s.func.temps or len(readers) != 1:
        return None
    (reader,) = readers
    ((_, path, _), *more) = s.stage_stores(reader.stage)
    places = [n.idx for n in loads(reader.value) if n.buffer is b]
    variables = [f.var for f in path]
    return reader if not more and len(places) == 1 and list(places[0]) == variables else None


def _arranged(
    s: Schedule,
    found: Groups,
    reader: str,
    lanes: int,
    vectors: int,
    dot: Intrinsic | None,
    together: int = ROWS,
) -> None:
    """Carry it out; `reader` stores the totals, of so many rows `together`."""
    *lead, units = s.loops(reader)
    ((store, _, _),) = s.stage_stores(reader)
    blocks, within = s.split(units, lanes * vectors)
    inside = []
    if lead:
        lead[-1], row = s.split(lead[-1], together, tail="shift")
        inside = [row]
    s.reorder(blocks, *lead, *inside, within)
    s.compute_at(found.total, lead[-1] if lead else blocks)
    several, lane = s.split(within, lanes)
    s.vectorize(lane)
    s.unroll(*inside, several)
    # The total over groups, and in each group its sum.
    *rest, n, g = s.loops(found.total)[-len(store.idx) - 1 :]
    several, lane = s.split(n, lanes)
    s.reorder(g, *rest, several, lane)
    s.compute_at(found.sums, g)
    _in_vectors(s, found.total, g, [*rest, several], lane)
    depth = len(store.idx) + 1
    mine = s.loops(found.sums)
    own = mine[mine.index(g) + 1 :]
    *rest, n, _ = own[:depth]
    steps = own[depth:]
    several, lane = s.split(n, lanes)
    tail = []
    if dot is not None:
        outer, inner = s.split(steps[-1], dot.steps)
        steps, tail = [*steps[:-1], outer], [inner]
    s.reorder(*steps, *own[: depth - 2], several, lane, *tail)
    _in_vectors(s, found.sums, steps[0], [*rest, several], lane, dot is None)
    if len(steps) > 1:
        s.unroll(*steps[1:])
    s.prefetch(s.pack(found.total, found.scales), AHEAD)
    s.pack(found.sums, found.weights)
    if dot is not None:
        s.tensorize(found.sums, dot)


def _in_vectors(
    s: Schedule, stage: str, first: str, tile: list[str], lane: str, lanes: bool = True
) -> None:
    """Start a reduction before loop `first`, and keep its tile in registers; not `lanes`: what it
    does becomes an instruction."""
    s.decompose_reduction(stage, first)
    known = {f.var.name for f in s.init_loops(stage)}
    s.unroll(*tile, *(f"{n}.init" for n in tile if f"{n}.init" in known))
    s.vectorize(*([lane] if lanes else []), lane + ".init")
