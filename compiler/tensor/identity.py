"""Text that tells programs apart: two PrimFuncs with the same text compute the same.

The printed PrimFunc refers to buffers, loops and bound values by name. Where names repeat, what
they refer to is written out behind it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

from compiler.symbolic import Index, Var
from compiler.tensor.expr import Expr, Gather, IndexValue, Let, LetVar, Load, walk
from compiler.tensor.stmt import Buffer, For, Intrin, PrimFunc, accesses, stores, walk_stmts


def program_text(f: PrimFunc) -> str:
    """The text of `f`, the contents of its tables and the instructions of its intrinsics."""
    parts = [str(f)]
    for b in buffers(f):
        if b.data is not None:
            content = hashlib.sha256(b.data.tobytes()).hexdigest()
            parts.append(f"{b.name}: {b.data.dtype}{b.data.shape} {content}")
    used = {s.intrin for s, _, _ in walk_stmts(f.body) if isinstance(s, Intrin)}
    parts += sorted(i.emitted for i in used)
    if _names_repeat(f):
        order: dict[object, int] = {}
        parts.append(" ".join(str(order.setdefault(x, len(order))) for x in _references(f)))
    return "\n".join(parts)


def buffers(f: PrimFunc) -> list[Buffer]:
    """Every buffer of `f`, the sources of packed parameters included, each once."""
    named = [*f.params, *f.temps, *(p.source for p in f.packed.values())]
    return list(dict.fromkeys([*named, *(b for b, *_ in accesses(f.body))]))


def _names_repeat(f: PrimFunc) -> bool:
    """Whether two buffers, two bound values, or a loop and something around or in it share a
    name."""
    names = [b.name for b in buffers(f)]
    bound = {n.var for e in _values(f) for n in walk(e) if isinstance(n, Let)}
    inner = {v.name for v in bound}
    if len(names) > len(set(names)) or len(bound) > len(inner):
        return True
    dims = {v.name for v in f.dims}
    for s, path, _ in walk_stmts(f.body):
        own = s.vars.values() if isinstance(s, Intrin) else [s.var] if isinstance(s, For) else []
        around = [v.name for v in (*(x.var for x in path), *own)]
        if len(around) > len(set(around)) or set(around) & (dims | inner):
            return True
    return False


def _values(f: PrimFunc) -> Iterator[Expr]:
    for s in stores(f.body):
        yield s.value
        if s.init is not None:
            yield s.init


def _references(f: PrimFunc) -> Iterator[object]:
    """What the names in the text stand for, in order of appearance."""
    yield from buffers(f)
    for p in f.packed.values():
        yield from p.vars
        for i in p.idx:
            yield from _variables(i)
    for s, _, _ in walk_stmts(f.body):
        if isinstance(s, For):
            yield s.var
            yield from _variables(s.extent)
            continue
        if isinstance(s, Intrin):
            yield from s.vars.values()
    for s in stores(f.body):
        yield s.buffer
        for i in s.idx:
            yield from _variables(i)
    for e in _values(f):
        yield from _in_value(e)


def _in_value(e: Expr) -> Iterator[object]:
    for n in walk(e):
        if isinstance(n, (Load, Gather)):
            yield n.buffer
        if isinstance(n, Load):
            for i in n.idx:
                yield from _variables(i)
        elif isinstance(n, IndexValue):
            yield from _variables(n.index)
        elif isinstance(n, Let):
            yield n.var
        elif isinstance(n, LetVar):
            yield n


def _variables(i: Index) -> Iterator[Var]:
    for atom in i.terms:
        if isinstance(atom, Var):
            yield atom
        else:
            yield from _variables(atom.a)
            yield from _variables(atom.b)
