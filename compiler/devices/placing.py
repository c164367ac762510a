"""Annotations: values of a program are said to be computed on devices, by hand, by the names of
nodes, or by pattern."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any

from compiler.errors import InputError, unknown
from compiler.ir.devices import ON_DEVICE, is_called
from compiler.ir.expr import Atom, Binding, Call, Function, IRModule, TupleGetItem, Var, names_in
from compiler.ir.substitution import substitute
from compiler.op.library import get_op
from compiler.op.opdef import OpDef
from compiler.pattern.search import FunctionScope, Matchable, Mismatch, match
from compiler.transform.preparation import prepare
from compiler.types.names import unique

Where = Mapping[str | Matchable, str]
"""Name of a node, with `*` for any letters, or a pattern -> the device that shall compute it."""


def on_device(value: Any, device: str) -> Any:
    """An expression whose operator shall be computed on a device."""
    from compiler.ir.expression import call

    return call(ON_DEVICE, value, device=device)


def place(mod: IRModule, where: Where) -> IRModule:
    """A module whose main says which devices compute its values. It is simplified first, as `build`
    does: an annotation stands between operators, which would not become one then.

    Args:
        mod: the module; annotations that are there stay.
        where: names of nodes (of the imported model; without such, of values; `*` stands for any
            letters) or patterns (`compiler.pattern`: all operators that one goes through) -> name
            of a device. Of several that fit a value, the first counts.

    Raises:
        InputError: nothing has such a name, or fits a pattern; names the nearest.
    """
    mod = prepare(mod)
    f = mod.main
    found: dict[Var, str] = {}
    scope = FunctionScope(f)
    for what, device in where.items():
        some = _named(f, what) if isinstance(what, str) else _fitting(f, what, scope)
        if not some and isinstance(what, str):
            known = [n for b in f.bindings if _operator(b) for n in _names(b)]
            raise InputError(unknown("node", what, known))
        if not some:
            raise InputError(f"nothing in main fits the pattern for device {device!r}")
        for b in some:
            found.setdefault(b.var, device)
    return mod.with_function("main", _annotated(f, found))


def _operator(b: Binding) -> bool:
    computed = isinstance(b.value, Call) and isinstance(b.value.op, OpDef)
    return computed and not is_called(b.value, ON_DEVICE)


def _names(b: Binding) -> tuple[str, ...]:
    return b.origins or (b.var.name,)


def _named(f: Function, name: str) -> list[Binding]:
    return [b for b in f.bindings if _operator(b) and any(fnmatchcase(n, name) for n in _names(b))]


def _fitting(f: Function, pattern: Matchable, scope: FunctionScope) -> list[Binding]:
    out: dict[int, Binding] = {}
    for b in f.bindings:
        found = match(pattern, b.var, scope)
        if not isinstance(found, Mismatch):
            out.update((id(m), m) for m in found.bindings if _operator(m))
    return list(out.values())


def _annotated(f: Function, where: Mapping[Var, str]) -> Function:
    """The function with what is said of its values; readers read what is annotated."""
    op, names = get_op(ON_DEVICE), names_in(f)
    where = dict(where)
    for b in f.bindings:  # of several results, the first that is taken says it
        if isinstance(b.value, TupleGetItem) and b.value.value in where:
            where[b.var] = where.pop(b.value.value)
    new: dict[Var, Atom] = {}
    bindings: list[Binding] = []
    for b in f.bindings:
        if b.var not in where:
            bindings.append(replace(b, value=substitute(b.value, new)))
            continue
        computed, said = b.var, Var(unique(f"{b.var.name}_placed", names), b.var.type)
        if b.var in f.results:  # whose names callers know
            computed, said = said, b.var
        attrs = op.make_attrs(device=where[b.var])
        bindings.append(replace(b, var=computed, value=substitute(b.value, new)))
        bindings.append(Binding(said, Call(op, (computed,), attrs), b.origins))
        new[b.var] = said
    results = [new.get(r, r) if isinstance(r, Var) else r for r in f.results]
    return f.with_body(bindings, results)
