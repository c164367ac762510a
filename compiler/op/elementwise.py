"""Elementwise operators. One scalar definition per operator is both its numpy reference and the
body of its loop nest; the order of its operations is the operator's meaning in every dtype."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from compiler.dtypes import BOOL, Array, DType
from compiler.errors import TypeInferenceError
from compiler.ir.types import TensorType
from compiler.op.arithmetic import Arithmetic
from compiler.op.common import (
    ExprArithmetic,
    axis_of,
    broadcast_all,
    channelwise,
    one_dtype,
    read,
    require,
)
from compiler.op.opdef import Fusion, NoAttrs, OpDef, Quantized, register_op
from compiler.tensor import expr
from compiler.tensor.builder import PrimBuilder
from compiler.tensor.stmt import Buffer

Scalar = Callable[..., Any]
"""(arithmetic, attrs, *values) -> value; over arrays or over expressions."""
Check = Callable[[DType], bool]


def _number(d: DType) -> bool:
    return d.kind != "bool"


def _real(d: DType) -> bool:
    return d.is_float or d.is_custom


def elementwise(
    name: str,
    scalar: Scalar,
    arity: int,
    doc: str,
    attrs: type = NoAttrs,
    accepts: Check = _number,
    result: DType | None = None,
    quantized: Quantized = Quantized.FLOAT,
) -> OpDef:
    """Register an operator whose operands broadcast as numpy's do and share one dtype.

    `result`: dtype of the result where it is not that of the operands.
    """

    def infer(_: Any, types: Sequence[TensorType]) -> TensorType:
        dtype = one_dtype(name, types)
        require(accepts(dtype), f"{name} is not defined for {dtype}; cast the operand first")
        return TensorType(broadcast_all([t.shape for t in types]), result or dtype)

    def lower(b: PrimBuilder, a: Any, *xs: Buffer) -> Buffer:
        t = infer(a, [TensorType.of(x.shape, x.dtype) for x in xs])
        ar = ExprArithmetic(xs[0].dtype)
        stem = name.removeprefix("nn.")
        return b.compute(
            stem, t.shape, t.dtype, lambda *i: scalar(ar, a, *(read(x, i) for x in xs))
        )

    return register_op(
        OpDef(
            name,
            infer,
            scalar,
            lower,
            attrs,
            (arity, arity),
            Fusion.ELEMENTWISE,
            quantized,
            doc=doc,
        )
    )


# ---- two operands --------------------------------------------------------------------------------
for _name, _method, _quantized in (
    ("add", "add", Quantized.INTEGER),
    ("subtract", "sub", Quantized.FLOAT),
    ("multiply", "mul", Quantized.FLOAT),
    ("divide", "div", Quantized.FLOAT),
    ("maximum", "maximum", Quantized.FLOAT),
    ("minimum", "minimum", Quantized.FLOAT),
):

    def _binary(ar: Any, _: NoAttrs, a: Any, b: Any, method: str = _method) -> Any:
        return getattr(ar, method)(a, b)

    elementwise(_name, _binary, 2, f"{_name} of two tensors, broadcasting", quantized=_quantized)

for _name, _op in (("less", "LT"), ("greater", "GT"), ("equal", "EQ")):

    def _compare(ar: Any, _: NoAttrs, a: Any, b: Any, op: str = _op) -> Any:
        return ar.compare(op, a, b)

    elementwise(_name, _compare, 2, f"boolean tensor of a {_op} b", result=BOOL)


# ---- one operand ---------------------------------------------------------------------------------
for _fn in ("exp", "log", "sqrt", "tanh", "sigmoid", "erf", "floor", "ceil", "round"):

    def _function(ar: Any, _: NoAttrs, x: Any, fn: str = _fn) -> Any:
        return ar.call(fn, x)

    elementwise(_fn, _function, 1, f"{_fn}(x)", accepts=_real)


def _negative(ar: Any, _: NoAttrs, x: Any) -> Any:
    return ar.sub(ar.const(-0.0), x)


def _abs(ar: Any, _: NoAttrs, x: Any) -> Any:
    return x if ar.dtype.kind == "uint" else ar.maximum(x, ar.sub(ar.const(-0.0), x))


def _relu(ar: Any, _: NoAttrs, x: Any) -> Any:
    return ar.maximum(x, ar.const(0))


elementwise("negative", _negative, 1, "-0 - x")
elementwise("abs", _abs, 1, "max(x, -0 - x)")
elementwise("nn.relu", _relu, 1, "max(x, 0)", quantized=Quantized.INTEGER)


@dataclass(frozen=True)
class ClipAttrs:
    """Bounds; an infinite bound is no bound."""

    a_min: float = -math.inf
    a_max: float = math.inf


def _clip(ar: Any, a: ClipAttrs, x: Any) -> Any:
    if a.a_min != -math.inf:
        x = ar.maximum(x, ar.const(a.a_min))
    if a.a_max != math.inf:
        x = ar.minimum(x, ar.const(a.a_max))
    return x


elementwise("clip", _clip, 1, "min(max(x, a_min), a_max)", ClipAttrs, quantized=Quantized.INTEGER)


@dataclass(frozen=True)
class LeakyReluAttrs:
    """Slope for negative values."""

    alpha: float = 0.01


def _leaky_relu(ar: Any, a: LeakyReluAttrs, x: Any) -> Any:
    zero = ar.const(0)
    return ar.add(ar.maximum(x, zero), ar.mul(ar.const(a.alpha), ar.minimum(x, zero)))


@dataclass(frozen=True)
class HardSigmoidAttrs:
    """Slope and offset of the linear part."""

    alpha: float = 0.2
    beta: float = 0.5


@dataclass(frozen=True)
class HardSwishAttrs(HardSigmoidAttrs):
    """Slope and offset of the linear part of the gate."""

    alpha: float = 1 / 6


def _hard_sigmoid(ar: Any, a: HardSigmoidAttrs, x: Any) -> Any:
    t = ar.add(ar.mul(ar.const(a.alpha), x), ar.const(a.beta))
    return ar.minimum(ar.maximum(t, ar.const(0)), ar.const(1))


def _hard_swish(ar: Any, a: HardSwishAttrs, x: Any) -> Any:
    return ar.mul(x, _hard_sigmoid(ar, a, x))


@dataclass(frozen=True)
class GeluAttrs:
    """`none`: with erf; `tanh`: Hendrycks and Gimpel's approximation (arXiv:1606.08415)."""

    approximate: str = "none"

    def __post_init__(self) -> None:
        if self.approximate not in ("none", "tanh"):
            raise TypeInferenceError(
                f"nn.gelu: approximate must be 'none' or 'tanh', not {self.approximate!r}"
            )


