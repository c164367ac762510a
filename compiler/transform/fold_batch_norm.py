"""FoldBatchNorm: scale and shift per channel after a convolution or dense layer move into it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from compiler.ir.expr import (
    Atom,
    Binding,
    Call,
    Constant,
    Function,
    IRModule,
    Value,
    Var,
    tensor_type,
)
from compiler.op.facts import Contraction
from compiler.passes.manager import FunctionPass, PassContext
from compiler.passes.rewrite import Rewriter, op_of, same_type, union
from compiler.types.dtypes import Array


@dataclass(frozen=True, eq=False)
class Affine:
    """`data * scale + shift` with float64 values per channel (or one for all); None: 1 or 0."""

    data: Var
    scale: Array | None
    shift: Array | None


def layer(value: Value | None) -> Contraction | None:
    """The contraction that `value` calls, if its weights are rows, one for each output channel, as
    those of a convolution or a dense layer."""
    op = op_of(value)
    of = None if op is None else op.contraction
    return of if of is not None and of.by_rows else None


def channel_axis(value: Value, rank: int) -> int:
    """The axis of a layer's result, of `rank`, that its weights' first axis gives."""
    of = layer(value)
    assert of is not None
    return of.channels % rank


def along(c: Constant, axis: int, rank: int) -> Array | None:
    """The constant's values along `axis`, if it broadcasts to `rank` and varies along no other."""
    if c.data.ndim > rank:
        return None
    shape = (1,) * (rank - c.data.ndim) + c.data.shape
    if any(d != 1 for k, d in enumerate(shape) if k != axis):
        return None
    return c.data.astype(np.float64).reshape(-1)


def affine_of(value: Call) -> Affine | None:
    """`value` as a scale and shift along its attribute `axis`: gamma / sqrt(var + epsilon) and beta
    - mean * scale of a batch_norm of constants, a bias_add's bias."""
    op, (data, *others) = op_of(value), value.args
    constants = [a.data.astype(np.float64) for a in others if isinstance(a, Constant)]
    if op is None or op.affine is None or len(constants) < len(others):
        return None
    if not isinstance(data, Var) or not tensor_type(data).dtype.is_float:
        return None
    found = op.affine(value.attrs, constants, False)
    return None if found is None else Affine(data, *found)


def affine(value: Call, axis: int, rank: int) -> Affine | None:
    """`value` as a scale and shift along `axis` of its data operand, or None."""
    op = op_of(value)
    if op is None or op.affine is None:
        return None
    if hasattr(value.attrs, "axis"):
        return affine_of(value) if value.attrs.axis % rank == axis else None
    first, second = value.args
    flipped = isinstance(first, Constant)
    data, other = (second, first) if flipped else (first, second)
    if not isinstance(data, Var) or not isinstance(other, Constant):
        return None
    c = along(other, axis, rank)
    found = None if c is None else op.affine(value.attrs, [c], flipped)
    return None if found is None else Affine(data, *found)


def folds_into(r: Rewriter, data: Atom) -> Binding | None:
    """The binding of `data` if it is a weighted operator into which a scale can be folded.

    It must be read once, have constant weights (and bias), and compute in float32 or float64.
    """
    made = r.producer(data)
    if made is None or not r.used_once(made.var) or layer(made.value) is None:
        return None
    call = made.value
    assert isinstance(call, Call)
    dtype = tensor_type(made.var).dtype
    same = all(tensor_type(a).dtype == dtype for a in call.args)
    constant = all(isinstance(a, Constant) for a in call.args[1:])
    return made if dtype.is_float and dtype.bits >= 32 and same and constant else None


def fold_batch_norms(f: Function) -> Function:
    """`f` with scales and shifts folded (the same object if there are none)."""
    r = Rewriter(f)
    for b in map(r.read, f.bindings):
        folded = _fold(r, b)
        if folded is None:
            r.keep(b)
        else:
            r.emit(folded)
    return r.finish()


def _fold(r: Rewriter, b: Binding) -> Binding | None:
    if not isinstance(b.value, Call) or isinstance(b.value.op, Function):
        return None
    for a in b.value.args:
        made = folds_into(r, a)
        if made is None or not same_type(made.var, b.var):
            continue
        rank = tensor_type(made.var).rank
        change = affine(b.value, channel_axis(made.value, rank), rank)
        if change is None or change.data is not made.var:
            return None
        assert isinstance(made.value, Call)
        call = scaled(made.value, change)
        # the merged value keeps the name of the last of the two, so that results keep theirs
        return Binding(b.var, call, union(made.origins, b.origins)) if call else None
    return None


def scaled(call: Call, change: Affine) -> Call | None:
    """The weighted call with scale and shift of its result in its weights, which are constants;
    None if they would not be finite."""
    data, weight, *rest = call.args
    assert isinstance(weight, Constant)
    units = weight.data.shape[0]
    bias = rest[0].data.astype(np.float64) if rest and isinstance(rest[0], Constant) else None
    if change.scale is not None:
        scale = np.broadcast_to(change.scale, (units,))
        if not np.isfinite(scale).all():
            return None
        columns = scale.reshape(-1, *[1] * (weight.data.ndim - 1))
        product = np.empty(weight.data.shape, weight.dtype.storage)
        # In blocks: the whole in float64 would take longer to put into memory than to compute.
        np.multiply(weight.data, columns, out=product, dtype=np.float64, casting="same_kind")
        weight = Constant(product, weight.dtype)
        bias = None if bias is None else bias * scale
    if change.shift is not None:
        shift = np.broadcast_to(change.shift, (units,))
        bias = shift if bias is None else bias + shift
    args: tuple[Atom, ...] = (data, weight)
    if bias is not None:
        args += (Constant(bias.astype(weight.dtype.storage), weight.dtype),)
    return Call(call.op, args, call.attrs)


class FoldBatchNorm(FunctionPass):
    """Folds batch_norm, and scales and shifts by constants, into preceding conv2d and dense."""

    name = "FoldBatchNorm"
    opt_level = 2
    required = ("InferType",)

    def transform_function(self, f: Function, mod: IRModule, ctx: PassContext) -> Function:
        """See fold_batch_norms."""
        return fold_batch_norms(f)
