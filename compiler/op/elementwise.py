"""Elementwise operators. One scalar definition per operator is both its numpy reference and the
body of its loop nest; the order of its operations is the operator's meaning in every dtype."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from compiler.arithmetic import scalar_functions
from compiler.arithmetic.scalar_function import ScalarFunction
from compiler.errors import TypeInferenceError
from compiler.op.common import ExprArithmetic, broadcast_all, one_dtype, read, require, type_of
from compiler.op.facts import IntegerForm, onnx_node
from compiler.op.gradient import Gradient, flat
from compiler.op.gradients import elementwise as rules
from compiler.op.opdef import Fusion, NoAttrs, OpDef, Quantized, register_op
from compiler.tensor.builder import PrimBuilder
from compiler.tensor.expr import Buffer
from compiler.types.dtypes import BOOL, Array, DType
from compiler.types.tensor_types import TensorType

Scalar = Callable[..., Any]
"""(arithmetic, attrs, *values) -> value; over arrays or over expressions."""
Check = Callable[[DType], bool]


def _any(_: DType) -> bool:
    return True


def _number(d: DType) -> bool:
    return d.kind != "bool"


def _float(d: DType) -> bool:
    return d.is_float


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
    **facts: Any,
) -> OpDef:
    """Register an operator whose operands broadcast as numpy's do and share one dtype.

    `result`: dtype of the result where it is not that of the operands. `facts`: further fields of
    `OpDef`.
    """

    def infer(_: Any, types: Sequence[TensorType]) -> TensorType:
        dtype = one_dtype(name, types)
        require(accepts(dtype), f"{name} is not defined for {dtype}; cast the operand first")
        return TensorType(broadcast_all([t.shape for t in types]), result or dtype)

    def lower(b: PrimBuilder, a: Any, *xs: Buffer) -> Buffer:
        t = infer(a, [type_of(x) for x in xs])
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
            numbered=True,
            doc=doc,
            **facts,
        )
    )


# ---- two operands --------------------------------------------------------------------------------
def _binary(name: str, method: str, **facts: Any) -> OpDef:
    def apply(ar: Any, _: NoAttrs, a: Any, b: Any) -> Any:
        return getattr(ar, method)(a, b)

    return elementwise(name, apply, 2, f"{name} of two tensors, broadcasting", **facts)


def _difference(_: NoAttrs, c: Sequence[Array], first: bool) -> tuple[Array | None, Array]:
    return (np.array([-1.0]), c[0]) if first else (None, -c[0])


def _quotient(_: NoAttrs, c: Sequence[Array], first: bool) -> tuple[Array, None] | None:
    return None if first or not c[0].all() else (1.0 / c[0], None)


ADD = _binary(
    "add", "add", quantized=Quantized.INTEGER, integer_form=IntegerForm.SUM, function=True,
    commutes=True, affine=lambda a, c, first: (None, c[0]), onnx=onnx_node("Add"),
    gradient=rules.add,
)  # fmt: skip
SUBTRACT = _binary(
    "subtract", "sub", quantized=Quantized.INTEGER, integer_form=IntegerForm.DIFFERENCE,
    function=True, affine=_difference, onnx=onnx_node("Sub"), gradient=rules.subtract,
)  # fmt: skip
MULTIPLY = _binary(
    "multiply", "mul", quantized=Quantized.INTEGER, integer_form=IntegerForm.PRODUCT,
    function=True, commutes=True, affine=lambda a, c, first: (c[0], None), onnx=onnx_node("Mul"),
    gradient=rules.multiply,
)  # fmt: skip
DIVIDE = _binary(
    "divide", "div", function=True, affine=_quotient, onnx=onnx_node("Div"), gradient=rules.divide
)
MAXIMUM = _binary(
    "maximum", "maximum", commutes=True, onnx=onnx_node("Max"), gradient=rules.larger("greater")
)
MINIMUM = _binary(
    "minimum", "minimum", commutes=True, onnx=onnx_node("Min"), gradient=rules.larger("less")
)

for _name, _op, _onnx in (
    ("less", "LT", "Less"),
    ("less_equal", "LE", "LessOrEqual"),
    ("greater", "GT", "Greater"),
    ("greater_equal", "GE", "GreaterOrEqual"),
    ("equal", "EQ", "Equal"),
    ("not_equal", "NE", ""),
):

    def _compare(ar: Any, _: NoAttrs, a: Any, b: Any, op: str = _op) -> Any:
        return ar.compare(op, a, b)

    elementwise(
        _name, _compare, 2, f"boolean tensor of a {_op} b", result=BOOL, accepts=_any,
        commutes=_op in ("EQ", "NE"), onnx=onnx_node(_onnx) if _onnx else None,
        gradient=flat,
    )  # fmt: skip


# ---- one operand ---------------------------------------------------------------------------------
def _gradient(f: ScalarFunction) -> Gradient | str:
    if f.derivative is not None:
        return rules.function(f.derivative)
    unknown = (
        f"the derivative of {f.name} is not known (ScalarFunction(..., derivative=) states it)"
    )
    return flat if f.integral else unknown


for _f in scalar_functions.UNARY.values():

    def _function(ar: Any, _: NoAttrs, x: Any, fn: str = _f.name) -> Any:
        return ar.call(fn, x)

    # What has no correctly rounded form in number formats stays with built-in floats.
    _accepts = _real if _f.in_formats else _float
    # Quantized models spell functions out in float between integers.
    _spelled_out = _f.in_formats and not _f.integral and bool(_f.onnx)
    elementwise(
        _f.name, _function, 1, f"{_f.name}(x)", accepts=_accepts, function=_spelled_out,
        onnx=onnx_node(_f.onnx) if _f.onnx else None,
        gradient=_gradient(_f),
    )  # fmt: skip


def _negative(ar: Any, _: NoAttrs, x: Any) -> Any:
    return ar.sub(ar.const(-0.0), x)


def _abs(ar: Any, _: NoAttrs, x: Any) -> Any:
    return x if ar.dtype.kind == "uint" else ar.maximum(x, ar.sub(ar.const(-0.0), x))


def _relu(ar: Any, _: NoAttrs, x: Any) -> Any:
    return ar.maximum(x, ar.const(0))


elementwise(
    "negative", _negative, 1, "-0 - x", function=True, onnx=onnx_node("Neg"),
    gradient=rules.negative,
)  # fmt: skip
ABS = elementwise(
    "abs", _abs, 1, "max(x, -0 - x)", function=True, onnx=onnx_node("Abs"),
    gradient=rules.absolute,
)  # fmt: skip
RELU = elementwise(
    "nn.relu", _relu, 1, "max(x, 0)", quantized=Quantized.INTEGER,
    clips=lambda a: (0.0, math.inf), homogeneous=True, onnx=onnx_node("Relu"),
    gradient=rules.relu,
)  # fmt: skip


@dataclass(frozen=True)
class ClipAttrs:
    """Bounds; an infinite bound is no bound. Integers are clipped to those that the dtype has."""

    a_min: float = -math.inf
    a_max: float = math.inf


def _clip(ar: Any, a: ClipAttrs, x: Any) -> Any:
    low, high = -math.inf, math.inf
    if ar.dtype.is_integer:
        info = np.iinfo(ar.dtype.storage)
        low, high = int(info.min), int(info.max)
    if a.a_min != -math.inf:
        x = ar.maximum(x, ar.const(min(max(a.a_min, low), high)))
    if a.a_max != math.inf:
        x = ar.minimum(x, ar.const(min(max(a.a_max, low), high)))
    return x


CLIP = elementwise(
    "clip", _clip, 1, "min(max(x, a_min), a_max)", ClipAttrs, quantized=Quantized.INTEGER,
    clips=lambda a: (a.a_min, a.a_max), gradient=rules.clip,
)  # fmt: skip


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


_BENT = 7.25
"""Where 1 - |tanh| of gelu's argument is below half of float64's last place, and the cube in the
range of float8_e4m3fn."""


def _gelu(ar: Any, a: GeluAttrs, x: Any) -> Any:
    half = ar.mul(ar.const(0.5), x)
    if a.approximate == "tanh":
        # Beyond, tanh is -1 or 1 in every format; cubes leave the range of short ones soon.
        near = ar.minimum(ar.maximum(x, ar.const(-_BENT)), ar.const(_BENT))
        cube = ar.mul(ar.mul(near, near), near)
        inner = ar.add(near, ar.mul(ar.const(0.044715), cube))
        bend = ar.call("tanh", ar.mul(ar.const(math.sqrt(2 / math.pi)), inner))
    else:
        bend = ar.call("erf", ar.div(x, ar.const(math.sqrt(2))))
    return ar.mul(half, ar.add(ar.const(1), bend))


for _name, _scalar, _attrs, _written, _rule, _doc in (
    ("nn.leaky_relu", _leaky_relu, LeakyReluAttrs, onnx_node("LeakyRelu", "alpha"),
     rules.leaky_relu,
     "max(x, 0) + alpha * min(x, 0)"),
    ("nn.hard_sigmoid", _hard_sigmoid, HardSigmoidAttrs, onnx_node("HardSigmoid", "alpha", "beta"),
     rules.hard_sigmoid,
     "min(max(alpha * x + beta, 0), 1)"),
    ("nn.hard_swish", _hard_swish, HardSwishAttrs, None, rules.hard_swish,
     "x * min(max(alpha * x + beta, 0), 1)"),
    (
        "nn.gelu",
        _gelu,
        GeluAttrs,
        None,
        rules.gelu(_BENT),
        "(0.5 * x) * (1 + erf(x / sqrt(2))); tanh: "
        "(0.5 * x) * (1 + tanh(sqrt(2/pi) * (c + 0.044715 * (c * c * c)))), "
        "c = min(max(x, -7.25), 7.25)",
    ),
):  # fmt: skip
    elementwise(
        _name, _scalar, 1, _doc, _attrs, accepts=_real, function=True,
        homogeneous=_scalar is _leaky_relu, onnx=_written, gradient=_rule,
    )  # fmt: skip
