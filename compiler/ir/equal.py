"""structural_equal: whether two modules are the same program up to the identity of their nodes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from compiler.ir.expr import (
    Call,
    Cases,
    Constant,
    Construct,
    Function,
    GlobalVar,
    IRModule,
    Loop,
    Match,
    TupleGetItem,
    Var,
    nested,
    operands,
)
from compiler.target.intrinsics.emission import program_text


def structural_equal(a: IRModule, b: IRModule) -> bool:
    """Same functions, definitions of types, names, types, operators, attributes, constants (bit for
    bit) and origins."""
    return (
        a.functions.keys() == b.functions.keys()
        and dict(a.attrs) == dict(b.attrs)
        and dict(a.types) == dict(b.types)
        and all(_functions(f, b.functions[n]) for n, f in a.functions.items())
    )


def _functions(f: Any, g: Any) -> bool:
    if not isinstance(f, Function) or not isinstance(g, Function):
        if isinstance(f, Function) or isinstance(g, Function):
            return False
        same_name = replace(f, name=g.name)
        return f.attrs == g.attrs and program_text(same_name) == program_text(g)
    return (
        [(p.name, p.type) for p in f.params] == [(p.name, p.type) for p in g.params]
        and dict(f.attrs) == dict(g.attrs)
        and len(f.bindings) == len(g.bindings)
        and len(f.results) == len(g.results)
        and all(
            x.var.name == y.var.name
            and x.var.type == y.var.type
            and x.origins == y.origins
            and _values(x.value, y.value)
            for x, y in zip(f.bindings, g.bindings, strict=True)
        )
        and all(_atoms(x, y) for x, y in zip(f.results, g.results, strict=True))
    )


def _values(x: Any, y: Any) -> bool:
    if type(x) is not type(y):
        return False
    if isinstance(x, Call):
        same_op = _functions(x.op, y.op) if isinstance(x.op, Function) else _callees(x.op, y.op)
        if not same_op or x.attrs != y.attrs:
            return False
    if isinstance(x, TupleGetItem) and x.index != y.index:
        return False
    if isinstance(x, GlobalVar):
        return bool(x.name == y.name)
    if isinstance(x, Loop) and x.count != y.count:
        return False
    if isinstance(x, Match) and x.type != y.type:
        return False
    if isinstance(x, Cases) and x.patterns != y.patterns:
        return False
    if isinstance(x, Construct) and x.constructor != y.constructor:
        return False
    xs, ys = operands(x), operands(y)
    return (
        len(xs) == len(ys)
        and all(map(_atoms, xs, ys))
        and all(map(_functions, nested(x), nested(y)))
    )


def _callees(x: Any, y: Any) -> bool:
    if isinstance(x, (GlobalVar, Var)):
        return type(x) is type(y) and bool(x.name == y.name)
    return x is y


def _atoms(x: Any, y: Any) -> bool:
    if isinstance(x, Var) and isinstance(y, Var):
        return x.name == y.name
    return (
        isinstance(x, Constant)
        and isinstance(y, Constant)
        and x.dtype == y.dtype
        and x.data.shape == y.data.shape
        and x.data.tobytes() == y.data.tobytes()
    )
