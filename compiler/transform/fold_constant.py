"""FoldConstant: calls on constants become constants, computed by the operators' own references."""

from __future__ import annotations

import numpy as np

from compiler.ir.draws import DRAW, may_round
from compiler.ir.effects import effectful
from compiler.ir.expr import (
    Atom,
    Binding,
    Call,
    Constant,
    Function,
    IRModule,
    TupleGetItem,
    Value,
    Var,
    atom_type,
    tensor_type,
)
from compiler.ir.function_calls import is_callee
from compiler.op.shapes import SHAPE_OF
from compiler.passes.manager import FunctionPass, PassContext
from compiler.passes.rewrite import Rewriter
from compiler.types.dtypes import Array
from compiler.types.tensor_types import TensorType, TupleType, Type

LARGEST_GROWTH = 64 << 20
"""A call stays when its result takes this many bytes more than its operands."""


def _bytes(t: Type) -> int | None:
    """Bytes of a value, None when a dimension is symbolic."""
    fields = t.fields if isinstance(t, TupleType) else (t,)
    total = 0
    for field in fields:
        if not isinstance(field, TensorType) or not isinstance(field.size, int):
            return None
        total += field.size * field.dtype.nbytes
    return total


def _fields(value: Value, out: Var) -> list[Array] | None:
    """The arrays (one, or a tuple's fields) that `value` always gives, or None."""
    from compiler.interpret.graph import call_reference

    t = atom_type(out)
    if not isinstance(value, Call) or isinstance(value.op, Function):
        return None
    if effectful(value) or is_callee(value):  # what a call of a program does is not known here
        return None
    if value.op is SHAPE_OF and isinstance(t, TensorType):
        shape = tensor_type(value.args[0]).shape
        if all(isinstance(d, int) for d in shape):
            return [np.asarray(shape, t.dtype.storage)]
    data = [a.data for a in value.args if isinstance(a, Constant)]
    if not data or len(data) < len(value.args):
        return None
    size = _bytes(t)
    if size is None or size - sum(a.nbytes for a in data) > LARGEST_GROWTH:
        return None
    result = call_reference(value, data, out, {})
    return list(result) if isinstance(result, tuple) else [result]


def fold_constants(f: Function) -> Function:
    """`f` with every call on constants computed (the same object if there is none)."""
    r = Rewriter(f)
    tuples: dict[Atom, list[Array]] = {}

    def fold(b: Binding) -> bool:
        v, t = b.value, atom_type(b.var)
        if isinstance(v, TupleGetItem) and v.value in tuples and isinstance(t, TensorType):
            return r.constant(b, Constant(tuples[v.value][v.index], t.dtype))
        if isinstance(v, Constant):
            return r.constant(b, v)
        arrays = None if DRAW in f.attrs and may_round(b) else _fields(v, b.var)
        if arrays is None:
            return False
        if isinstance(t, TensorType):
            return r.constant(b, Constant(np.asarray(arrays[0], order="C"), t.dtype))
        tuples[b.var] = [np.asarray(a, order="C") for a in arrays]
        return False  # dead once its fields have been replaced

    for b in map(r.read, f.bindings):
        if not fold(b):
            r.keep(b)
    return r.finish()


class FoldConstant(FunctionPass):
    """Computes calls whose operands are all constants."""

    name = "FoldConstant"
    opt_level = 2
    required = ("InferType",)

    def transform_function(self, f: Function, mod: IRModule, ctx: PassContext) -> Function:
        """See fold_constants."""
        return fold_constants(f)
