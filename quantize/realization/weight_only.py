"""Weights in few bits, activations in float32: what makes a model small when reading its weights is
what takes the time.

The integers are kept as int8 with a scale for each tensor, each output channel, or each group of
consecutive inputs of an output (4 bits and groups of 32 to 128 are usual). Realized, they are
dequantized in front of the layer, which computes in float32; where few rows share them, what is
built reads them packed (see `compiler.transform.pack_weights`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from compiler.ir.expr import Atom, Binding, Call, Constant
from compiler.passes import rewrite
from compiler.types.dtypes import FLOAT32, DType
from quantize.plan.params import WeightParams
from quantize.plan.scales import in_groups

if TYPE_CHECKING:
    from compiler.ir.builder import FunctionBuilder


def with_integer_weights(
    b: FunctionBuilder, binding: Binding, call: Call, params: WeightParams
) -> tuple[Call, tuple[Atom, Atom]]:
    """The layer over weights that are dequantized in front of it, by `b`, and its bias shifted; the
    integers, and the weights that they stand for."""
    weight, *bias = (a.data for a in call.args[1:] if isinstance(a, Constant))
    name, origins = binding.var.name, binding.origins
    q, shape = params.quantized(weight), weight.shape
    scales = np.asarray(params.scales, np.float32)
    if params.group:
        # A row for every group, which has one scale: what any reader of ONNX understands too.
        q = in_groups(q.reshape(len(q), -1), params.group)
    elif len(scales) == 1:
        scales = scales[0]
    integers = Constant(q, DType.parse(params.dtype))
    real = rewrite.call(
        "qnn.dequantize",
        integers,
        Constant.of(scales, FLOAT32),
        axis=0,
    )
    if params.offsets:
        held = np.asarray(params.offsets, np.float32).reshape(-1, *[1] * (q.ndim - 1))
        scaled = b.bind(real, f"{name}_scaled", origins)
        real = rewrite.call("add", scaled, Constant.of(held, FLOAT32))
    if params.group:
        inputs = weight.size // len(weight)
        flat = rewrite.call(
            "reshape", b.bind(real, f"{name}_groups", origins), newshape=(len(weight), -1)
        )
        if q.size > weight.size:
            rows = b.bind(flat, f"{name}_rows", origins)
            flat = rewrite.call("strided_slice", rows, begin=(0,), end=(inputs,), axes=(1,))
        real = rewrite.call("reshape", b.bind(flat, f"{name}_inputs", origins), newshape=shape)
    whole = b.bind(real, f"{name}_weight", origins)
    args: list[Atom] = [call.args[0], whole]
    shifted = params.shifted(bias[0] if bias else None)
    args += [] if shifted is None else [Constant.of(shifted, FLOAT32)]
    return Call(call.op, tuple(args), call.attrs), (integers, whole)
