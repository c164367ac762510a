"""Modules that use what other modules define."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from compiler.errors import DtypelabError
from compiler.ir.call_graph import globals_of
from compiler.ir.expr import Call, Cases, Construct, Function, IRModule, nested
from compiler.types.data import TypeDef, definitions_in, parts
from compiler.types.tensor_types import DataType, Type


def linked(mod: IRModule, using: IRModule) -> IRModule:
    """`mod` with the types and functions of `using` that it needs, directly or through others, and
    does not define itself.

    Raises:
        DtypelabError: both define a type of one name differently, or a function that another
            function needs.
    """
    if not using.functions and not using.types:
        return mod
    functions = dict(mod.functions)
    ahead = [name for name, f in functions.items() if isinstance(f, Function)]
    while ahead:
        caller = ahead.pop()
        for name in sorted(globals_of(mod.with_functions(functions)[caller])):
            f = using.functions.get(name)
            if name not in functions and isinstance(f, Function):
                functions[name] = f
                ahead.append(name)
            elif f is not None and caller not in mod.functions and name in mod.functions:
                raise DtypelabError(f"@{caller} calls @{name}, which the program defines anew")
    used = {name for f in functions.values() if isinstance(f, Function) for name in _types(f)}
    used |= {name for d in mod.types.values() for name in _named(d)}
    missing = [name for name in used if name not in mod.types]
    while missing:
        name = missing.pop()
        if name in using.types:
            more = _named(using.types[name])
            missing += [n for n in more if n not in used]
            used |= more
    for name, d in mod.types.items():
        if name in used and using.types.get(name, d) != d:
            raise DtypelabError(f"type {name} is defined twice, and differently")
    types = {n: d for n, d in using.types.items() if n in used} | dict(mod.types)
    return replace(mod, functions=functions, types=types)


def _named(d: TypeDef) -> set[str]:
    """The types that the fields of a definition name."""
    return {name for c in d.constructors for t in c.fields for name in _names(t)}


def _names(t: Type | None) -> Iterator[str]:
    if t is None:
        return
    if isinstance(t, DataType):
        yield t.name
    for x in parts(t):
        yield from _names(x)


def _types(f: Function) -> Iterator[str]:
    """The types that a function names, and the functions in it."""
    for v in (*f.params, *(b.var for b in f.bindings)):
        yield from _names(v.type)
    for b in f.bindings:
        value = b.value
        if isinstance(value, Construct):
            yield value.definition.name
            for t in value.types or ():
                yield from _names(t)
        if isinstance(value, Cases):
            yield from (d.name for p in value.patterns for d in definitions_in(p))
        if isinstance(value, Call) and isinstance(value.op, Function):
            yield from _types(value.op)
        for g in nested(value):
            yield from _types(g)
