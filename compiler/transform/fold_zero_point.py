"""FoldZeroPoint: moves the zero point of integer convolutions and dense layers into the bias.

sum((x - z) * w) = sum(x * w) - z * sum(w): with constant weights the second term is a constant per
output channel. Padding then holds z itself. The inner loop multiplies plain bytes, which is what
dot product instructions do. They take unsigned data: int8 x becomes x + 128, and so does its zero
point. On CPUs whose instructions take signed data uint8 x becomes x - 128.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from compiler.ir.expr import Binding, Call, Constant, Function, IRModule, Var, names_in, tensor_type
from compiler.op.accumulator_width import width
from compiler.op.qnn.quantize import TO_SIGNED, TO_UNSIGNED
from compiler.passes.manager import FunctionPass, PassContext
from compiler.transform.fold_batch_norm import layer
from compiler.types.dtypes import INT8, INT16, UINT8, Array, DType
from compiler.types.names import unique


class FoldZeroPoint(FunctionPass):
    """Bias -= zero point * sum of the weights, for integer operators with constant weights."""

    name = "FoldZeroPoint"
    opt_level = 1
    required = ("InferType",)

    def __init__(self, data: DType = UINT8):
        """`data`: the bytes that are multiplied, uint8 or int8."""
        self.data = data

    def transform_function(self, f: Function, mod: IRModule, ctx: PassContext) -> Function:
        """The function with zero points folded."""
        names = names_in(f)
        bindings = [new for b in f.bindings for new in _fold(b, names, self.data)]
        if len(bindings) == len(f.bindings) and all(map(_is, bindings, f.bindings)):
            return f
        return f.with_body(bindings, f.results)


def _is(a: object, b: object) -> bool:
    return a is b


def _fold(b: Binding, names: set[str], wanted: DType) -> list[Binding]:
    v = b.value
    if not isinstance(v, Call) or layer(v) is None:
        return [b]
    padded, fills = any(getattr(v.attrs, "padding", ())), hasattr(v.attrs, "padding_value")
    if padded and not fills:  # padding could not hold the zero point
        return [b]
    limit = width(v.attrs.accumulate)
    if limit is not None and limit.saturates:  # at every step, of what x - z gives
        return [b]
    z = v.attrs.input_zero_point
    data, weight, *bias = v.args
    given = tensor_type(data).dtype
    other = given in (INT8, UINT8) and given != wanted
    if not (z or other) or not isinstance(weight, Constant) or not isinstance(data, Var):
        return [b]
    if weight.dtype not in (INT8, INT16) or not all(isinstance(c, Constant) for c in bias):
        return [b]
    first: list[Binding] = []
    if other:
        first = [_shifted(data, b.origins, names, wanted)]
        data = first[0].var
        z += 128 if wanted == UINT8 else -128
    taps = tuple(range(1, weight.data.ndim))
    before: Array = np.zeros((), np.int64)
    if bias and isinstance(bias[0], Constant):
        before = bias[0].data
    total = before - z * weight.data.astype(np.int64).sum(axis=taps)
    dtype = DType.parse(v.attrs.out_dtype)
    # int32 wraps, as the accumulator does.
    folded = Constant(total.astype(np.int64).astype(dtype.storage), dtype)
    attrs = replace(v.attrs, input_zero_point=0)
    if fills:
        attrs = replace(attrs, padding_value=z)
    return [*first, replace(b, value=Call(v.op, (data, weight, folded), attrs))]


def _shifted(x: Var, origins: tuple[str, ...], names: set[str], wanted: DType) -> Binding:
    op, what = (TO_UNSIGNED, "unsigned") if wanted == UINT8 else (TO_SIGNED, "signed")
    name = unique(f"{x.name}_{what}", names)
    var = Var(name, tensor_type(x).with_dtype(wanted))
    return Binding(var, Call(op, (x,), op.make_attrs()), origins)
