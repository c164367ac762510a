"""Which sums a loop nest keeps in registers, and the same statements with these in memory.

Such sums may be computed by expressions that do not hold for every value, if the statements are run
again, in memory, where they did not (see `compiler.lowering.custom_dtypes`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from compiler.tensor.expr import Buffer, Expr, FloatImm, Load, rewrite
from compiler.tensor.stmt import For, Stmt, Store, accesses, clone, stores, walk_stmts


def lives(body: list[Stmt]) -> list[list[Stmt]]:
    """The statements in groups: a loop that starts and adds up sums itself; or statements that
    together start sums in registers, add them up and use them."""
    out: list[list[Stmt]] = [[]]
    added: set[Buffer] = set()
    for s in body:
        starts, adds = _register_stores(s, ""), _register_stores(s, "Add")
        if starts & adds:
            out += [[s], []]
            added = set()
            continue
        if starts & added:
            out.append([])
            added = set()
        out[-1].append(s)
        added |= adds
    return [group for group in out if group]


def register_sums(body: list[Stmt]) -> tuple[Buffer, ...]:
    """The register buffers that the statements of a group add up together, from +0 on: a sum that
    may start from -0 can be -0, whose sign deferred expressions lose."""
    apart = [s for s in body if not _register_stores(s, "") & _register_stores(s, "Add")]
    found = [x.buffer for x in stores(apart) if x.buffer in _register_stores(x, "Add")]
    starts = [x for x in stores(apart) if not x.update]
    zeros = {x.buffer for x in starts if _is_zero(x.value)}
    others = {x.buffer for x in starts if not _is_zero(x.value)}
    return tuple(b for b in dict.fromkeys(found) if b in zeros - others)


def _is_zero(e: Expr) -> bool:
    return isinstance(e, FloatImm) and e.value == 0 and math.copysign(1, e.value) > 0


def _register_stores(s: Stmt, update: str) -> set[Buffer]:
    """Buffers of lanes in registers that `s` stores to with this update."""
    return {
        x.buffer
        for x in stores([s])
        if x.buffer.scope == "register" and x.buffer.dtype.lane and x.update == update
    }


def in_memory(body: list[Stmt], to: Mapping[Buffer, Buffer] | None = None) -> list[Stmt]:
    """A copy of `body` in few instructions: what was unrolled becomes loops, registers become
    memory; `to`: which."""
    if to is None:
        to = {
            b: replace(b, name=f"{b.name}.again", scope="local", align=64)
            for b, *_ in accesses(body)
            if b.scope == "register"
        }
    out = moved(body, to)
    loops = [s for s, _, _ in walk_stmts(out) if isinstance(s, For)]
    # A partial last vector's length must be constant.
    needed = {v for s in loops if s.kind == "vector" for v in s.extent.vars()}
    for s in loops:
        if s.kind == "unroll" and s.var not in needed:
            s.kind = "serial"
        s.opaque = frozenset()
    return out


def moved(body: list[Stmt], to: Mapping[Buffer, Buffer]) -> list[Stmt]:
    """A copy of `body` with other buffers in place of some."""

    def put(e: Expr) -> Expr | None:
        return Load(to[e.buffer], e.idx) if isinstance(e, Load) and e.buffer in to else None

    out = [clone(s, {}) for s in body]
    for s, _, _ in walk_stmts(out):
        if isinstance(s, Store):
            s.buffer = to.get(s.buffer, s.buffer)
            s.value = rewrite(s.value, put)
    return out
