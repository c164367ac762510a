"""Integer operators that carry scales and zero points: quantize, dequantize.

A real value r is kept as an integer q with r = (q - zero_point) * scale (Jacob et al., Quantization
and Training of Neural Networks for Efficient Integer-Arithmetic-Only Inference, 2018). Scales are
float32; `x / scale` and `x * scale` are one float32 operation each, rounding to integers is to
nearest even, and zero points are added in integer arithmetic after rounding. Accumulators are
int32; the caller chooses scales so that no scaled accumulator reaches 2^31.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from compiler.arithmetic.arrays import Arithmetic
from compiler.op.common import axis_of, channelwise, read, require
from compiler.op.facts import Zeros
from compiler.op.gradient import INTEGERS, ON_GRID, Gradient
from compiler.op.gradients.grids import simulated_quantize
from compiler.op.opdef import Fusion, OpDef, register_op
from compiler.op.stored import Stored, zero_points
from compiler.symbolic import IntLike
from compiler.tensor.builder import PrimBuilder
from compiler.tensor.expr import Buffer, Expr, call, cast, const, let, maximum, minimum, select
from compiler.types.dtypes import FLOAT32, INT8, INT32, INT64, UINT8, Array, DType
from compiler.types.tensor_types import TensorType, broadcast


@dataclass(frozen=True)
class QuantizeAttrs:
    """Result clip(rint(x / scale) + zero_point, qmin, qmax); `axis` is that of several scales."""

    zero_point: int = 0
    axis: int = 1
    out_dtype: str = "uint8"
    qmin: int = 0
    qmax: int = 255


HALVES = ("even", "up", "away")
"""Where numbers in the middle between two integers go: to the even one, up, or away from zero (the
zero point)."""


@dataclass(frozen=True)
class SimulatedQuantizeAttrs(QuantizeAttrs):
    """Result (clip(nearest(x / scale) + zero_point, qmin, qmax) - zero_point) * scale; `halves` is
    one of HALVES."""

    halves: str = "even"


@dataclass(frozen=True)
class DequantizeAttrs:
    """Result float32(x - zero_point) * scale; `axis` is that of a vector of scales."""

    zero_point: int = 0
    axis: int = 1


# ---- types ---------------------------------------------------------------------------------------
def integer_dtype(op: str, attrs: Any) -> DType:
    """The result dtype of 8 or 16 bits that `attrs` name, with bounds that fit it.

    Raises:
        TypeInferenceError: another dtype, or bounds outside its range.
    """
    allowed = ("int8", "uint8", "int16")
    require(attrs.out_dtype in allowed, f"{op}: out_dtype must be int8, uint8 or int16")
    dtype = DType.parse(attrs.out_dtype)
    info = np.iinfo(dtype.storage)
    require(
        info.min <= attrs.qmin <= attrs.qmax <= info.max,
        f"{op}: bounds [{attrs.qmin}, {attrs.qmax}] do not fit {dtype}",
    )
    return dtype


def require_integer(op: str, what: str, t: TensorType, *more: str) -> None:
    """Raise TypeInferenceError unless `t` is an int8, uint8, int16 or int32 tensor, or of a dtype
    in `more`."""
    allowed = ("int8", "uint8", "int16", "int32", *more)
    listed = f"{', '.join(allowed[:-1])} or {allowed[-1]}"
    require(str(t.dtype) in allowed, f"{op}: {what} must be {listed}, not {t.dtype}")


def require_scale(
    op: str, axis: int, x: TensorType, scale: TensorType, dtypes: Sequence[DType] = (FLOAT32,)
) -> None:
    """Check a scale of one number, one for each position of an axis, or one for each of `x`.

    Raises:
        TypeInferenceError: another shape, or none of `dtypes`.
    """
    allowed = " or ".join(map(str, dtypes))
    require(scale.dtype in dtypes, f"{op}: the scale must be {allowed}, not {scale.dtype}")
    if scale.rank == 0:
        return
    if scale.rank == x.rank and x.rank > 1:
        broadcast(x.shape, scale.shape)
        return
    k = axis_of(op, axis, x.rank)
    require(
        scale.shape == (x.shape[k],), f"{op}: {scale} does not give each of {x} a scale on axis {k}"
    )


def _quantize_type(attrs: QuantizeAttrs, types: Sequence[TensorType]) -> TensorType:
    x, scale = types
    require(x.dtype == FLOAT32, f"qnn.quantize takes float32, not {x.dtype}")
    require_scale("qnn.quantize", attrs.axis, x, scale)
    return x.with_dtype(integer_dtype("qnn.quantize", attrs))


def _simulated_type(attrs: SimulatedQuantizeAttrs, types: Sequence[TensorType]) -> TensorType:
    require(
        attrs.halves in HALVES,
        f"qnn.simulated_quantize: halves must be one of {HALVES}, not {attrs.halves!r}",
    )
    return _quantize_type(attrs, types).with_dtype(FLOAT32)


def _dequantize_type(attrs: DequantizeAttrs, types: Sequence[TensorType]) -> TensorType:
    x, scale = types
    require_integer("qnn.dequantize", "the operand", x, "int64")
    require_scale("qnn.dequantize", attrs.axis, x, scale)
    return x.with_dtype(FLOAT32)


def _shifted_type(name: str, given: DType, made: DType) -> Callable[..., TensorType]:
    def infer(_: Any, types: Sequence[TensorType]) -> TensorType:
        (x,) = types
        require(x.dtype == given, f"{name} takes {given}, not {x.dtype}")
        return x.with_dtype(made)

    return infer


# ---- references ----------------------------------------------------------------------------------
def clipped(q: Array, attrs: Any) -> Array:
    """Reference of the last step: int64 `q` plus the zero point, clipped and narrowed."""
    out = np.clip(q + attrs.output_zero_point, attrs.qmin, attrs.qmax)
    return np.asarray(out.astype(attrs.out_dtype))


def along(scale: Array, x: Array, axis: int) -> Array:
    """The scales of `axis` in a shape that broadcasts to `x`."""
    return channelwise(scale, x.ndim, axis % x.ndim) if scale.ndim == 1 else scale


def _to_grid(attrs: QuantizeAttrs, x: Array, scale: Array, halves: str = "even") -> Array:
    with np.errstate(all="ignore"):
        scaled = x / along(scale, x, attrs.axis)
    # Bounded before it is rounded, so that infinities reach the bounds (and NaN the lower one).
    low, high = np.float32(attrs.qmin - attrs.zero_point), np.float32(attrs.qmax - attrs.zero_point)
    scaled = np.where(scaled > low, scaled, low)
    scaled = np.where(scaled < high, scaled, high)
    nearest = np.rint(scaled)
    if halves != "even":
        up = (scaled - nearest == 0.5) & ((halves == "up") | (scaled > 0))
        away = (nearest - scaled == 0.5) & (scaled < 0) & (halves == "away")
        nearest = nearest + up - away
    return nearest.astype(np.int64) + attrs.zero_point


def _quantize(ar: Arithmetic, attrs: QuantizeAttrs, x: Array, scale: Array) -> Array:
    return _to_grid(attrs, x, scale).astype(attrs.out_dtype)


def _dequantize(ar: Arithmetic, attrs: DequantizeAttrs, x: Array, scale: Array) -> Array:
    each, zero = along(scale, x, attrs.axis), attrs.zero_point
    if x.dtype.itemsize > 2 or abs(zero) > 1 << 16:
        return _real(x.astype(np.int64), zero, each)
    # Differences of so few bits are exact in float32. A network's weights take a fifth of the time.
    out = np.array(x, np.float32)
    if zero:
        out -= np.float32(zero)
    return np.multiply(out, each, out=out)


def _real(q: Array, zero_point: int, scale: Array) -> Array:
    return np.asarray((q - zero_point).astype(np.float32) * scale)


def _simulated(ar: Arithmetic, attrs: SimulatedQuantizeAttrs, x: Array, scale: Array) -> Array:
    q = _to_grid(attrs, x, scale, attrs.halves)
    return _real(q, attrs.zero_point, along(scale, x, attrs.axis))


# ---- loop nests ----------------------------------------------------------------------------------
def narrowed(value: Expr, zero_point: int, attrs: Any) -> Expr:
    """The last step of integer kernels: float32 `value` rounded, offset, clipped, narrowed."""
    rounded = plus(call("rint_i32", value, dtype=INT32), zero_point)
    return cast(minimum(maximum(rounded, attrs.qmin), attrs.qmax), DType.parse(attrs.out_dtype))


def centred(x: Expr, zero_point: int) -> Expr:
    """x - zero_point, int64 if x is that, else int32."""
    return plus(x if x.dtype == INT64 else cast(x, INT32), -zero_point)


def plus(x: Expr, k: int) -> Expr:
    """x + k."""
    return x if k == 0 else x + k


def scale_at(scale: Buffer, idx: Sequence[IntLike], axis: int) -> Expr:
    """The scale of one element."""
    if len(scale.shape) > 1:
        return read(scale, idx)
    return scale[(idx[axis],)] if scale.shape else scale[()]


def _grid_expr(attrs: QuantizeAttrs, x: Expr, scale: Expr, halves: str = "even") -> Expr:
    low, high = const(attrs.qmin - attrs.zero_point), const(attrs.qmax - attrs.zero_point)
    v = x / scale
    v = select(v > low, v, low)
    v = select(v < high, v, high)
    if halves == "even":
        return call("rint_i32", v, dtype=INT32)

    def moved(v: Expr, q: Expr) -> Expr:
        part = v - cast(q, FLOAT32)  # exact
        above = select(part.equal(0.5), q + 1, q)
        if halves == "up":
            return above
        below = select(part.equal(-0.5), q - 1, q)
        return select(v > 0.0, above, below)

    return let(v, lambda v: let(call("rint_i32", v, dtype=INT32), lambda q: moved(v, q)))


def _quantize_nest(b: PrimBuilder, attrs: QuantizeAttrs, x: Buffer, scale: Buffer) -> Buffer:
    dtype = DType.parse(attrs.out_dtype)

    def element(*i: IntLike) -> Expr:
        q = _grid_expr(attrs, x[i], scale_at(scale, i, attrs.axis))
        return cast(plus(q, attrs.zero_point), dtype)

    return b.compute("quantized", x.shape, dtype, element)


def _simulated_nest(
    b: PrimBuilder, attrs: SimulatedQuantizeAttrs, x: Buffer, scale: Buffer
) -> Buffer:
    def element(*i: IntLike) -> Expr:
        s = scale_at(scale, i, attrs.axis)
        return cast(_grid_expr(attrs, x[i], s, attrs.halves), FLOAT32) * s

    return b.compute("simulated", x.shape, FLOAT32, element)


def _dequantize_nest(b: PrimBuilder, attrs: DequantizeAttrs, x: Buffer, scale: Buffer) -> Buffer:
    def element(*i: IntLike) -> Expr:
        return cast(centred(x[i], attrs.zero_point), FLOAT32) * scale_at(scale, i, attrs.axis)

    return b.compute("real", x.shape, FLOAT32, element)


# ---- definitions ---------------------------------------------------------------------------------
def _stored(attrs: QuantizeAttrs | DequantizeAttrs, types: Sequence[TensorType]) -> Stored:
    dtype = types[0].dtype
    if isinstance(attrs, QuantizeAttrs):
        dtype = DType.parse(attrs.out_dtype)
    return Stored(zero_points((attrs.zero_point, dtype)))


def _define(
    name: str,
    attrs: type,
    doc: str,
    *functions: Callable[..., Any],
    gradient: Gradient | str = ON_GRID,
    zeros: Zeros | None = None,
) -> OpDef:
    infer, reference, lower = functions
    return register_op(
        OpDef(
            name, infer, reference, lower, attrs, (2, 2), fusion=Fusion.ELEMENTWISE,
            in_float32=True, stored=_stored, zeros=zeros, gradient=gradient, doc=doc,
        )
    )  # fmt: skip


QUANTIZE = _define(
    "qnn.quantize", QuantizeAttrs, "float32 data as integers; operands: data, scale",
    _quantize_type, _quantize, _quantize_nest, zeros=Zeros((), "zero_point"),
)  # fmt: skip
SIMULATED_QUANTIZE = _define(
    "qnn.simulated_quantize", SimulatedQuantizeAttrs,
    "dequantize(quantize(data, scale), scale) in float32",
    _simulated_type, _simulated, _simulated_nest, gradient=simulated_quantize,
)  # fmt: skip
DEQUANTIZE = _define(
    "qnn.dequantize", DequantizeAttrs, "integers as float32; operands: data, scale",
    _dequantize_type, _dequantize, _dequantize_nest, zeros=Zeros(("zero_point",)),
)  # fmt: skip


def _shifted(name: str, given: DType, made: DType, by: int, doc: str) -> OpDef:
    return register_op(
        OpDef(
            name,
            _shifted_type(name, given, made),
            lambda ar, attrs, x: (x.astype(np.int64) + by).astype(made.storage),
            lambda b, attrs, x: b.compute(
                "shifted", x.shape, made, lambda *i: cast(cast(x[i], INT32) + by, made)
            ),
            fusion=Fusion.ELEMENTWISE,
            gradient=INTEGERS,
            doc=doc,
        )
    )


TO_UNSIGNED = _shifted(
    "qnn.to_unsigned", INT8, UINT8, 128,
    "int8 x as uint8 x + 128, which dot product instructions take",
)  # fmt: skip
TO_SIGNED = _shifted(
    "qnn.to_signed", UINT8, INT8, -128,
    "uint8 x as int8 x - 128, which dot product instructions of some CPUs take",
)  # fmt: skip
