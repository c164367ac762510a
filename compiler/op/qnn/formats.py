"""Rounding of float32 tensors to scaled number formats: what is kept in a format, without computing
in it.

`qnn.simulated_cast` scales by numbers that are given, `qnn.simulated_blocks` by one number for each
block of consecutive elements, found from the block (OCP Microscaling Formats (MX) Specification
1.0, 2023, section 6.3). Both saturate, and give float32. The format is a registered custom dtype.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from compiler.arithmetic.arrays import Arithmetic
from compiler.op.common import axis_of, need_constant, require
from compiler.op.gradient import INTEGERS
from compiler.op.opdef import Fusion, OpDef, register_op
from compiler.op.qnn.quantize import along, require_scale, scale_at
from compiler.op.stored import Stored
from compiler.symbolic import Index, IntLike, ceil_div, imin
from compiler.tensor.builder import PrimBuilder
from compiler.tensor.custom_dtypes import lane_of
from compiler.tensor.expr import Buffer, Expr, call, cast, const, maximum, minimum, select
from compiler.types.dtypes import FLOAT32, INT32, Array, DType
from compiler.types.tensor_types import TensorType

POWERS = "custom[float8_e8m0fnu]8"
"""The scale format of MX: powers of two."""
_INFINITY = 0x7F800000
"""Bits of float32's infinity, and the mask of its exponent; NaNs are above."""
_LEAST = 1 << 22
"""Bits of the float32 2**-127, the least power of two of `POWERS`."""
_FRACTION = 0x7FFFFF
"""Mask of float32's fraction."""
SCALE_ROUNDINGS = ("floor", "ceil", "even", "rceil")
"""How the largest magnitude m of a block becomes a scale of `POWERS`. With T the number that m is
meant to become and t the largest power of two that is not above T, that is a power of two / t:

- `floor`: the largest that is not above m (OCP MX 1.0, 6.3); up to half of m's binade saturates;
- `ceil`: the least that is not below m; nothing saturates;
- `even`: the largest that is not above m rounded to the element's bits; what would round to the
  next power of two does not saturate;
- `rceil`: t times the least power of two that is not below m / T, so that nothing saturates and no
  scale is larger than that needs.

The names are torchao's (ScaleCalculationMode); `rceil` is what NVIDIA's conversion to ue8m0 with
rounding up (cvt.rp) makes of m / T.
"""


@dataclass(frozen=True)
class SimulatedCastAttrs:
    """Result round(clip(x / scale, low, high)) * scale, where `round` gives values of `dtype`.

    Attributes:
        dtype: the format, as printed (`custom[posit]8`).
        low, high: its least and its largest finite value, as far as float32 has them.
        axis: that of a vector of scales.
    """

    dtype: str
    low: float
    high: float
    axis: int = 1


@dataclass(frozen=True)
class SimulatedBlocksAttrs:
    """Result round(clip(x / s, low, high)) * s with one s for each block; NaN where a block holds
    NaN or infinity.

    Attributes:
        dtype, low, high: as for `SimulatedCastAttrs`.
        axis: what blocks run along; the last one may be shorter.
        block: elements of a block.
        scale_dtype: format of the scales. `POWERS`: s is a power of two as `scale_rounding` says,
            kept within the format. Another: s / unit is the largest magnitude / (top * unit),
            rounded to it (`float32`: as it is).
        scale_low, scale_high: the least positive and the largest value of a scale, but for `unit`.
        unit: scale of the whole tensor.
        top: the number that the largest magnitude of a block is meant to become: `high`, if 0, or
            less where a format is not precise up there.
        scale_rounding: of `POWERS`, one of SCALE_ROUNDINGS.
        step: from the format's value below `top` up to `top`, for "even".
    """

    dtype: str
    low: float
    high: float
    axis: int = 1
    block: int = 32
    scale_dtype: str = POWERS
    scale_low: float = 2.0**-127
    scale_high: float = 2.0**127
    unit: float = 1.0
    top: float = 0.0
    scale_rounding: str = "floor"
    step: float = 0.0


# ---- types ---------------------------------------------------------------------------------------
def _check(op: str, x: TensorType, attrs: Any) -> None:
    require(x.dtype == FLOAT32, f"{op} takes float32, not {x.dtype}")
    require(DType.parse(attrs.dtype).is_custom, f"{op}: {attrs.dtype} is not a custom dtype")
    most = float(np.finfo(np.float32).max)
    require(
        -most <= attrs.low < attrs.high <= most and attrs.high > 0,
        f"{op}: [{attrs.low}, {attrs.high}] is not the range of a format within float32's",
    )


