"""Which symbolic dimensions types and functions speak of."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any

from compiler.ir.expr import Call, Function, Loop, nested
from compiler.op.sizes import MATCH_SHAPE
from compiler.symbolic import Index
from compiler.symbolic import Var as Dim
from compiler.types.tensor_types import TensorType, TupleType, Type


def dims_of(t: Type | None) -> set[Dim]:
    """The dimensions that a value of type `t` shows; a function shows none, and neither does a
    value of an algebraic data type, which may hold nothing."""
    if isinstance(t, TensorType):
        return set().union(*(d.vars() for d in t.shape if isinstance(d, Index)))
    if isinstance(t, TupleType):
        return set().union(*map(dims_of, t.fields))
    return set()


def introduced(f: Function) -> set[Dim]:
    """The dimensions in the types of a function's variables, and of the functions in it."""
    out = set().union(*(dims_of(p.type) for p in f.params))
    for b in f.bindings:
        out |= dims_of(b.var.type)
        if isinstance(b.value, Loop) and b.value.count:
            out.add(Dim(b.value.count))
        if isinstance(b.value, Call) and b.value.op is MATCH_SHAPE:
            out |= in_attrs(b.value.attrs)
        for g in nested(b.value):
            if not isinstance(b.value, Function):
                out |= introduced(g)
    return out


def needed(f: Function) -> set[Dim]:
    """The dimensions that running the operators of `f` may take: those of types and attributes."""
    out = introduced(f)
    for b in f.bindings:
        if isinstance(b.value, Call):
            out |= in_attrs(b.value.attrs)
    return out


def in_attrs(attrs: Any) -> set[Dim]:
    """The dimensions that an operator's attributes speak of."""
    if not is_dataclass(attrs):
        return set()
    values = [getattr(attrs, x.name) for x in fields(attrs)]
    flat = [y for x in values for y in (x if isinstance(x, tuple) else (x,))]
    return set().union(*(y.vars() for y in flat if isinstance(y, Index)))
