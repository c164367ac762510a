"""Values and functions that read other atoms."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from compiler.ir.expr import (
    Atom,
    Binding,
    Call,
    Cases,
    Constant,
    Construct,
    Function,
    GlobalVar,
    If,
    Loop,
    Match,
    Tuple,
    TupleGetItem,
    Value,
    Var,
    captured_operands,
    direct_operands,
    nested,
    operands,
)
from compiler.types.names import unique


def with_nested(value: Value, functions: Iterable[Function]) -> Value:
    """`value` with other functions in it."""
    new = tuple(functions)
    if all(a is b for a, b in zip(new, nested(value), strict=True)):
        return value
    if isinstance(value, If):
        return If(value.condition, *new)
    if isinstance(value, Cases):
        return replace(value, bodies=new)
    return replace(value, body=new[0]) if isinstance(value, Loop) else new[0]


def with_operands(value: Value, atoms: Iterable[Atom]) -> Value:
    """`value` reading `atoms` instead."""
    new = tuple(atoms)
    if new == operands(value):
        return value
    if isinstance(value, Call):
        if isinstance(value.op, Var):
            called, *args = new
            if not isinstance(called, Var):
                raise TypeError(f"%{value.op.name} is called, and cannot be a constant")
            return replace(value, op=called, args=tuple(args))
        return replace(value, args=new)
    if isinstance(value, Tuple):
        return Tuple(new)
    if isinstance(value, Construct):
        return replace(value, fields=new)
    if isinstance(value, (TupleGetItem, Match)):
        return replace(value, value=new[0])
    if isinstance(value, (Var, Constant, GlobalVar)):
        return new[0]
    count = len(direct_operands(value))
    mapping = dict(zip(captured_operands(value), new[count:], strict=True))
    value = with_nested(value, (substitute_function(f, mapping) for f in nested(value)))
    if isinstance(value, If):
        return replace(value, condition=new[0])
    if isinstance(value, Cases):
        return replace(value, value=new[0])
    return replace(value, go=new[0], init=new[1:count]) if isinstance(value, Loop) else value


def substitute(value: Value, mapping: Mapping[Var, Atom]) -> Value:
    """`value` with variables replaced."""
    return with_operands(
        value, (mapping.get(a, a) if isinstance(a, Var) else a for a in operands(value))
    )


def substitute_function(f: Function, mapping: Mapping[Var, Atom]) -> Function:
    """`f` with captured variables replaced; its own get other names where they would be confused
    with the new ones."""
    wanted = {v: mapping[v] for v in f.captures if mapping.get(v, v) is not v}
    if not wanted:
        return f
    own = [*f.params, *(b.var for b in f.bindings)]
    captured = {a.name for v in f.captures if isinstance(a := wanted.get(v, v), Var)}
    taken = {v.name for v in own} | captured
    renamed = {v: Var(unique(v.name, taken), v.type) for v in own if v.name in captured}
    full: dict[Var, Atom] = {**wanted, **renamed}
    bindings = tuple(
        Binding(renamed.get(b.var, b.var), substitute(b.value, full), b.origins) for b in f.bindings
    )
    return Function(
        tuple(renamed.get(p, p) for p in f.params),
        bindings,
        tuple(full.get(r, r) if isinstance(r, Var) else r for r in f.results),
        f.attrs,
    )
