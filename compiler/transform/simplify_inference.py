"""SimplifyInference: removes what only training needs, and operators that change nothing."""

from __future__ import annotations

import numpy as np

from compiler.ir.expr import Atom, Binding, Call, Constant, Function, IRModule, tensor_type
from compiler.op.elementwise import ADD, MULTIPLY
from compiler.op.facts import Moves
from compiler.op.nn.norm import BATCH_NORM
from compiler.passes.manager import FunctionPass, PassContext
from compiler.passes.rewrite import Rewriter, call, op_of, same_type, typed
from compiler.transform.fold_batch_norm import affine_of, channel_axis, folds_into
from compiler.types.dtypes import Array


def _identity(b: Binding) -> Atom | None:
    """The operand that the binding's value equals, or None."""
    v = b.value
    op = op_of(v)
    if not isinstance(v, Call) or op is None or not v.args:
        return None
    first = v.args[0]
    if op.in_order and same_type(first, b.var):
        return first
    if op.moves is Moves.PERMUTE:
        rank = tensor_type(first).rank
        axes = tuple(a % rank for a in v.attrs.axes or reversed(range(rank)))
        return first if axes == tuple(range(rank)) else None
    return None


def _scale_and_shift(r: Rewriter, b: Binding) -> bool:
    """Write a batch_norm with constant statistics, which cannot be folded, as multiply and add."""
    v = b.value
    if not isinstance(v, Call) or v.op is not BATCH_NORM:
        return False
    change = affine_of(v)
    if change is None or change.scale is None or change.shift is None:
        return False
    t = tensor_type(b.var)
    axis = v.attrs.axis % t.rank
    made = folds_into(r, change.data)
    if made is not None and channel_axis(made.value, t.rank) == axis:
        return False
    shape = [-1 if k == axis else 1 for k in range(axis, t.rank)]

    def constant(values: Array) -> Constant:
        with np.errstate(over="ignore"):
            return Constant(values.reshape(shape).astype(t.dtype.storage), t.dtype)

    product = call(MULTIPLY, change.data, constant(change.scale))
    scaled = r.emit(typed(r.fresh(f"{b.var.name}_scale"), product, b.origins))
    r.emit(Binding(b.var, call(ADD, scaled, constant(change.shift)), b.origins))
    return True


def simplify(f: Function) -> Function:
    """`f` without identities and without batch_norm that FoldBatchNorm would leave."""
    r = Rewriter(f)
    for b in map(r.read, f.bindings):
        same = _identity(b)
        if same is not None and r.alias(b, same):
            continue
        if not _scale_and_shift(r, b):
            r.keep(b)
    return r.finish()


class SimplifyInference(FunctionPass):
    """Removes operators that change nothing; writes a lone batch_norm as scale and shift."""

    name = "SimplifyInference"
    opt_level = 0
    required = ("InferType",)

    def transform_function(self, f: Function, mod: IRModule, ctx: PassContext) -> Function:
        """See simplify."""
        return simplify(f)
