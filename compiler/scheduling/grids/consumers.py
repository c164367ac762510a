"""Elementwise readers of reductions, computed by the thread that has the sum in a register: the sum
never goes through memory, and there is one kernel where there were two."""

from __future__ import annotations

from collections.abc import Sequence

from compiler.scheduling import Schedule
from compiler.scheduling.select import consumer
from compiler.scheduling.tile import is_product
from compiler.target.registry import Target
from compiler.tensor.expr import Buffer
from compiler.tensor.stmt import For, Stmt, Store, accesses, clone
from compiler.types.dtypes import FLOAT32


def join_consumers(s: Schedule, target: Target) -> list[str]:
    """Compute each reduction that only an elementwise stage over the same axes reads, at the same
    position, in that stage's innermost loop; returns the names of such reductions."""
    return [stage for stage in s.stages() if _join(s, stage, target)]


def contracted(store: Store, target: Target) -> str:
    """The update of a reduction in a register: products of float32 are added in one rounding."""
    fused = target.fma and store.buffer.dtype == FLOAT32 and is_product(store)
    return "Fma" if fused and store.update == "Add" else store.update


def reader_of(s: Schedule, stage: str) -> Store | None:
    """The elementwise stage that a reduction can be computed in; None: there is none."""
    ((store, path, _), *more) = s.stage_stores(stage)
    if more or not store.update or store.init is None or not path or path[0] not in s.func.body:
        return None
    own = [next(iter(i.vars()), None) for i in store.idx]
    loops = {f.var for f in path}
    if not own or any(v not in loops or i != v for v, i in zip(own, store.idx, strict=True)):
        return None
    reader = consumer(s, store)
    if reader is None or sum(x.buffer is store.buffer for x in _stores(s)) > 1:
        return None
    ((_, around, home),) = s.stage_stores(reader.stage)
    plain = around and around[0] in s.func.body and all(f.kind == "serial" for f in around)
    if not plain or len(home) != 1 or _between(s.func.body, path[0], around[0], store):
        return None
    return reader


def _join(s: Schedule, stage: str, target: Target) -> bool:
    reader = reader_of(s, stage)
    if reader is None:
        return False
    ((store, path, _),) = s.stage_stores(stage)
    axes = {f.var.name for f in path[: len(store.idx)]}
    last = s.loops(reader.stage)[-1]
    s.compute_at(stage, last)
    ((inner, _, _),) = s.find(last)
    _without_axes(inner.body, axes)
    ((moved, _, _),) = s.stage_stores(stage)
    moved.update = contracted(moved, target)
    return True


def _without_axes(body: list[Stmt], axes: set[str]) -> None:
    """Leave out the loops of one iteration that were over the elements of a reduction; in place."""
    while isinstance(loop := body[0], For) and loop.var.name in axes:
        body[:1] = [clone(x, {loop.var: 0}) for x in loop.body]


def _stores(s: Schedule) -> list[Store]:
    return [x for name in s.stages() for x, _, _ in s.stage_stores(name)]


def _between(body: Sequence[Stmt], first: For, last: For, store: Store) -> bool:
    """Whether what a reduction reads is stored to between it and its reader."""
    places = {id(x): k for k, x in enumerate(body)}
    begin, end = places[id(first)], places[id(last)]
    read: set[Buffer] = {b for b, _, stored, _ in accesses([first]) if not stored}
    later = accesses(list(body[begin + 1 : end + 1]))
    return end < begin or any(stored and b in read for b, _, stored, _ in later)


__all__ = ["contracted", "join_consumers", "reader_of"]
