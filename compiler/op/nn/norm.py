"""Normalizations: nn.batch_norm, nn.layer_norm, nn.softmax, nn.log_softmax; and nn.dropout."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from compiler.arithmetic.arrays import Arithmetic
from compiler.op.accumulate import check_mode
from compiler.op.common import (
    ExprArithmetic,
    axis_of,
    channelwise,
    one_dtype,
    read,
    require,
    type_of,
)
from compiler.op.facts import IntegerForm, Moves, onnx_node
from compiler.op.gradients import elementwise, normalizations
from compiler.op.opdef import Fusion, OpDef, Quantized, register_ops
from compiler.op.reduce import largest, lower_fold, lower_mean, mean, mean_of_products, total
from compiler.symbolic import Dim, product
from compiler.tensor.builder import PrimBuilder
from compiler.tensor.expr import Buffer, call
from compiler.types.dtypes import Array
from compiler.types.tensor_types import TensorType, broadcast, require_equal, shape_text


def _require_real(op: str, types: Sequence[TensorType]) -> None:
    dtype = one_dtype(op, types)
    require(
        dtype.is_float or dtype.is_custom,
        f"{op} is not defined for {dtype}; cast the operands to a float dtype",
    )


# ---- batch_norm ----------------------------------------------------------------------------------
@dataclass(frozen=True)
class BatchNormAttrs:
    """Attributes of nn.batch_norm: `axis` is that of the channels."""

    epsilon: float = 1e-5
    axis: int = 1


def _infer_batch_norm(a: BatchNormAttrs, types: Sequence[TensorType]) -> TensorType:
    x = types[0]
    _require_real("nn.batch_norm", types)
    channels = x.shape[axis_of("nn.batch_norm", a.axis, x.rank)]
    for p in types[1:]:
        text = (
            f"nn.batch_norm: a parameter of shape {shape_text(p.shape)} does not fit axis {a.axis} "
            f"of data {shape_text(x.shape)}"
        )
        require(p.rank == 1, text)
        require_equal([(channels, p.shape[0])], text)
    return x


def _batch_norm_scalar(
    ar: Any, a: BatchNormAttrs, x: Any, gamma: Any, beta: Any, center: Any, var: Any
) -> Any:
    deviation = ar.call("sqrt", ar.add(var, ar.const(a.epsilon)))
    return ar.add(ar.mul(ar.div(ar.sub(x, center), deviation), gamma), beta)


def _batch_norm(ar: Arithmetic, a: BatchNormAttrs, x: Array, *params: Array) -> Array:
    """((x - mean) / sqrt(var + epsilon)) * gamma + beta, one rounding per operation."""
    axis = a.axis % x.ndim
    y: Array = _batch_norm_scalar(ar, a, x, *(channelwise(p, x.ndim, axis) for p in params))
    return y


def _lower_batch_norm(b: PrimBuilder, a: BatchNormAttrs, x: Buffer, *params: Buffer) -> Buffer:
    ar, axis = ExprArithmetic(x.dtype), a.axis % len(x.shape)
    return b.compute(
        "batch_norm",
        x.shape,
        x.dtype,
        lambda *i: _batch_norm_scalar(ar, a, x[i], *(p[i[axis]] for p in params)),
    )


# ---- layer_norm ----------------------------------------------------------------------------------
@dataclass(frozen=True)
class LayerNormAttrs:
    """Attributes of nn.layer_norm: the axes from `axis` to the last are normalized; `accumulate`:
    how the two sums are formed (`compiler.op.accumulate`)."""

    axis: int = -1
    epsilon: float = 1e-5
    accumulate: str = "sequential"


def normalized_terms(a: LayerNormAttrs, types: Sequence[TensorType]) -> Dim:
    """How many elements are normalized together."""
    return product(types[0].shape[a.axis % types[0].rank :])


def _infer_layer_norm(a: LayerNormAttrs, types: Sequence[TensorType]) -> TensorType:
    x = types[0]
    _require_real("nn.layer_norm", types)
    check_mode("nn.layer_norm", a.accumulate, x.dtype)
    inner = x.shape[axis_of("nn.layer_norm", a.axis, x.rank) :]
    for p in types[1:]:
        require(
            broadcast(inner, p.shape) == inner,
            f"nn.layer_norm: a parameter of shape {shape_text(p.shape)} does not fit the "
            f"normalized shape {shape_text(inner)}",
        )
    return x


def _layer_norm(ar: Arithmetic, a: LayerNormAttrs, x: Array, gamma: Array, *beta: Array) -> Array:
    """d = x - mean; s = sqrt(mean(d * d) + epsilon); (d / s) * gamma, then + beta if given."""
    axes, mode = range(a.axis % x.ndim, x.ndim), a.accumulate
    d = ar.sub(x, mean(ar, x, axes, mode))
    s = ar.call("sqrt", ar.add(mean_of_products(ar, d, d, axes, mode), ar.const(a.epsilon)))
    y = ar.mul(ar.div(d, s), gamma)
    return ar.add(y, beta[0]) if beta else y


def _lower_layer_norm(
    b: PrimBuilder, a: LayerNormAttrs, x: Buffer, gamma: Buffer, *beta: Buffer
) -> Buffer:
    axes = range(a.axis % len(x.shape), len(x.shape))
    center = lower_mean(b, "ln_mean", x, axes, mode=a.accumulate)
    d = b.compute("ln_center", x.shape, x.dtype, lambda *i: x[i] - read(center, i))
    var = lower_mean(b, "ln_var", d, axes, mode=a.accumulate, times=d)
    s = b.compute("ln_std", var.shape, x.dtype, lambda *i: call("sqrt", var[i] + a.epsilon))

    def value(*i: Any) -> Any:
        y = (d[i] / read(s, i)) * read(gamma, i)
        return y + read(beta[0], i) if beta else y

    return b.compute("layer_norm", x.shape, x.dtype, value)


# ---- softmax -------------------------------------------------------------------------------------
@dataclass(frozen=True)
class SoftmaxAttrs:
    """The axis along which the result (or its exponential) sums to one; `accumulate`: how the sum
    is formed (`compiler.op.accumulate`)."""

    axis: int = -1
    accumulate: str = "sequential"


def _infer_softmax(a: SoftmaxAttrs, types: Sequence[TensorType]) -> TensorType:
    _require_real("nn.softmax", types)
    axis_of("nn.softmax", a.axis, types[0].rank)
    check_mode("nn.softmax", a.accumulate, types[0].dtype)
    return types[0]


def _softmax(ar: Arithmetic, a: SoftmaxAttrs, x: Array) -> Array:
    """e = exp(x - max(x)); e / sum(e); max and sum ascending along the axis."""
    axes = (a.axis % x.ndim,)
    e = ar.call("exp", ar.sub(x, largest(ar, x, axes)))
    return ar.div(e, total(ar, e, axes, a.accumulate))


def _log_softmax(ar: Arithmetic, a: SoftmaxAttrs, x: Array) -> Array:
    """d = x - max(x); d - log(sum(exp(d))); max and sum ascending along the axis."""
    axes = (a.axis % x.ndim,)
    d = ar.sub(x, largest(ar, x, axes))
    return ar.sub(d, ar.call("log", total(ar, ar.call("exp", d), axes, a.accumulate)))


def _lower_softmax(b: PrimBuilder, a: SoftmaxAttrs, x: Buffer) -> Buffer:
    axes = (a.axis % len(x.shape),)
    top = lower_fold(b, "softmax_max", x, axes, "Max")
    e = b.compute("softmax_exp", x.shape, x.dtype, lambda *i: call("exp", x[i] - read(top, i)))
    acc = lower_fold(b, "softmax_sum", e, axes, "Add", mode=a.accumulate)
    return b.compute("softmax", x.shape, x.dtype, lambda *i: e[i] / read(acc, i))


def _lower_log_softmax(b: PrimBuilder, a: SoftmaxAttrs, x: Buffer) -> Buffer:
    axes = (a.axis % len(x.shape),)
    top = lower_fold(b, "softmax_max", x, axes, "Max")
    d = b.compute("softmax_shift", x.shape, x.dtype, lambda *i: x[i] - read(top, i))
    e = b.compute("softmax_exp", x.shape, x.dtype, lambda *i: call("exp", d[i]))
    acc = lower_fold(b, "softmax_sum", e, axes, "Add", mode=a.accumulate)
    log = b.compute("softmax_log", acc.shape, x.dtype, lambda *i: call("log", acc[i]))
    return b.compute("log_softmax", x.shape, x.dtype, lambda *i: d[i] - read(log, i))


def _affine(
    a: BatchNormAttrs, statistics: Sequence[Array], first: bool
) -> tuple[Array, Array] | None:
    """gamma / sqrt(var + epsilon) and beta - mean * scale."""
    if len(statistics) < 4:
        return None
    gamma, beta, mean, var = statistics
    with np.errstate(all="ignore"):
        scale = gamma / np.sqrt(var + a.epsilon)
    return scale, beta - mean * scale


# ---- dropout -------------------------------------------------------------------------------------
@dataclass(frozen=True)
class DropoutAttrs:
    """`rate` is recorded only: inference drops nothing."""

    rate: float = 0.5


def _infer_dropout(_: DropoutAttrs, types: Sequence[TensorType]) -> TensorType:
    return types[0]


def _dropout(_: Arithmetic, __: DropoutAttrs, x: Array) -> Array:
    return x


def _lower_dropout(b: PrimBuilder, _: DropoutAttrs, x: Buffer) -> Buffer:
    return b.compute("dropout", type_of(x).shape, x.dtype, lambda *i: x[i])


BATCH_NORM, LAYER_NORM, SOFTMAX, LOG_SOFTMAX, DROPOUT = register_ops(
    OpDef(
        "nn.batch_norm",
        _infer_batch_norm,
        _batch_norm,
        _lower_batch_norm,
        BatchNormAttrs,
        (5, 5),
        Fusion.ELEMENTWISE,
        affine=_affine,
        gradient=elementwise.batch_norm,
        doc="data, gamma, beta, mean, variance; the statistics are parameters",
    ),
    OpDef(
        "nn.layer_norm",
        _infer_layer_norm,
        _layer_norm,
        _lower_layer_norm,
        LayerNormAttrs,
        (2, 3),
        Fusion.ANCHOR,
        quantized=Quantized.INTEGER,
        terms=normalized_terms,
        numbered=True,
        integer_form=IntegerForm.LAYER_NORM,
        onnx=onnx_node("LayerNormalization", "axis", "epsilon"),
        gradient=normalizations.layer_norm,
        doc="data, gamma, optional beta; statistics over the axes from `axis` to the last",
    ),
    OpDef(
        "nn.softmax",
        _infer_softmax,
        _softmax,
        _lower_softmax,
        SoftmaxAttrs,
        fusion=Fusion.ANCHOR,
        terms=lambda a, types: types[0].shape[a.axis],
        quantized=Quantized.INTEGER,
        numbered=True,
        integer_form=IntegerForm.SOFTMAX,
        onnx=onnx_node("Softmax", "axis"),
        gradient=normalizations.softmax,
        doc="exp(x - max) / sum",
    ),
    OpDef(
        "nn.log_softmax",
        _infer_softmax,
        _log_softmax,
        _lower_log_softmax,
        SoftmaxAttrs,
        fusion=Fusion.ANCHOR,
        terms=lambda a, types: types[0].shape[a.axis],
        numbered=True,
        onnx=onnx_node("LogSoftmax", "axis"),
        gradient=normalizations.log_softmax,
        doc="(x - max) - log(sum(exp(x - max)))",
    ),
    OpDef(
        "nn.dropout",
        _infer_dropout,
        _dropout,
        _lower_dropout,
        DropoutAttrs,
        fusion=Fusion.ELEMENTWISE,
        quantized=Quantized.SAME,
        view=True,
        moves=Moves.SAME,
        in_order=True,
        onnx=onnx_node("Identity"),
        gradient=elementwise.same,
        doc="its operand: nothing is dropped in inference",
    ),
)