def _cast_type(attrs: SimulatedCastAttrs, types: Sequence[TensorType]) -> TensorType:
    x, scale = types
    _check("qnn.simulated_cast", x, attrs)
    require_scale("qnn.simulated_cast", attrs.axis, x, scale)
    return x


def _blocks_type(attrs: SimulatedBlocksAttrs, types: Sequence[TensorType]) -> TensorType:
    (x,) = types
    op = "qnn.simulated_blocks"
    _check(op, x, attrs)
    need_constant(op, "the length of blocks' axis", x.shape[axis_of(op, attrs.axis, x.rank)])
    require(attrs.block >= 1, f"{op}: a block of {attrs.block} elements is none")
    scales = DType.parse(attrs.scale_dtype)
    require(
        scales.is_custom or scales == FLOAT32, f"{op}: scales must be float32 or of a custom dtype"
    )
    require(
        attrs.scale_rounding in SCALE_ROUNDINGS,
        f"{op}: scale_rounding must be one of {SCALE_ROUNDINGS}, not {attrs.scale_rounding!r}",
    )
    require(
        attrs.scale_rounding == "floor" or attrs.scale_dtype == POWERS,
        f"{op}: scale_rounding {attrs.scale_rounding!r} is for scales of {POWERS}",
    )
    require(
        attrs.scale_rounding != "even" or 0 < attrs.step <= (attrs.top or attrs.high),
        f"{op}: scale_rounding 'even' needs the step below the top, not {attrs.step}",
    )
    return x


# ---- references ----------------------------------------------------------------------------------
def _rounded(ar: Arithmetic, dtype: DType, x: Array, low: float, high: float) -> Array:
    clipped = np.minimum(np.maximum(x, np.float32(low)), np.float32(high))
    if dtype == FLOAT32:
        return clipped
    return ar.cast(ar.of(dtype).cast(clipped, FLOAT32), dtype)


def _scaled(ar: Arithmetic, attrs: Any, x: Array, scale: Array) -> Array:
    with np.errstate(all="ignore"):
        rounded = _rounded(ar, DType.parse(attrs.dtype), x / scale, attrs.low, attrs.high)
        return np.asarray(rounded * scale, np.float32)


def _cast(ar: Arithmetic, attrs: SimulatedCastAttrs, x: Array, scale: Array) -> Array:
    return _scaled(ar, attrs, x, along(scale, x, attrs.axis))


def _blocks(ar: Arithmetic, attrs: SimulatedBlocksAttrs, x: Array) -> Array:
    axis = attrs.axis % x.ndim
    starts = np.arange(0, x.shape[axis], attrs.block)
    # Bits of magnitudes are in the order of the magnitudes, with NaN above infinity.
    magnitudes = np.abs(x).view(np.int32)
    largest = np.maximum.reduceat(magnitudes, starts, axis) if x.size else magnitudes
    scales = block_scales(ar, attrs, largest)
    return _scaled(ar, attrs, x, np.repeat(scales, attrs.block, axis)[_first(x.shape, axis)])


def _first(shape: Sequence[int], axis: int) -> tuple[slice, ...]:
    return tuple(slice(n if k == axis else None) for k, n in enumerate(shape))


def block_scales(ar: Arithmetic, attrs: SimulatedBlocksAttrs, largest: Array) -> Array:
    """float32 scales of blocks, from the int32 bits of their largest magnitudes."""
    if attrs.scale_dtype == POWERS:
        exponents = ((largest + _raised(attrs)) >> 23) - _emax(attrs.top or attrs.high)
        bits = np.where(exponents > 0, np.minimum(exponents, 254) << 23, _LEAST)
        scales = bits.astype(np.int32).view(np.float32)
    else:
        with np.errstate(all="ignore"):
            ratio = largest.view(np.float32) / np.float32((attrs.top or attrs.high) * attrs.unit)
        dtype = DType.parse(attrs.scale_dtype)
        scales = _rounded(ar, dtype, ratio, attrs.scale_low, attrs.scale_high)
    scales = np.where(largest >= _INFINITY, np.float32(np.nan), scales)
    return np.asarray(scales * np.float32(attrs.unit), np.float32)


def _emax(number: float) -> int:
    """Exponent of the largest power of two that is not above a number."""
    return math.frexp(number)[1] - 1


