"""Weights in few bits, activations in float32: what makes a model small when reading its weights is
what takes the time.

The integers are kept as int8 with a scale for each tensor, each output channel, or each group of
consecutive inputs of an output (4 bits and groups of 32 to 128 are usual). Realized, they are
dequantized in front of the layer, which computes in float32.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from compiler.ir.expr import Atom, Binding, Call, Constant
from compiler.op.opdef import get_op
from compiler.types.dtypes import FLOAT32, Array, DType
from quantize.config.qconfig import QConfig
from quantize.plan.params import WeightParams, exact
from quantize.plan.scales import largest, least_error, zeros

if TYPE_CHECKING:
    from compiler.ir.builder import FunctionBuilder

LAYERS = ("nn.dense", "nn.conv1d", "nn.conv2d", "nn.conv3d")


def weight_only_reason(call: Call) -> str:
    """Why the weights of a call stay float; empty if they can be integers."""
    if str(call.op) not in LAYERS:
        return "only the weights of dense layers and convolutions are integers"
    weight = call.args[1]
    if not isinstance(weight, Constant):
        return "its weights are not constant"
    if weight.dtype != FLOAT32 or not np.isfinite(weight.data).all():
        return "its weights are not finite float32 numbers"
    return ""


def weight_only_params(weight: Array, config: QConfig) -> WeightParams:
    """Scales of a layer's weights, the output channel first, as `config` chooses them."""
    group = config.weight_group_size if config.weight_granularity == "group" else 0
    bits, kind = config.weight_bits, config.weight_range
    rows = weight.reshape(1 if config.weight_granularity == "tensor" else len(weight), -1)
    if group:
        rows = _padded(rows, group).reshape(-1, group)
    search = least_error if config.weight_calibrate == "mse" else largest
    scales = tuple(exact(float(s), config) for s in search(rows, bits, kind))
    zero = () if kind == "restricted" else tuple(map(int, zeros(rows, bits, kind)))
    return WeightParams(scales, bits, zero_points=zero, group=group)


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
        q = _padded(q.reshape(len(q), -1), params.group).reshape(-1, params.group)
    elif len(scales) == 1:
        scales = scales[0]
    integers = Constant(q, DType.parse(params.dtype))
    real = _call(
        "qnn.dequantize",
        integers,
        Constant.of(scales, FLOAT32),
        axis=0,
    )
    if params.group:
        inputs = weight.size // len(weight)
        flat = _call("reshape", b.bind(real, f"{name}_groups", origins), newshape=(len(weight), -1))
        if q.size > weight.size:
            rows = b.bind(flat, f"{name}_rows", origins)
            flat = _call("strided_slice", rows, begin=(0,), end=(inputs,), axes=(1,))
        real = _call("reshape", b.bind(flat, f"{name}_inputs", origins), newshape=shape)
    whole = b.bind(real, f"{name}_weight", origins)
    args: list[Atom] = [call.args[0], whole]
    shifted = params.shifted(bias[0] if bias else None)
    args += [] if shifted is None else [Constant.of(shifted, FLOAT32)]
    return Call(call.op, tuple(args), call.attrs), (integers, whole)


def _padded(rows: Array, group: int) -> Array:
    """Rows [N, K] filled up with zeros to whole groups."""
    return np.pad(rows, ((0, 0), (0, -rows.shape[1] % group)))


def _call(op: str, *args: Atom, **attrs: object) -> Call:
    definition = get_op(op)
    return Call(definition, args, definition.make_attrs(**attrs))
