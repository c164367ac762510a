"""SignBytes: bytes between operators of integers become those that the target multiplies.

FoldZeroPoint gives a dot product of signed bytes x - 128 for unsigned x (or the reverse): a copy,
where something else reads x, too. Here x itself becomes int8, with its zero point, if the operator
that makes it and all that read it say which integer stands for zero (`OpDef.zeros`), or keep values
as they are. No real value changes. Inputs, outputs and constants keep their dtypes.
"""

from __future__ import annotations

from dataclasses import replace

from compiler.ir.expr import Binding, Call, Function, IRModule, Var, operands, tensor_type, uses
from compiler.op.facts import Moves, Zeros
from compiler.op.opdef import OpDef, Quantized
from compiler.passes.manager import FunctionPass, PassContext
from compiler.types.dtypes import INT8, UINT8, DType
from compiler.types.tensor_types import TensorType


class SignBytes(FunctionPass):
    """Bytes of the other signedness become bytes of the one that dot products take."""

    name = "SignBytes"
    opt_level = 1
    required = ("InferType",)

    def __init__(self, data: DType = INT8):
        """`data`: the bytes that are multiplied, uint8 or int8."""
        self.data = data

    def transform_function(self, f: Function, mod: IRModule, ctx: PassContext) -> Function:
        """The function with bytes of `data` where it can have them."""
        found = _changeable(f, UINT8 if self.data == INT8 else INT8)
        if not any(_multiplied(b, v) for v, read in found.items() for b in read):
            return f
        new = {v: Var(v.name, tensor_type(v).with_dtype(self.data)) for v in found}
        bindings = [_changed(b, new, self.data) for b in f.bindings]
        return f.with_body(bindings, f.results)


def _changeable(f: Function, given: DType) -> dict[Var, list[Binding]]:
    """Values of dtype `given` that can be of another, and what reads them."""
    read = uses(f)
    made = {b.var: b for b in f.bindings if _holds(b.var, given)}
    found = {v: [r for r in read.get(v, ()) if r] for v in made if None not in read.get(v, ())}
    while True:
        kept = {
            v: readers
            for v, readers in found.items()
            if _makes(made[v], found, given) and all(_takes(r, v, found, given) for r in readers)
        }
        if len(kept) == len(found):
            return kept
        found = kept


def _holds(v: object, dtype: DType) -> bool:
    t = getattr(v, "type", None)
    return isinstance(t, TensorType) and t.dtype == dtype


def _op(b: Binding) -> OpDef | None:
    v = b.value
    op = v.op if isinstance(v, Call) else None
    return op if isinstance(op, OpDef) and not op.effect else None


def _zeros(b: Binding) -> Zeros | None:
    v, op = b.value, _op(b)
    if not isinstance(v, Call) or op is None or op.zeros is None:
        return None
    return op.zeros if op.zeros.holds(v.attrs) else None


def _keeps(b: Binding, found: dict[Var, list[Binding]], given: DType) -> bool:
    """Whether the result holds values of the operands, and all of these can change."""
    op = _op(b)
    if op is None or op.quantized != Quantized.SAME or not _holds(b.var, given):
        return False
    atoms = operands(b.value)
    several = len(atoms) > 1 and op.moves is not Moves.JOIN
    return not several and all(isinstance(a, Var) and a in found for a in atoms)


def _makes(b: Binding, found: dict[Var, list[Binding]], given: DType) -> bool:
    zeros = _zeros(b)
    return (zeros is not None and bool(zeros.result)) or _keeps(b, found, given)


def _takes(b: Binding, v: Var, found: dict[Var, list[Binding]], given: DType) -> bool:
    zeros = _zeros(b)
    if zeros is not None and v not in operands(b.value)[len(zeros.operands) :]:
        return True
    return b.var in found and _keeps(b, found, given)


def _multiplied(b: Binding, v: Var) -> bool:
    op = _op(b)
    return op is not None and op.contraction is not None and v in operands(b.value)[:2]


def _changed(b: Binding, new: dict[Var, Var], data: DType) -> Binding:
    v, op = b.value, _op(b)
    if not isinstance(v, Call) or op is None:
        return b
    args = tuple(new.get(a, a) if isinstance(a, Var) else a for a in v.args)
    if b.var not in new and args == v.args:
        return b
    by = -128 if data == INT8 else 128
    attrs, shifted = v.attrs, {}
    if (zeros := _zeros(b)) is not None:
        for name, a in zip(zeros.operands, v.args, strict=False):
            if name and a in new:
                shifted[name] = getattr(attrs, name) + by
        if b.var in new and zeros.result:
            for name in (zeros.result, "qmin", "qmax"):
                shifted[name] = getattr(attrs, name) + by
            attrs = replace(attrs, out_dtype=str(data))
    return replace(b, var=new.get(b.var, b.var), value=Call(op, args, replace(attrs, **shifted)))
