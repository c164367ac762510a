"""FoldScaleAxis: scales per channel move into the weights of a convolution or dense layer.

Forward: conv(x * s, w) = conv(x, w * s along the input channels). Backward, through operators that
commute with positive scales: relu(conv(x, w)) * s = relu(conv(x, w * s along the outputs)).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from compiler.ir.expr import Call, Constant, Value, tensor_type
from compiler.op.elementwise import MULTIPLY
from compiler.op.opdef import OpDef
from compiler.passes.rewrite import Rewriter
from compiler.pattern.patterns import (
    Pattern,
    any_order,
    constant,
    dominates,
    either,
    is_op,
    op_that,
    wildcard,
)
from compiler.pattern.rules import Rule, RulePass
from compiler.pattern.search import Found
from compiler.transform.fold_batch_norm import Affine, along, channel_axis, scaled
from compiler.types.dtypes import Array

_PLAIN = {
    "input_zero_point": 0, "accumulate": "sequential", "data_layout": "NCHW", "out_layout": "NCHW",
    "padding_value": 0,
}  # fmt: skip


def _floats(found: Found) -> str | None:
    """Weights are floats, all of one dtype, that lose little when they are scaled."""
    call = found.called("layer").value
    assert isinstance(call, Call)
    dtypes = {tensor_type(a).dtype for a in (*call.args, found.called("layer").var)}
    (dtype, *others) = dtypes
    if others or not dtype.is_float or dtype.bits < 32:
        return f"computes in {', '.join(sorted(map(str, dtypes)))}, not in float32 or float64 alone"
    return None


def _layer(*operands: Pattern) -> Pattern:
    """A convolution or dense layer with constant weights, with or without a bias."""
    op = op_that("a convolution or dense layer", _by_rows, **_PLAIN).bind("layer")
    return either(op(*operands), op(*operands, constant("bias"))).where(_floats)


def _by_rows(op: OpDef) -> bool:
    return op.contraction is not None and op.contraction.by_rows


def _scale(c: Constant, axis: int, rank: int) -> Array | str:
    """The values of `c` along `axis`, or why they are no finite scale."""
    values = along(c, axis, rank)
    if values is None:
        return f"a constant {c.type} does not go along axis {axis} alone"
    return values if np.isfinite(values).all() else "the scale is not finite"


def _forward(found: Found, r: Rewriter) -> Value | str:
    call, weight = found.called("layer").value, found.constant("weight")
    assert isinstance(call, Call)
    rank = tensor_type(found["x"]).rank
    if tensor_type(found["x"]) != tensor_type(found["scaled"]):
        return "the scale gives the data another shape"
    scale = _scale(found.constant("scale"), channel_axis(call, rank), rank)
    if isinstance(scale, str):
        return scale
    groups = getattr(call.attrs, "groups", 1)
    units, inputs, *kernel = weight.data.shape
    rows = np.broadcast_to(scale, (groups * inputs,)).reshape(groups, 1, inputs, *[1] * len(kernel))
    parts = weight.data.reshape(groups, units // groups, inputs, *kernel) * rows
    data = parts.reshape(weight.data.shape).astype(weight.dtype.storage)
    return replace(call, args=(found["x"], Constant(data, weight.dtype), *call.args[2:]))


def _backward(found: Found, r: Rewriter) -> Value | str:
    layer = found.called("layer")
    assert isinstance(layer.value, Call)
    before, after = tensor_type(layer.var), tensor_type(found["scaled"])
    axis = channel_axis(layer.value, before.rank)
    last = found["data"]
    if tensor_type(last) != after:
        return "the scale gives the data another shape"
    if after.rank != before.rank:
        return f"the channels of {layer.var!r} are no longer along axis {axis}"
    scale = _scale(found.constant("scale"), axis, after.rank)
    if isinstance(scale, str):
        return scale
    if not (scale > 0).all():
        return "the scale is not positive"
    new = scaled(layer.value, Affine(layer.var, scale, None))
    if new is None:
        return "the scaled weights would not be finite"
    r.amend(replace(layer, value=new))
    return last


def _product(data: Pattern) -> Pattern:
    return any_order(is_op(MULTIPLY).bind("scaled"), data, constant("scale"))


class FoldScaleAxis(RulePass):
    """Folds constant scales per channel into convolutions and dense layers, across activations and
    pooling. Results change by roundings only."""

    name = "FoldScaleAxis"
    opt_level = 3
    rules = (
        Rule("scale before", _layer(_product(wildcard("x")).once(), constant("weight")), _forward),
        Rule("scale behind",
             dominates(_layer(wildcard(), constant("weight")),
                       op_that("homogeneous", lambda op: op.homogeneous),
                       _product(wildcard("data"))),
             _backward),
    )  # fmt: skip
