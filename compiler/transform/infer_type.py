"""InferType: gives every binding's variable the type of its value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from compiler.errors import TypeInferenceError
from compiler.ir.expr import (
    Binding,
    Call,
    Constant,
    Function,
    IRModule,
    Tuple,
    TupleGetItem,
    Value,
    Var,
    atom_type,
    operands,
    substitute,
)
from compiler.ir.types import TupleType, Type
from compiler.transform.passes import FunctionPass, PassContext, register_pass


def infer_value(value: Value) -> Type:
    """Type of a value whose operands have types.

    Raises:
        TypeInferenceError: the operands do not fit the operator.
    """
    types: Sequence[Type] = [atom_type(a) for a in operands(value)]
    if isinstance(value, Call):
        if isinstance(value.op, Function):
            return value.op.type.result
        return value.op.infer_type(value.attrs, types)
    if isinstance(value, Tuple):
        return TupleType(tuple(types))
    if isinstance(value, TupleGetItem):
        (t,) = types
        if not isinstance(t, TupleType) or not 0 <= value.index < len(t.fields):
            raise TypeInferenceError(f"{t} has no field {value.index}")
        return t.fields[value.index]
    return types[0]


def infer_function(f: Function) -> Function:
    """`f` with every variable typed (the same object if nothing changed).

    Raises:
        TypeInferenceError: shows the printed program with the error at the offending binding.
    """
    mapping: dict[Var, Var | Constant] = {}
    bindings: list[Binding] = []
    for p in f.params:
        if p.type is None:
            raise TypeInferenceError(f"parameter %{p.name} has no type")
    for b in f.bindings:
        value = substitute(b.value, mapping)
        if isinstance(value, Call) and isinstance(value.op, Function):
            inner = infer_function(value.op)
            value = value if inner is value.op else replace(value, op=inner)
        try:
            t = infer_value(value)
        except TypeInferenceError as e:
            from compiler.ir.printer import function_text

            shown = function_text(f, "main", error_at=b, error=str(e))
            raise TypeInferenceError(f"{e} (at %{b.var.name})\n{shown}") from None
        if value is b.value and b.var.type == t:
            bindings.append(b)
            continue
        var = b.var if b.var.type == t else Var(b.var.name, t)
        if var is not b.var:
            mapping[b.var] = var
        bindings.append(replace(b, var=var, value=value))
    if all(a is b for a, b in zip(bindings, f.bindings, strict=True)):
        return f
    results = [mapping.get(r, r) if isinstance(r, Var) else r for r in f.results]
    return f.with_body(bindings, results)


@register_pass
class InferType(FunctionPass):
    """Infers the type of every binding."""

    name = "InferType"

    def transform_function(self, f: Function, mod: IRModule, ctx: PassContext) -> Function:
        """See infer_function."""
        return infer_function(f)
