"""qnn.requantize: integers on another grid, by one of several arithmetics.

What accelerators do differs: a float32 product (onnxruntime), a fixed-point product whose halves
are rounded upward or to even (TVM's qnn.requantize; TensorFlow Lite built for single rounding), the
same rounded twice (gemmlowp; TensorFlow Lite), or a shift alone. Every arithmetic but `gemmlowp`
rounds once, the exact product but for the float ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from compiler.arithmetic.arrays import Arithmetic
from compiler.op.common import require
from compiler.op.facts import Zeros
from compiler.op.gradient import INTEGERS
from compiler.op.opdef import Fusion, OpDef, register_op
from compiler.op.qnn.quantize import (
    along,
    centred,
    clipped,
    integer_dtype,
    narrowed,
    plus,
    require_integer,
    require_scale,
    scale_at,
)
from compiler.op.stored import SHIFT_BITS, Stored, zero_points
from compiler.symbolic import IntLike
from compiler.tensor.builder import PrimBuilder
from compiler.tensor.expr import Buffer, Expr, call, cast, const, let, maximum, minimum, select
from compiler.types.dtypes import FLOAT32, FLOAT64, INT32, INT64, Array, DType
from compiler.types.tensor_types import TensorType

ROUNDINGS = ("float32", "float64", "fixed_upward", "fixed_tonearest_even", "shift", "gemmlowp")
"""How requantize multiplies x - input_zero_point with the scale s:

- `float32`: one float32 product, to nearest even (s is float32);
- `float64`: one float64 product, to nearest even;
- `fixed_upward`, `fixed_tonearest_even`: exactly, with the multiplier of 31 bits nearest to s (that
  of a float32 is s itself), halves rounded up or to even;
- `shift`: exactly, with the power of two nearest to s, halves rounded up;
- `gemmlowp`: with that multiplier of 31 bits as a number m from 1/2 to 1 times 2^e: x * m to the
  nearest integer, halves up (SaturatingRoundingDoublingHighMul), then that / 2^-e to the nearest,
  halves away from zero (RoundingDivideByPOT); an e above 0 shifts x to the left first, which
  saturates at 32 bits; e below -31 gives 0 (MultiplyByQuantizedMultiplier of TensorFlow Lite, where
  a left shift that overflows is undefined). Up to a few results in a hundred are one more or less
  than those of `fixed_upward`, where a half arises by the first rounding.

