"""Control flow in another number format: types change inside and outside alike."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from compiler.errors import UnsupportedError
from compiler.ir.expr import Call, Function, GlobalVar, If, Loop, Match, Value, Var, nested
from compiler.ir.substitution import with_nested
from compiler.types.dtypes import DType
from compiler.types.tensor_types import FuncType, TensorType, TupleType, Type


def with_dtype(t: Type, old: DType, new: DType) -> Type:
    """`t` with one dtype in place of another."""
    if isinstance(t, TensorType):
        return t.with_dtype(new) if t.dtype == old else t
    if isinstance(t, TupleType):
        return TupleType(tuple(with_dtype(x, old, new) for x in t.fields))
    params = tuple(with_dtype(x, old, new) for x in t.params)
    return FuncType(params, with_dtype(t.result, old, new))


def is_control(value: Value) -> bool:
    """Whether a value is a branch, loop or closure, or calls a function."""
    if isinstance(value, Call):
        return isinstance(value.op, GlobalVar | Var)
    return isinstance(value, If | Loop | Function | GlobalVar | Match)


def retyped_control(
    value: Value, old: DType, new: DType, inside: Callable[[Function], Function]
) -> Value:
    """`value`, whose operands are retyped already; `inside` retypes the functions in it.

    Raises:
        UnsupportedError: it calls `main`, whose inputs keep their dtypes.
    """
    if isinstance(value, Call) and isinstance(value.op, GlobalVar):
        return replace(value, op=_function(value.op, old, new))
    if isinstance(value, GlobalVar):
        return _function(value, old, new)
    if isinstance(value, Match) and value.type.dtype == old:
        return Match(value.value, value.type.with_dtype(new))
    return with_nested(value, [inside(f) for f in nested(value)])


def _function(g: GlobalVar, old: DType, new: DType) -> GlobalVar:
    if g.name == "main":
        raise UnsupportedError("@main is called: give the function that is called another name")
    t = None if g.type is None else with_dtype(g.type, old, new)
    return GlobalVar(g.name, t if isinstance(t, FuncType) else None)
