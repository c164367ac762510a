"""Names that say which thing is meant: printed programs refer to buffers, loops and bound values by
name, as their readers do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from compiler.symbolic import Var
from compiler.tensor.copying import Copy
from compiler.tensor.expr import Buffer, Expr, IndexValue, Let, LetVar, Load
from compiler.tensor.stmt import (
    For,
    Intrin,
    Pick,
    PrimFunc,
    Stmt,
    When,
    accesses,
    stores,
    walk_stmts,
)
from compiler.types.names import unique


def buffers(f: PrimFunc) -> list[Buffer]:
    """Every buffer of `f`, the sources of packed parameters included, each once."""
    named = [*f.params, *f.temps, *(p.source for p in f.packed.values())]
    return list(dict.fromkeys([*named, *(b for b, *_ in accesses(f.body))]))


def distinct(f: PrimFunc) -> PrimFunc:
    """`f`, or a copy in which names are changed where one would be taken for another."""
    return _Renamed(f).func(f) if _confusing(f) else f


def _confusing(f: PrimFunc) -> bool:
    names = [b.name for b in buffers(f)]
    if len(names) > len(set(names)):
        return True
    dims = {v.name for v in f.dims}
    for s, path, _ in walk_stmts(f.body):
        around = [v.name for v in (*(x.var for x in path), *_loops(s))]
        if len(around) > len(set(around)) or set(around) & dims:
            return True
    return any(_misread(e, {}) for e in values(f))


def values(f: PrimFunc) -> Iterator[Expr]:
    """What the statements of `f` store, what their sums start from, their conditions and the
    positions they pick."""
    for s in stores(f.body):
        yield s.value
        if s.init is not None:
            yield s.init
    for x, _, _ in walk_stmts(f.body):
        if isinstance(x, When):
            yield x.condition
        elif isinstance(x, Pick):
            yield x.at


def _misread(e: Expr, scope: Mapping[str, LetVar]) -> bool:
    """Whether a name in `e`, where `scope` is bound, would be taken for another."""
    if isinstance(e, LetVar):
        return scope.get(e.name) is not e
    if isinstance(e, Let):
        return _misread(e.value, scope) or _misread(e.body, {**scope, e.var.name: e.var})
    if scope and isinstance(e, (Load, IndexValue)):
        at = e.idx if isinstance(e, Load) else (e.index,)
        return any(v.name in scope for i in at for v in i.vars())
    return any(_misread(k, scope) for k in e.children())


def _loops(s: Stmt) -> list[Var]:
    """The loop variables that a statement has itself."""
    if isinstance(s, Intrin):
        return list(s.vars.values())
    return [s.var] if isinstance(s, For) else []


class _Renamed(Copy):
    def __init__(self, f: PrimFunc):
        super().__init__()
        self.taken = {v.name for v in f.dims}
        self.named: set[str] = set()
        for s, _, _ in walk_stmts(f.body):  # bound values take no name of a loop
            own = (
                s.vars.values() if isinstance(s, Intrin) else [s.var] if isinstance(s, For) else []
            )
            self.taken |= {v.name for v in own}
        self.loops: set[str] = {v.name for v in f.dims}

    def buffer(self, b: Buffer) -> Buffer:
        """A copy with a name that no other has."""
        if b not in self.buffers:
            super().buffer(b).name = unique(b.name, self.named)
        return self.buffers[b]

    def stmt(self, s: Stmt) -> Stmt:
        """A copy whose loops are named unlike those around it."""
        held = set(self.loops)
        out = super().stmt(s)
        self.loops = held
        return out

    def var(self, v: Var) -> Var:
        """A new loop variable that is named unlike the loops around it."""
        assert v.extent is not None
        new = Var(unique(v.name, self.loops), v.extent.subst(self.vars))
        self.vars[v] = new
        return new

    def name(self, v: LetVar) -> LetVar:
        """A bound value with a name of its own."""
        if v not in self.names:
            self.names[v] = LetVar(unique(v.name, self.taken), v.dtype)
        return self.names[v]