def _gelu(ar: Any, a: GeluAttrs, x: Any) -> Any:
    half = ar.mul(ar.const(0.5), x)
    if a.approximate == "tanh":
        cube = ar.mul(ar.mul(x, x), x)
        inner = ar.add(x, ar.mul(ar.const(0.044715), cube))
        bend = ar.call("tanh", ar.mul(ar.const(math.sqrt(2 / math.pi)), inner))
    else:
        bend = ar.call("erf", ar.div(x, ar.const(math.sqrt(2))))
    return ar.mul(half, ar.add(ar.const(1), bend))


for _name, _scalar, _attrs, _doc in (
    ("nn.leaky_relu", _leaky_relu, LeakyReluAttrs, "max(x, 0) + alpha * min(x, 0)"),
    ("nn.hard_sigmoid", _hard_sigmoid, HardSigmoidAttrs, "min(max(alpha * x + beta, 0), 1)"),
    ("nn.hard_swish", _hard_swish, HardSwishAttrs, "x * min(max(alpha * x + beta, 0), 1)"),
    (
        "nn.gelu",
        _gelu,
        GeluAttrs,
        "(0.5 * x) * (1 + erf(x / sqrt(2))); tanh: "
        "(0.5 * x) * (1 + tanh(sqrt(2/pi) * (x + 0.044715 * (x * x * x))))",
    ),
):
    elementwise(_name, _scalar, 1, _doc, _attrs, accepts=_real)


# ---- power, where, cast, bias_add: operands of other dtypes or other alignment -------------------
def _infer_power(_: NoAttrs, types: Sequence[TensorType]) -> TensorType:
    dtype = one_dtype("power", types)
    require(
        dtype.is_float,
        f"power is defined for float dtypes, not {dtype}; write it with multiply or sqrt",
    )
    return TensorType(broadcast_all([t.shape for t in types]), dtype)


def _power(ar: Arithmetic, _: NoAttrs, a: Array, b: Array) -> Array:
    with np.errstate(all="ignore"):
        wide = np.power(a.astype(np.float64), b.astype(np.float64))
        return wide.astype(ar.dtype.storage)


def _lower_power(b: PrimBuilder, a: NoAttrs, x: Buffer, y: Buffer) -> Buffer:
    shape = broadcast_all([TensorType.of(v.shape, v.dtype).shape for v in (x, y)])
    return b.compute("power", shape, x.dtype, lambda *i: expr.call("pow", read(x, i), read(y, i)))


def _infer_where(_: NoAttrs, types: Sequence[TensorType]) -> TensorType:
    require(types[0].dtype == BOOL, f"where: the condition must be bool, not {types[0].dtype}")
    return TensorType(broadcast_all([t.shape for t in types]), one_dtype("where", types[1:]))


def _where(_: Arithmetic, __: NoAttrs, c: Array, x: Array, y: Array) -> Array:
    return np.where(c, x, y)


def _lower_where(b: PrimBuilder, _: NoAttrs, c: Buffer, x: Buffer, y: Buffer) -> Buffer:
    shape = broadcast_all([TensorType.of(v.shape, v.dtype).shape for v in (c, x, y)])
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
    one_dtype("nn.bias_add", types)
    axis = axis_of("nn.bias_add", a.axis, x.rank)
    require(
        bias.shape == (x.shape[axis],),
        f"nn.bias_add: a bias of shape {bias.shape} does not fit axis {axis} of {x}",
    )
    return x


def _bias_add(ar: Arithmetic, a: BiasAddAttrs, x: Array, bias: Array) -> Array:
    return ar.add(x, channelwise(bias, x.ndim, a.axis % x.ndim))


def _lower_bias_add(b: PrimBuilder, a: BiasAddAttrs, x: Buffer, bias: Buffer) -> Buffer:
    axis = a.axis % len(x.shape)
    return b.compute("bias_add", x.shape, x.dtype, lambda *i: x[i] + bias[i[axis]])


for _definition in (
    OpDef(
        "power",
        _infer_power,
        _power,
        _lower_power,
        arity=(2, 2),
        fusion=Fusion.ELEMENTWISE,
        doc="a to the power b",
    ),
    OpDef(
        "where",
        _infer_where,
        _where,
        _lower_where,
        arity=(3, 3),
        fusion=Fusion.ELEMENTWISE,
        doc="x where the condition holds, else y",
    ),
    OpDef(
        "cast",
        _infer_cast,
        _cast,
        _lower_cast,
        CastAttrs,
        fusion=Fusion.ELEMENTWISE,
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
        doc="x + bias along an axis",
    ),
):
    register_op(_definition)
