"""Control flow in another number format: types change inside and outside alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from compiler.errors import UnsupportedError
from compiler.ir.expr import (
    Call,
    Cases,
    Construct,
    Function,
    GlobalVar,
    If,
    Loop,
    Match,
    Value,
    Var,
    nested,
)
from compiler.ir.substitution import with_nested
from compiler.types.data import Form, Pattern, Several, TypeDef, parts
from compiler.types.dtypes import DType
from compiler.types.tensor_types import DataType, FuncType, TensorType, TupleType, Type, TypeVar


def with_dtype(t: Type, old: DType, new: DType) -> Type:
    """`t` with one dtype in place of another."""
    if isinstance(t, TensorType):
        return t.with_dtype(new) if t.dtype == old else t
    if isinstance(t, TupleType):
        return TupleType(tuple(with_dtype(x, old, new) for x in t.fields))
    if isinstance(t, DataType):
        return DataType(t.name, tuple(with_dtype(x, old, new) for x in t.args))
    if isinstance(t, TypeVar):
        return t
    params = tuple(with_dtype(x, old, new) for x in t.params)
    return FuncType(params, with_dtype(t.result, old, new))


def with_dtype_defined(d: TypeDef, old: DType, new: DType) -> TypeDef:
    """An algebraic data type whose fields have one dtype in place of another."""
    constructors = (
        replace(c, fields=tuple(with_dtype(t, old, new) for t in c.fields)) for c in d.constructors
    )
    return replace(d, constructors=tuple(constructors))


def with_dtype_matched(p: Pattern, old: DType, new: DType) -> Pattern:
    """A pattern of values of types with one dtype in place of another."""
    if not isinstance(p, Form | Several):
        return p
    fields = tuple(with_dtype_matched(x, old, new) for x in p.fields)
    if isinstance(p, Several):
        return Several(fields)
    return replace(p, definition=with_dtype_defined(p.definition, old, new), fields=fields)


def speaks_of(
    t: Type, dtype: DType, types: Mapping[str, TypeDef], seen: frozenset[Type] = frozenset()
) -> bool:
    """Whether values of type `t`, as `types` define it, hold tensors of `dtype`."""
    if isinstance(t, TensorType):
        return t.dtype == dtype
    if t in seen:
        return False
    inside = list(parts(t))
    if isinstance(t, DataType):
        inside += [x for c in types[t.name].constructors for x in c.fields]
    return any(speaks_of(x, dtype, types, seen | {t}) for x in inside)


def is_control(value: Value) -> bool:
    """Whether a value is a branch, loop or closure, calls a function, or is of an algebraic data
    type."""
    if isinstance(value, Call):
        return isinstance(value.op, GlobalVar | Var)
    return isinstance(value, If | Loop | Cases | Construct | Function | GlobalVar | Match)


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
    if isinstance(value, Construct):
        types = None if value.types is None else tuple(with_dtype(t, old, new) for t in value.types)
        return replace(
            value, definition=with_dtype_defined(value.definition, old, new), types=types
        )
    if isinstance(value, Cases):
        patterns = tuple(with_dtype_matched(p, old, new) for p in value.patterns)
        value = replace(value, patterns=patterns)
    return with_nested(value, [inside(f) for f in nested(value)])


def _function(g: GlobalVar, old: DType, new: DType) -> GlobalVar:
    if g.name == "main":
        raise UnsupportedError("@main is called: give the function that is called another name")
    t = None if g.type is None else with_dtype(g.type, old, new)
    return GlobalVar(g.name, t if isinstance(t, FuncType) else None)
