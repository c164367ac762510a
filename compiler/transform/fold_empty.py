"""FoldEmpty: tensors without elements are constants, and what is computed of them alone is too."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from compiler.ir.expr import (
    Atom,
    Binding,
    Call,
    Constant,
    Function,
    IRModule,
    Tuple,
    Value,
    Var,
    atom_type,
    tensor_type,
)
from compiler.ir.function_calls import is_callee
from compiler.ir.substitution import substitute
from compiler.op.facts import Moves
from compiler.op.opdef import OpDef
from compiler.types.tensor_types import TensorType, TupleType


def without_empty(mod: IRModule) -> IRModule:
    """`mod`, typed, without operators that give a tensor without elements, or take only such ones:
    schedules and kernels are made for one element at least. Concatenations lose empty parts.

    Raises:
        InputError: an operator has no value for an operand without elements.
    """
    f = mod.main
    if not any(map(_touches_none, (*f.params, *(b.var for b in f.bindings)))):
        return mod
    return mod.with_function("main", _folded(f))


def _is_empty(a: Atom) -> bool:
    t = atom_type(a)
    return isinstance(t, TensorType) and _has_none(t)


def _touches_none(v: Var) -> bool:
    t = atom_type(v)
    fields = t.fields if isinstance(t, TupleType) else (t,)
    return any(isinstance(x, TensorType) and _has_none(x) for x in fields)


def _has_none(t: TensorType) -> bool:
    return t.size == 0 and all(isinstance(d, int) for d in t.shape)


def _nothing(t: TensorType) -> Constant:
    return Constant(np.empty(t.static_shape, t.dtype.storage), t.dtype)


def _folded(f: Function) -> Function:
    known: dict[Var, Atom] = {p: _nothing(tensor_type(p)) for p in f.params if _is_empty(p)}
    bindings: list[Binding] = []
    for b in f.bindings:
        value = _simpler(substitute(b.value, known), b.var)
        if isinstance(value, Constant | Var):
            known[b.var] = value
        else:
            bindings.append(replace(b, value=value))
    results = tuple(known.get(r, r) if isinstance(r, Var) else r for r in f.results)
    return replace(f, bindings=tuple(bindings), results=results)


def _simpler(value: Value, out: Var) -> Value:
    """What `value`, the value of `out`, is with as few tensors without elements as may be."""
    from compiler.interpret.graph import call_reference

    if not isinstance(value, Call) or not isinstance(value.op, OpDef):
        return value
    if is_callee(value) or value.op.effect:
        return value
    t = atom_type(out)
    types = t.fields if isinstance(t, TupleType) else (t,)
    if all(isinstance(x, TensorType) and _has_none(x) for x in types):
        found = [_nothing(x) for x in types if isinstance(x, TensorType)]
    elif not any(map(_is_empty, value.args)):
        return value
    elif all(isinstance(a, Constant) for a in value.args):
        given = [a.data for a in value.args if isinstance(a, Constant)]
        result = call_reference(value, given, out, {})
        arrays = result if isinstance(result, tuple) else (result,)
        found = [
            Constant(np.asarray(a), x.dtype)
            for a, x in zip(arrays, types, strict=True)
            if isinstance(x, TensorType)
        ]
    elif value.op.moves is Moves.JOIN:
        kept = tuple(a for a in value.args if not _is_empty(a))
        return kept[0] if len(kept) == 1 else replace(value, args=kept)
    else:
        return value
    return Tuple(tuple(found)) if isinstance(t, TupleType) else found[0]