def _raised(attrs: SimulatedBlocksAttrs) -> int:
    """What is added to a magnitude's bits, of which then only the exponent counts: as much as is
    between the first fraction that is meant for the next power of two, and that power of two."""
    top = attrs.top or attrs.high
    if attrs.scale_rounding == "even":
        return int(math.ldexp(attrs.step, 22 - _emax(top)))
    if attrs.scale_rounding == "rceil":
        return _FRACTION - math.floor(math.ldexp(top, 23 - _emax(top))) % (_FRACTION + 1)
    return _FRACTION if attrs.scale_rounding == "ceil" else 0


# ---- loop nests ----------------------------------------------------------------------------------
def _rounded_expr(dtype: DType, x: Expr, low: float, high: float) -> Expr:
    clipped = minimum(maximum(x, low), high)
    if dtype == FLOAT32:
        return clipped
    lane = lane_of(dtype)
    held = dtype if lane is None else dtype.in_form(str(lane))
    return cast(cast(clipped, held), FLOAT32)


def _scaled_expr(attrs: Any, x: Expr, scale: Expr) -> Expr:
    return _rounded_expr(DType.parse(attrs.dtype), x / scale, attrs.low, attrs.high) * scale


def _cast_nest(b: PrimBuilder, attrs: SimulatedCastAttrs, x: Buffer, scale: Buffer) -> Buffer:
    return b.compute(
        "rounded", x.shape, FLOAT32,
        lambda *i: _scaled_expr(attrs, x[i], scale_at(scale, i, attrs.axis)),
    )  # fmt: skip


def _blocks_nest(b: PrimBuilder, attrs: SimulatedBlocksAttrs, x: Buffer) -> Buffer:
    axis, block = attrs.axis % len(x.shape), attrs.block
    length = x.shape[axis]
    shape = [ceil_div(n, block) if k == axis else n for k, n in enumerate(x.shape)]

    def element(i: Sequence[IntLike], inner: IntLike) -> tuple[IntLike, ...]:
        # A short last block reads its last element again.
        at = imin(Index.of(i[axis]) * block + inner, length - 1)
        return tuple(at if k == axis else v for k, v in enumerate(i))

    def magnitude(*v: IntLike) -> Expr:
        return call("bits", x[element(v[:-1], v[-1])], dtype=INT32) & 0x7FFFFFFF

    zero = const(0, INT32)
    largest = b.reduce("largest", shape, INT32, {"r": block}, magnitude, zero, "Max")
    scales = b.compute("scales", shape, FLOAT32, lambda *i: scale_expr(attrs, largest[i]))

    def rounded(*i: IntLike) -> Expr:
        at = tuple(Index.of(v) // block if k == axis else v for k, v in enumerate(i))
        return _scaled_expr(attrs, x[i], scales[at])

    return b.compute("rounded", x.shape, FLOAT32, rounded)


def scale_expr(attrs: SimulatedBlocksAttrs, largest: Expr) -> Expr:
    """The float32 scale of a block, from the int32 bits of its largest magnitude."""
    if attrs.scale_dtype == POWERS:
        exponent = ((largest + _raised(attrs)) >> 23) - _emax(attrs.top or attrs.high)
        bits = select(exponent > 0, minimum(exponent, 254) << 23, _LEAST)
        scale = call("bits", bits, dtype=FLOAT32)
    else:
        ratio = call("bits", largest, dtype=FLOAT32) / float(
            np.float32((attrs.top or attrs.high) * attrs.unit)
        )
        dtype = DType.parse(attrs.scale_dtype)
        scale = _rounded_expr(dtype, ratio, attrs.scale_low, attrs.scale_high)
    return select(largest >= _INFINITY, const(math.nan), scale) * attrs.unit


# ---- definitions ---------------------------------------------------------------------------------
SIMULATED_CAST = register_op(
    OpDef(
        "qnn.simulated_cast", _cast_type, _cast, _cast_nest, SimulatedCastAttrs, (2, 2),
        Fusion.ELEMENTWISE, numbered=True, in_float32=True,
        gradient=INTEGERS,
        doc="float32 data rounded to a scaled format; operands: data, scale",
    )
)  # fmt: skip


def _stored(a: SimulatedBlocksAttrs, _: Sequence[TensorType]) -> Stored:
    return Stored(0 if a.scale_dtype == POWERS else FLOAT32.bits)  # the scale of the whole tensor


SIMULATED_BLOCKS = register_op(
    OpDef(
        "qnn.simulated_blocks", _blocks_type, _blocks, _blocks_nest, SimulatedBlocksAttrs, (1, 1),
        at_source=True, in_float32=True, stored=_stored,
        gradient=INTEGERS,
        doc="float32 data rounded to a format with a scale for each block of an axis",
    )
)  # fmt: skip