But for `float32`, s is float32 or float64. It is positive, normal and below 2^30.
"""
MULTIPLIERS = ("fixed_upward", "fixed_tonearest_even", "gemmlowp")
"""Those that multiply with 31 bits: x has at most 32."""
EXACT_BITS = 62
"""Magnitudes of the products of accumulators and multipliers are at most 2^62."""


@dataclass(frozen=True)
class RequantizeAttrs:
    """Result clip(round((x - input_zero_point) * scale) + output_zero_point, qmin, qmax).

    `axis` is that of a vector of scales; `rounding` is one of ROUNDINGS.
    """

    input_zero_point: int = 0
    output_zero_point: int = 0
    axis: int = 1
    out_dtype: str = "uint8"
    qmin: int = 0
    qmax: int = 255
    rounding: str = "float32"


def _infer(attrs: RequantizeAttrs, types: Sequence[TensorType]) -> TensorType:
    x, scale = types
    require_integer("qnn.requantize", "the operand", x, "int64")
    require(
        x.dtype != INT64 or attrs.rounding not in MULTIPLIERS,
        f"qnn.requantize: rounding {attrs.rounding!r} is for int32; int64 takes float32, float64 "
        "or shift",
    )
    require(
        attrs.rounding in ROUNDINGS,
        f"qnn.requantize: rounding must be one of {ROUNDINGS}, not {attrs.rounding!r}",
    )
    held = (FLOAT32,) if attrs.rounding == "float32" else (FLOAT32, FLOAT64)
    require_scale("qnn.requantize", attrs.axis, x, scale, held)
    return x.with_dtype(integer_dtype("qnn.requantize", attrs))


# ---- reference -----------------------------------------------------------------------------------
def _reference(ar: Arithmetic, attrs: RequantizeAttrs, x: Array, scale: Array) -> Array:
    above = x.astype(np.int64) - attrs.input_zero_point
    out = rescaled(above, along(scale, x, attrs.axis), attrs.rounding)
    return clipped(out, attrs)


def rescaled(x: Array, scale: Array, rounding: str) -> Array:
    """int64 x * scale by one of ROUNDINGS, int64."""
    if rounding.startswith("float"):
        dtype = np.dtype(rounding)
        return np.asarray(np.rint(x.astype(dtype) * scale.astype(dtype)).astype(np.int64))
    if rounding == "gemmlowp":
        return twice_rounded(x, scale)
    multiplier, shift = power_of_two(scale) if rounding == "shift" else fixed_point(scale)
    return shifted(x * multiplier, shift, rounding)


def fixed_point(scale: Array) -> tuple[Array, Array]:
    """(multiplier, shift), int64, with scale = multiplier / 2^shift: 31 bits, the nearest."""
    significand, exponent = np.frexp(scale.astype(np.float64))
    multiplier = np.floor(significand * 2.0**31 + 0.5).astype(np.int64)
    return multiplier, np.maximum(31 - exponent.astype(np.int64), 1)


def power_of_two(scale: Array) -> tuple[Array, Array]:
    """(multiplier, shift), int64, for the power of two nearest to a scale; 1.5 counts as 2."""
    significand, exponent = np.frexp(scale.astype(np.float64))
    shift = 1 - (exponent.astype(np.int64) + (significand >= 0.75))
    return np.left_shift(np.int64(1), np.clip(-shift, 0, 30)), np.maximum(shift, 0)


def shifted(product: Array, shift: Array, rounding: str) -> Array:
    """int64 product / 2^shift, halves rounded to even or (any other `rounding`) up."""
    within = np.minimum(shift, EXACT_BITS)
    unit = np.left_shift(np.int64(1), within)
    whole, rest = np.divmod(product, unit)
    up = rest >= unit - rest
    if rounding == "fixed_tonearest_even":
        up &= (rest != unit - rest) | (whole % 2 == 1)
    # Beyond, a product is at most half a unit.
    return np.asarray(np.where(shift > EXACT_BITS, 0, whole + up))


def twice_rounded(x: Array, scale: Array) -> Array:
    """int64 x * scale as `gemmlowp` has it, int64; x has 32 bits."""
    multiplier, exponent = normalized_point(scale)
    shifted = np.clip(np.left_shift(x, np.maximum(exponent, 0)), _LOW, _HIGH)
    high = (shifted * multiplier + (1 << 30)) >> 31
    right = np.clip(-exponent, 0, 31)
    mask = np.left_shift(np.int64(1), right) - 1
    return np.asarray((high >> right) + ((high & mask) > (mask >> 1) + (high < 0)))


def normalized_point(scale: Array) -> tuple[Array, Array]:
    """(multiplier, exponent), int64, with scale = multiplier / 2^31 * 2^exponent: 0, or 2^30 up to
    2^31 - 1 (QuantizeMultiplier of TensorFlow Lite)."""
    significand, exponent = np.frexp(scale.astype(np.float64))
    multiplier = np.floor(significand * 2.0**31 + 0.5).astype(np.int64)
    over = multiplier >> 31
    multiplier, exponent = multiplier >> over, exponent.astype(np.int64) + over
    return np.where(exponent < -31, 0, multiplier), np.clip(exponent, -31, 30)


_LOW, _HIGH = -(1 << 31), (1 << 31) - 1


# ---- loop nest -----------------------------------------------------------------------------------
def _lower(b: PrimBuilder, attrs: RequantizeAttrs, x: Buffer, scale: Buffer) -> Buffer:
    def element(*i: IntLike) -> Expr:
        above = centred(x[i], attrs.input_zero_point)
        return scaled(attrs, attrs.rounding, above, scale_at(scale, i, attrs.axis))

    return b.compute("requantized", x.shape, DType.parse(attrs.out_dtype), element)


def scaled(attrs: Any, rounding: str, x: Expr, scale: Expr) -> Expr:
    """Integers x * scale by one of ROUNDINGS, as `attrs` say of the result: `output_zero_point`,
    bounds and dtype."""
    return _SCALED[rounding](attrs, rounding, x, scale)


def _in_float(attrs: Any, rounding: str, x: Expr, scale: Expr) -> Expr:
    dtype = DType.parse(rounding)
    return narrowed(cast(x, dtype) * cast(scale, dtype), attrs.output_zero_point, attrs)


def _by_multiplier(attrs: Any, rounding: str, x: Expr, scale: Expr) -> Expr:
    """x * multiplier >> shift, the two read from the bits of the scale."""
    bits = _bits(scale)
    significand = (bits & ((1 << 52) - 1)) | _int64(1 << 52)
    multiplier = (significand + (1 << 21)) >> 22
    exact = _int64(1023 + 30) - (bits >> 52)
    shift = maximum(minimum(exact, EXACT_BITS), 1)
    product = cast(x, INT64) * multiplier
    rounded = right_shift(rounding, product, shift)
    return stored(attrs, select(exact > EXACT_BITS, _int64(0), rounded))


def right_shift(rounding: str, product: Expr, shift: Expr) -> Expr:
    """int64 product / 2^shift, of 1 to EXACT_BITS, as `shifted` rounds it."""
    half = _int64(1) << (shift - 1)
    if rounding == "fixed_tonearest_even":
        half = half - 1 + ((product >> shift) & 1)
    return (product + half) >> shift


def _by_shift(attrs: Any, rounding: str, x: Expr, scale: Expr) -> Expr:
    exact = _int64(1023) - ((_bits(scale) + (1 << 51)) >> 52)
    shift = minimum(exact, EXACT_BITS)
    wide = cast(x, INT64)
    down = right_shift(rounding, wide, maximum(shift, 1))
    up = wide << minimum(maximum(_int64(0) - shift, 0), 30)
    return stored(attrs, select(shift > 0, down, up))


def _rounding_twice(attrs: Any, rounding: str, x: Expr, scale: Expr) -> Expr:
    """As `twice_rounded`, the multiplier and the exponent read from the bits of the scale."""
    bits = _bits(scale)
    significand = (bits & ((1 << 52) - 1)) | _int64(1 << 52)
    nearest = (significand + (1 << 21)) >> 22

    def result(nearest: Expr) -> Expr:
        over = nearest >> 31
        exponent = (bits >> 52) - 1022 + over
        product = twice_rounded_expr(cast(x, INT64), nearest >> over, exponent)
        return stored(attrs, select(exponent < -31, _int64(0), product))

    return let(nearest, result, "multiplier")


def twice_rounded_expr(x: Expr, multiplier: Expr, exponent: Expr) -> Expr:
    """int64 x * multiplier / 2^31 * 2^exponent as `gemmlowp` has it, exponents from -31 on."""
    left = minimum(maximum(exponent, 0), 30)
    shifted = minimum(maximum(x << left, _LOW), _HIGH)

    def divided(high: Expr) -> Expr:
        right = minimum(maximum(_int64(0) - exponent, 0), 31)
        mask = (_int64(1) << right) - 1
        threshold = (mask >> 1) + select(high < 0, _int64(1), _int64(0))
        return (high >> right) + select(threshold < (high & mask), _int64(1), _int64(0))

    return let((shifted * multiplier + (1 << 30)) >> 31, divided, "high")


_SCALED: dict[str, Callable[[Any, str, Expr, Expr], Expr]] = {
    "float32": _in_float,
    "float64": _in_float,
    "fixed_upward": _by_multiplier,
    "fixed_tonearest_even": _by_multiplier,
    "shift": _by_shift,
    "gemmlowp": _rounding_twice,
}


def stored(attrs: Any, value: Expr) -> Expr:
    """The last step of integer kernels: int64 `value`, offset, clipped, narrowed."""
    out = plus(value, attrs.output_zero_point)
    return cast(minimum(maximum(out, attrs.qmin), attrs.qmax), DType.parse(attrs.out_dtype))


def _bits(scale: Expr) -> Expr:
    """int64 bits of a positive scale in float64."""
    return call("bits", cast(scale, FLOAT64), dtype=INT64)


def _int64(value: int) -> Expr:
    return const(value, INT64)


def multiplier_bits(rounding: str) -> int:
    """Bits of what is kept of a scale: a float, a shift, or an int32 multiplier and a shift."""
    if rounding.startswith("float"):
        return DType.parse(rounding).bits
    return SHIFT_BITS if rounding == "shift" else INT32.bits + SHIFT_BITS


def _stored(attrs: RequantizeAttrs, types: Sequence[TensorType]) -> Stored:
    zeros = zero_points(
        (attrs.input_zero_point, types[0].dtype),
        (attrs.output_zero_point, DType.parse(attrs.out_dtype)),
    )
    return Stored(zeros, {1: multiplier_bits(attrs.rounding)})


REQUANTIZE = register_op(
    OpDef(
        "qnn.requantize", _infer, _reference, _lower, RequantizeAttrs, (2, 2),
        fusion=Fusion.ELEMENTWISE, in_float32=True, stored=_stored,
        zeros=Zeros(("input_zero_point",), "output_zero_point"),
        gradient=INTEGERS,
        doc="integers on another grid; operands: data, ratio of scales",
    )
)  # fmt: skip
