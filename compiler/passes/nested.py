"""Passes over functions go through the functions in them, which read variables of the enclosing
ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from compiler.ir.expr import Atom, Function, IRModule, Var, nested
from compiler.ir.substitution import substitute_function, with_nested

Transform = Callable[[Function], Function]


def through_nested(f: Function, transform: Transform) -> Function:
    """`f` transformed, the functions in it first, as if what they capture were parameters."""
    bindings = []
    for b in f.bindings:
        inside = nested(b.value)
        new = with_nested(b.value, [_closed(g, transform) for g in inside]) if inside else b.value
        bindings.append(b if new is b.value else replace(b, value=new))
    if any(a is not b for a, b in zip(bindings, f.bindings, strict=True)):
        f = f.with_body(bindings, f.results)
    return transform(f)


def through_all(mod: IRModule, transform: Transform) -> None:
    """Every graph function of a module and those in them, transformed for what that tells: the
    module stays as it is."""
    for f in mod.functions.values():
        if isinstance(f, Function):
            through_nested(f, transform)


def _closed(g: Function, transform: Transform) -> Function:
    captures = g.captures
    given = replace(g, params=(*captures, *g.params)) if captures else g
    made = through_nested(given, transform)
    if made is given:
        return g
    count = len(captures)
    opened = replace(made, params=made.params[count:])
    mapping: dict[Var, Atom] = dict(zip(made.params[:count], captures, strict=True))
    return substitute_function(opened, mapping)
