"""Which stages of a kernel may run at the same time: those that do not meet in memory."""

from __future__ import annotations

from collections.abc import Sequence

from compiler.symbolic import Index
from compiler.tensor.expr import Buffer
from compiler.tensor.stmt import For, Stmt, accesses, walk_stmts

Regions = dict[Buffer, list[tuple[Index, ...] | None]]


def joined(body: Sequence[Stmt]) -> list[bool]:
    """For each stage, whether threads may begin it before they have all finished the one before it
    and those that this one was joined to. Only stages with parallel loops are."""
    out: list[bool] = []
    together: list[Stmt] = []
    for s in body:
        shared = any(isinstance(x, For) and x.kind == "parallel" for x, _, _ in walk_stmts([s]))
        joins = shared and bool(together) and all(independent(t, s) for t in together)
        together = [*together, s] if joins else [s] if shared else []
        out.append(joins)
    return out


def independent(a: Stmt, b: Stmt) -> bool:
    """Whether neither statement reads what the other writes, and they write to different places."""
    (reads_a, writes_a), (reads_b, writes_b) = _regions(a), _regions(b)
    if writes_a.keys() & reads_b.keys() or writes_b.keys() & reads_a.keys():
        return False
    return all(
        _apart(p, q)
        for buffer in writes_a.keys() & writes_b.keys()
        for p in writes_a[buffer]
        for q in writes_b[buffer]
    )


def _regions(s: Stmt) -> tuple[Regions, Regions]:
    reads: Regions = {}
    writes: Regions = {}
    for buffer, idx, write, _ in accesses([s]):
        if buffer.scope == "global":
            (writes if write else reads).setdefault(buffer, []).append(idx)
    return reads, writes


def _apart(p: tuple[Index, ...] | None, q: tuple[Index, ...] | None) -> bool:
    """Whether two accesses differ along some axis, whatever the loop variables are."""
    if p is None or q is None:
        return False
    for i, j in zip(p, q, strict=True):
        (i_low, i_high), (j_low, j_high) = i.range(), j.range()
        if i_high is not None and j_low is not None and i_high < j_low:
            return True
        if j_high is not None and i_low is not None and j_high < i_low:
            return True
    return False
