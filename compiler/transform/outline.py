"""Bindings of a function as a function of their own, and the order of what is left."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from compiler.ir.effects import effectful
from compiler.ir.expr import (
    Atom,
    Binding,
    Call,
    Constant,
    Function,
    Tuple,
    TupleGetItem,
    Var,
    operands,
)
from compiler.ir.substitution import substitute
from compiler.op.opdef import OpDef
from compiler.op.sizes import MATCH_SHAPE
from compiler.transform.instantiate import sizes_in

Plain = Call | Tuple | TupleGetItem | Var | Constant


def outlined(
    members: Sequence[Binding], results: Sequence[Var], attrs: Mapping[str, Any]
) -> tuple[Function, tuple[Var, ...]]:
    """A function of `members` (in program order, without functions that capture), and what it is
    called with: the variables that they read from elsewhere. Constants stay inside, and all values
    keep their names."""
    inside = {b.var for b in members}
    given = dict.fromkeys(
        a for b in members for a in operands(b.value) if isinstance(a, Var) and a not in inside
    )
    new: dict[Var, Atom] = {v: Var(v.name, v.type) for v in (*given, *(b.var for b in members))}

    def renamed(v: Var) -> Var:
        atom = new[v]
        assert isinstance(atom, Var)
        return atom

    bindings = [Binding(renamed(b.var), substitute(b.value, new), b.origins) for b in members]
    f = Function(tuple(map(renamed, given)), tuple(bindings), tuple(map(renamed, results)), attrs)
    return f, tuple(given)


def dependencies(f: Function) -> list[set[int]]:
    """For each binding, the positions of those that must come before it: of what it reads, and of
    the last one that finds sizes or has effects, for another such one, and for what has sizes that
    the parameters do not tell."""
    place = {b.var: k for k, b in enumerate(f.bindings)}
    known = sizes_in(Function((*f.params, *f.captures), (), ()))
    out, last = [], None
    for k, b in enumerate(f.bindings):
        needed = {place[a] for a in operands(b.value) if isinstance(a, Var) and a in place}
        sizes = sizes_in(Function((), (b,), ())) - known
        read = sizes_in(Function(_variables(b), (), ()))
        finds = _calls_others(b) or not sizes <= read
        if last is not None and (finds or (sizes and isinstance(b.value, Call))):
            needed.add(last)
        if finds:
            last = k
        out.append(needed)
    return out


def _variables(b: Binding) -> tuple[Var, ...]:
    return tuple(a for a in operands(b.value) if isinstance(a, Var) and a.type is not None)


def _calls_others(b: Binding) -> bool:
    """Whether it may have effects, or find sizes."""
    v = b.value
    op = v.op if isinstance(v, Call) else None
    known = op is None or (isinstance(op, OpDef | Function) and op is not MATCH_SHAPE)
    return not isinstance(v, Plain) or not known or effectful(v)


def ordered(before: Sequence[Iterable[int]]) -> list[int] | int:
    """The numbers from 0, each after those that are `before` it, and as they are where that leaves
    it open (A. Kahn, 1962); or one that is before itself, through others."""
    left = [set(some) for some in before]
    after: dict[int, list[int]] = {}
    for k, some in enumerate(left):
        for j in some:
            after.setdefault(j, []).append(k)
    ready = [k for k, some in enumerate(left) if not some]
    out: list[int] = []
    heapq.heapify(ready)
    while ready:
        k = heapq.heappop(ready)
        out.append(k)
        for j in after.get(k, ()):
            left[j].discard(k)
            if not left[j]:
                heapq.heappush(ready, j)
    if len(out) == len(left):
        return out
    k, seen = next(k for k, some in enumerate(left) if some), set()
    while k not in seen:  # back, over what is not ready either, until a number comes up again
        seen.add(k)
        k = min(left[k])
    return k
