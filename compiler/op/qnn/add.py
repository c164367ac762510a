"""qnn.add: the sum of two integer tensors of different scales, by the arithmetics of requantize.

In float32 (onnxruntime) and float64: two products and a sum. The others round once, and are exact
up to there: with s the shift of the larger scale (see `qnn_requantize.fixed_point`), both
scales become multipliers in units of 2^-s, of at most 31 bits, and the sum of the two products is
shifted by s. Of scales that are powers of two within 2^30 of each other, these are exact too.
But `gemmlowp` is what TensorFlow Lite's ADD and SUB do: both operands, shifted to the left by 20
(by 15 unless both are bytes), are scaled to twice the larger scale, and their sum is scaled to the
result's; each of the three products rounds twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from compiler.arithmetic.arrays import Arithmetic
from compiler.op.common import read, require, type_of
from compiler.op.facts import Zeros
from compiler.op.gradient import INTEGERS
from compiler.op.opdef import Fusion, OpDef, register_op
from compiler.op.qnn.quantize import centred, clipped, integer_dtype, narrowed, require_integer
from compiler.op.qnn.requantize import (
    EXACT_BITS,
    ROUNDINGS,
    fixed_point,
    multiplier_bits,
    normalized_point,
    right_shift,
    shifted,
    stored,
    twice_rounded,
    twice_rounded_expr,
)
from compiler.op.stored import SHIFT_BITS, Stored, zero_points
from compiler.symbolic import IntLike
from compiler.tensor.builder import PrimBuilder
from compiler.tensor.expr import Buffer, Expr, cast, const
from compiler.types.dtypes import FLOAT32, FLOAT64, INT64, Array, DType
from compiler.types.tensor_types import TensorType, broadcast


@dataclass(frozen=True)
class QuantizedAddAttrs:
    """Result clip(round((a - a_zero_point) * a_scale + (b - b_zero_point) * b_scale)
    + output_zero_point, qmin, qmax). The scales are relative to the output's, negative for a
    difference, of magnitudes below 2^30; `rounding` is one of ROUNDINGS. But for the float
    arithmetics, what is added is below 2^30 before it is scaled, for `gemmlowp` below 2^16."""

    a_scale: float = 1.0
    b_scale: float = 1.0
    a_zero_point: int = 0
    b_zero_point: int = 0
    output_zero_point: int = 0
    out_dtype: str = "uint8"
    qmin: int = 0
    qmax: int = 255
    rounding: str = "float32"


def multipliers(attrs: QuantizedAddAttrs) -> tuple[int, int, int]:
    """(a's multiplier, b's, s): the scales in units of 2^-s, to the nearest, halves away from 0."""
    scales = np.array([attrs.a_scale, attrs.b_scale])
    larger, shift = fixed_point(np.abs(scales).max(keepdims=True))
    s = int(shift[0])
    a, b = (
        int(np.copysign(np.floor(np.ldexp(abs(v), s) + 0.5), v)) if larger[0] else 0 for v in scales
    )
    return a, b, s


def shared_scales(attrs: QuantizedAddAttrs, a: DType, b: DType) -> tuple[int, list[float]]:
    """Of `gemmlowp`: the shift to the left, and the magnitudes of the scales of a, b and their
    sum."""
    left = 20 if max(a.bits, b.bits) == 8 else 15
    twice = 2 * max(abs(attrs.a_scale), abs(attrs.b_scale)) or 1.0
    return left, [abs(attrs.a_scale) / twice, abs(attrs.b_scale) / twice, twice / 2.0**left]


def _infer(attrs: QuantizedAddAttrs, types: Sequence[TensorType]) -> TensorType:
    a, b = types
    require_integer("qnn.add", "the first operand", a)
    require_integer("qnn.add", "the second operand", b)
    require(
        attrs.rounding in ROUNDINGS,
        f"qnn.add: rounding must be one of {ROUNDINGS}, not {attrs.rounding!r}",
    )
    return TensorType(broadcast(a.shape, b.shape), integer_dtype("qnn.add", attrs))


def _reference(ar: Arithmetic, attrs: QuantizedAddAttrs, a: Array, b: Array) -> Array:
    left, right = a.astype(np.int64) - attrs.a_zero_point, b.astype(np.int64) - attrs.b_zero_point
    if attrs.rounding.startswith("float"):
        held = np.dtype(attrs.rounding).type
        total = left.astype(held) * held(attrs.a_scale) + right.astype(held) * held(attrs.b_scale)
        return clipped(np.rint(total).astype(np.int64), attrs)
    if attrs.rounding == "gemmlowp":
        shift, scales = shared_scales(attrs, DType.parse(a.dtype), DType.parse(b.dtype))
        by = [np.asarray(v) for v in scales]
        terms = (twice_rounded(x << shift, v) for x, v in zip((left, right), by[:2], strict=True))
        a_term, b_term = (
            int(np.sign(s)) * t for s, t in zip((attrs.a_scale, attrs.b_scale), terms, strict=True)
        )
        return clipped(twice_rounded(np.asarray(a_term + b_term), by[2]), attrs)
    by_a, by_b, s = multipliers(attrs)
    products = np.asarray(left * by_a + right * by_b)
    return clipped(shifted(products, np.asarray(s), attrs.rounding), attrs)


def _lower(b: PrimBuilder, attrs: QuantizedAddAttrs, x: Buffer, y: Buffer) -> Buffer:
    shape = broadcast(type_of(x).shape, type_of(y).shape)

    def element(*i: IntLike) -> Expr:
        left = centred(read(x, i), attrs.a_zero_point)
        right = centred(read(y, i), attrs.b_zero_point)
        if attrs.rounding.startswith("float"):
            held = FLOAT64 if attrs.rounding == "float64" else FLOAT32
            by_a, by_b = const(attrs.a_scale, held), const(attrs.b_scale, held)
            total = cast(left, held) * by_a + cast(right, held) * by_b
            return narrowed(total, attrs.output_zero_point, attrs)
        if attrs.rounding == "gemmlowp":
            return stored(attrs, _in_three(attrs, (left, x.dtype), (right, y.dtype)))
        whole_a, whole_b, s = multipliers(attrs)
        if s > EXACT_BITS:  # the sum is at most half a unit
            return stored(attrs, const(0, INT64))
        total = cast(left, INT64) * whole_a + cast(right, INT64) * whole_b
        return stored(attrs, right_shift(attrs.rounding, total, const(s, INT64)))

    return b.compute("sum", shape, DType.parse(attrs.out_dtype), element)


def _stored(attrs: QuantizedAddAttrs, types: Sequence[TensorType]) -> Stored:
    a, b = (t.dtype for t in types)
    zeros = zero_points(
        (attrs.a_zero_point, a),
        (attrs.b_zero_point, b),
        (attrs.output_zero_point, DType.parse(attrs.out_dtype)),
    )
    if attrs.rounding == "gemmlowp":  # the result has a multiplier too
        return Stored(zeros + 3 * multiplier_bits(attrs.rounding))
    # Two multipliers share a shift.
    shared = SHIFT_BITS if attrs.rounding.startswith("fixed") else 0
    return Stored(zeros + 2 * multiplier_bits(attrs.rounding) - shared)


def _in_three(attrs: QuantizedAddAttrs, a: tuple[Expr, DType], b: tuple[Expr, DType]) -> Expr:
    """The sum as `gemmlowp` has it, int64."""
    shift, scales = shared_scales(attrs, a[1], b[1])
    points = [[int(v) for v in normalized_point(np.asarray(s))] for s in scales]

    def scaled(x: Expr, k: int) -> Expr:
        return twice_rounded_expr(x, *(const(v, INT64) for v in points[k]))

    terms = [
        scaled(cast(x, INT64) << shift, k) * int(np.sign(s))
        for k, (x, s) in enumerate(((a[0], attrs.a_scale), (b[0], attrs.b_scale)))
    ]
    return scaled(terms[0] + terms[1], 2)


ADD = register_op(
    OpDef(
        "qnn.add", _infer, _reference, _lower, QuantizedAddAttrs, (2, 2),
        fusion=Fusion.ELEMENTWISE, stored=_stored,
        zeros=Zeros(("a_zero_point", "b_zero_point"), "output_zero_point"),
        gradient=INTEGERS,
        doc="sum of two integer tensors of different scales, broadcasting",
    )
)  # fmt: skip
