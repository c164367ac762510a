"""FoldZeroPoint: moves the zero point of integer convolutions and dense layers into the bias.

sum((x - z) * w) = sum(x * w) - z * sum(w): with constant weights the second term is a constant per
output channel. Padding then holds z itself. The inner loop multiplies plain bytes, which is what
dot product instructions do.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from compiler.dtypes import Array, DType
from compiler.ir.expr import Binding, Call, Constant, Function, IRModule
from compiler.op.opdef import OpDef
from compiler.transform.passes import FunctionPass, PassContext, register_pass

_OPS = ("nn.conv2d", "nn.dense")


@register_pass
class FoldZeroPoint(FunctionPass):
    """Bias -= zero point * sum of the weights, for integer operators with constant weights."""

    name = "FoldZeroPoint"
    opt_level = 1
    required = ("InferType",)

    def transform_function(self, f: Function, mod: IRModule, ctx: PassContext) -> Function:
        """The function with zero points folded."""
        bindings = [self._fold(b) for b in f.bindings]
        changed = any(a is not b for a, b in zip(bindings, f.bindings, strict=True))
        return f.with_body(bindings, f.results) if changed else f

    def _fold(self, b: Binding) -> Binding:
        v = b.value
        if not (isinstance(v, Call) and isinstance(v.op, OpDef) and v.op.name in _OPS):
            return b
        z = v.attrs.input_zero_point
        weight, *bias = v.args[1:]
        if not z or not isinstance(weight, Constant):
            return b
        if bias and not isinstance(bias[0], Constant):
            return b
        taps = tuple(range(1, weight.data.ndim))
        before: Array = np.zeros((), np.int64)
        if bias and isinstance(bias[0], Constant):
            before = bias[0].data
        total = before - z * weight.data.astype(np.int64).sum(axis=taps)
        dtype = DType.parse(v.attrs.out_dtype)
        # int32 wraps, as the accumulator does.
        folded = Constant(total.astype(np.int64).astype(dtype.storage), dtype)
        attrs = replace(v.attrs, input_zero_point=0)
        if v.op.name == "nn.conv2d":
            attrs = replace(attrs, padding_value=z)
        return replace(b, value=Call(v.op, (v.args[0], weight, folded), attrs))
