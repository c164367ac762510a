"""power, where, cast, nn.bias_add: elementwise operators whose operands have dtypes or positions of
their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from compiler.arithmetic import over_arrays
from compiler.arithmetic.arrays import Arithmetic
from compiler.op.common import (
    axis_of,
    broadcast_all,
    channelwise,
    one_dtype,
    read,
    require,
    type_of,
)
from compiler.op.facts import onnx_node
from compiler.op.gradients import elementwise as rules
from compiler.op.opdef import Fusion, NoAttrs, OpDef, Quantized, register_ops
from compiler.tensor import expr
from compiler.tensor.builder import PrimBuilder
from compiler.tensor.expr import Buffer
from compiler.types.dtypes import BOOL, Array, DType
from compiler.types.tensor_types import TensorType, require_equal, shape_text


def _infer_power(_: NoAttrs, types: Sequence[TensorType]) -> TensorType:
    dtype = one_dtype("power", types)
    require(
        dtype.is_float,
        f"power is defined for float dtypes, not {dtype}; write it with multiply or sqrt",
    )
    return TensorType(broadcast_all([t.shape for t in types]), dtype)


def _power(ar: Arithmetic, _: NoAttrs, a: Array, b: Array) -> Array:
    return over_arrays.function("pow", ar.dtype, a, b)


def _lower_power(b: PrimBuilder, a: NoAttrs, x: Buffer, y: Buffer) -> Buffer:
    shape = broadcast_all([type_of(v).shape for v in (x, y)])
    return b.compute("power", shape, x.dtype, lambda *i: expr.call("pow", read(x, i), read(y, i)))


def _infer_where(_: NoAttrs, types: Sequence[TensorType]) -> TensorType:
    require(types[0].dtype == BOOL, f"where: the condition must be bool, not {types[0].dtype}")
    return TensorType(broadcast_all([t.shape for t in types]), one_dtype("where", types[1:]))


def _where(_: Arithmetic, __: NoAttrs, c: Array, x: Array, y: Array) -> Array:
    return np.where(c, x, y)


def _lower_where(b: PrimBuilder, _: NoAttrs, c: Buffer, x: Buffer, y: Buffer) -> Buffer:
    shape = broadcast_all([type_of(v).shape for v in (c, x, y)])
    return b.compute(
        "where", shape, x.dtype, lambda *i: expr.select(read(c, i), read(x, i), read(y, i))
    )


@dataclass(frozen=True)
class CastAttrs:
    """Target dtype, as printed (`float32`, `custom[posit]16`)."""

    dtype: str


def _infer_cast(a: CastAttrs, types: Sequence[TensorType]) -> TensorType:
    return types[0].with_dtype(DType.parse(a.dtype))


def _cast(ar: Arithmetic, a: CastAttrs, x: Array) -> Array:
    to = DType.parse(a.dtype)
    if to == BOOL and ar.dtype != BOOL:
        return ar.compare("NE", x, ar.const(0))
    return x if to == ar.dtype else ar.of(to).cast(x, ar.dtype)


def _lower_cast(b: PrimBuilder, a: CastAttrs, x: Buffer) -> Buffer:
    to = DType.parse(a.dtype)

    def value(*i: Any) -> expr.Expr:
        if to == BOOL and x.dtype != BOOL:
            return expr.binary("NE", x[i], 0)
        return expr.cast(x[i], to)

    return b.compute("cast", x.shape, to, value)


@dataclass(frozen=True)
class BiasAddAttrs:
    """Axis of the data that the bias runs along."""

    axis: int = 1


def _infer_bias_add(a: BiasAddAttrs, types: Sequence[TensorType]) -> TensorType:
    x, bias = types
    kind = one_dtype("nn.bias_add", types).kind
    require(kind != "bool", "nn.bias_add is not defined for bool; cast the operands first")
    axis = axis_of("nn.bias_add", a.axis, x.rank)
    text = f"nn.bias_add: a bias of shape {shape_text(bias.shape)} does not fit axis {axis} of {x}"
    require(bias.rank == 1, text)
    require_equal([(x.shape[axis], bias.shape[0])], text)
    return x


def _bias_add(ar: Arithmetic, a: BiasAddAttrs, x: Array, bias: Array) -> Array:
    return ar.add(x, channelwise(bias, x.ndim, a.axis % x.ndim))


def _lower_bias_add(b: PrimBuilder, a: BiasAddAttrs, x: Buffer, bias: Buffer) -> Buffer:
    axis = a.axis % len(x.shape)
    return b.compute("bias_add", x.shape, x.dtype, lambda *i: x[i] + bias[i[axis]])


POWER, WHERE, CAST, BIAS_ADD = register_ops(
    OpDef(
        "power",
        _infer_power,
        _power,
        _lower_power,
        arity=(2, 2),
        fusion=Fusion.ELEMENTWISE,
        function=True,
        onnx=onnx_node("Pow"),
        gradient=rules.power,
        doc="a to the power b: the C library's float64 function, rounded once",
    ),
    OpDef(
        "where",
        _infer_where,
        _where,
        _lower_where,
        arity=(3, 3),
        fusion=Fusion.ELEMENTWISE,
        onnx=onnx_node("Where"),
        gradient=rules.choose,
        doc="x where the condition holds, else y",
    ),
    OpDef(
        "cast",
        _infer_cast,
        _cast,
        _lower_cast,
        CastAttrs,
        fusion=Fusion.ELEMENTWISE,
        numbered=True,
        in_order=True,
        gradient=rules.cast,
        doc="values in another dtype; float to integer goes toward zero",
    ),
    OpDef(
        "nn.bias_add",
        _infer_bias_add,
        _bias_add,
        _lower_bias_add,
        BiasAddAttrs,
        (2, 2),
        Fusion.ELEMENTWISE,
        Quantized.INTEGER,
        numbered=True,
        affine=lambda a, bias, first: (None, bias[0]),
        gradient=rules.bias_add,
        doc="x + bias along an axis",
    ),
)
