"""WidenBytes: data stored as int16 where a dot product of bytes would widen them every time.

A convolution or dense layer reads its data once for each few output channels. On a target whose dot
products of bytes are made of those of int16, whatever makes the data stores int16. Few weights are
kept as int16, too; others stay bytes, which are widened as they are loaded, for several pixels. No
number changes; data take twice the bytes. Signed bytes need not become unsigned then, so that this
goes before FoldZeroPoint.

Layers that are one of groups, or whose data is an input of the function, which a copy would have to
widen, stay, as do those of too few channels.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from compiler.ir.expr import Binding, Call, Constant, Function, IRModule, Var, names_in, tensor_type
from compiler.op.mixed import CAST
from compiler.passes.manager import FunctionPass, PassContext
from compiler.transform.fold_batch_norm import layer
from compiler.types.dtypes import INT8, INT16, UINT8
from compiler.types.names import unique

STEPS = 4
"""Input channels that make whole blocks of any layout."""
LEAST_OUTPUTS = 16
"""Output channels for which data are worth storing as int16."""
FEW_WEIGHTS = 1 << 16
"""Weights of a layer that may take two bytes each: an eighth less time for that."""


class WidenBytes(FunctionPass):
    """Data of integer layers in bytes become int16, where their weights are constant, and those
    too where they are few."""

    name = "WidenBytes"
    opt_level = 1
    required = ("InferType",)

    def __init__(self, widens: bool = True):
        """`widens`: whether dot products of bytes widen them, and the target has those of int16."""
        self.widens = widens

    def transform_function(self, f: Function, mod: IRModule, ctx: PassContext) -> Function:
        """The function with wider layers; itself, if it has none to widen."""
        if not self.widens:
            return f
        names, made = names_in(f), {b.var for b in f.bindings}
        wide: dict[Var, Var] = {}
        bindings: list[Binding] = []
        for b in f.bindings:
            v = b.value
            if not isinstance(v, Call) or not _gains(v) or v.args[0] not in made:
                bindings.append(b)
                continue
            data, weight, *bias = v.args
            assert isinstance(data, Var)
            if data not in wide:
                named = unique(f"{data.name}_wide", names)
                wide[data] = Var(named, tensor_type(data).with_dtype(INT16))
                cast = Call(CAST, (data,), CAST.make_attrs(dtype="int16"))
                bindings.append(Binding(wide[data], cast, b.origins))
            if isinstance(weight, Constant) and weight.data.size <= FEW_WEIGHTS:
                weight = Constant(weight.data.astype(np.int16), INT16)
            bindings.append(replace(b, value=replace(v, args=(wide[data], weight, *bias))))
        return f.with_body(bindings, f.results) if wide else f


def _gains(v: Call) -> bool:
    """Whether a call is a layer of bytes for which this is worth it."""
    if layer(v) is None or getattr(v.attrs, "groups", 1) != 1:
        return False
    data, weight, *_ = v.args
    if not isinstance(weight, Constant) or tensor_type(data).dtype not in (INT8, UINT8):
        return False
    if getattr(v.attrs, "input_bits", 0):
        return False  # so few are quicker
    exact = v.attrs.accumulate == "sequential" and v.attrs.out_dtype == "int32"
    outputs, inputs = weight.data.shape[:2]
    wide = outputs >= LEAST_OUTPUTS and inputs % STEPS == 0
    return weight.dtype == INT8 and exact and wide
