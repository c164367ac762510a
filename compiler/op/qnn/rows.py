"""Scales that are found when a program runs: one for each row of a float32 tensor, and integers on
grids of such scales.

A row runs along one axis, of any length. Its scale puts its largest magnitude on the largest number
of a format (`qnn.row_scales`), or, with zero points (`qnn.row_zeros`), its range and 0 on the
integers from 0 to `levels`; what it is rounded to says `SimulatedBlocksAttrs`, of which a row is
one block. Rows of NaN or infinity have the scale NaN.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from compiler.arithmetic.arrays import Arithmetic
from compiler.op.common import axis_of, read, require
from compiler.op.gradient import INTEGERS
from compiler.op.opdef import Fusion, OpDef, register_op
from compiler.op.qnn.formats import SimulatedBlocksAttrs, block_scales, scale_expr
from compiler.op.stored import Stored
from compiler.symbolic import Dim, IntLike
from compiler.tensor.builder import PrimBuilder
from compiler.tensor.expr import Expr, call, cast, const, minimum, select
from compiler.tensor.stmt import Buffer
from compiler.types.dtypes import FLOAT32, INT32, UINT8, Array
from compiler.types.tensor_types import TensorType, broadcast, shape_text


@dataclass(frozen=True)
class RowScalesAttrs:
    """Scales of rows.

    Attributes:
        axis: what rows run along; it stays, with length 1.
        top: the number that the largest magnitude of a row is meant to become, if there are no
            `levels`.
        levels: the largest of the integers that are to hold the row's range and 0; 0: none.
        scale_dtype, scale_low, scale_high, unit, scale_rounding, step: see `SimulatedBlocksAttrs`.
    """

    axis: int = -1
    top: float = 127.0
    levels: int = 0
    scale_dtype: str = "float32"
    scale_low: float = float(np.finfo(np.float32).tiny)
    scale_high: float = float(np.finfo(np.float32).max)
    unit: float = 1.0
    scale_rounding: str = "floor"
    step: float = 0.0

    @property
    def blocks(self) -> SimulatedBlocksAttrs:
        """How a block of the same numbers finds its scale."""
        top = float(self.levels or self.top)
        return SimulatedBlocksAttrs(
            "", -top, top, self.axis, 1, self.scale_dtype, self.scale_low, self.scale_high,
            self.unit, 0.0, self.scale_rounding, self.step,
        )  # fmt: skip


@dataclass(frozen=True)
class RowGridAttrs:
    """Integers from 0 to `levels`; `axis` is that of the rows."""

    axis: int = -1
    levels: int = 255


# ---- types ---------------------------------------------------------------------------------------
def _rows(op: str, axis: int, x: TensorType) -> tuple[Dim, ...]:
    require(x.dtype == FLOAT32, f"{op} takes float32, not {x.dtype}")
    k = axis_of(op, axis, x.rank)
    return tuple(1 if i == k else n for i, n in enumerate(x.shape))


def _scales_type(a: RowScalesAttrs, types: Sequence[TensorType]) -> TensorType:
    (x,) = types
    require(a.levels >= 0 and a.top > 0, "qnn.row_scales: top and levels must be positive")
    return TensorType(_rows("qnn.row_scales", a.axis, x), FLOAT32)


def _zeros_type(a: RowGridAttrs, types: Sequence[TensorType]) -> TensorType:
    x, scale = types
    shape = _rows("qnn.row_zeros", a.axis, x)
    _require_rows("qnn.row_zeros", "scales", scale, shape)
    return TensorType(shape, INT32)


def _require_rows(op: str, what: str, t: TensorType, shape: tuple[Dim, ...]) -> None:
    require(
        t.shape == shape, f"{op}: {what} must be {shape_text(shape)}, not {shape_text(t.shape)}"
    )


def _quantize_type(a: RowGridAttrs, types: Sequence[TensorType]) -> TensorType:
    x, scale, zero = types
    shape = _rows("qnn.quantize_rows", a.axis, x)
    _require_rows("qnn.quantize_rows", "scales", scale, shape)
    _require_rows("qnn.quantize_rows", "zero points", zero, shape)
    require(0 < a.levels < 256, f"qnn.quantize_rows: {a.levels} levels do not fit uint8")
    return x.with_dtype(UINT8)


def _dequantize_type(_: Any, types: Sequence[TensorType]) -> TensorType:
    q, scale, zero = types
    broadcast(q.shape, scale.shape)
    broadcast(q.shape, zero.shape)
    return q.with_dtype(FLOAT32)


# ---- references ----------------------------------------------------------------------------------
def _scales(ar: Arithmetic, a: RowScalesAttrs, x: Array) -> Array:
    axis = a.axis % x.ndim
    if a.levels:
        above = np.maximum.reduce(x, axis, keepdims=True, initial=np.float32(0))
        below = np.minimum.reduce(x, axis, keepdims=True, initial=np.float32(0))
        with np.errstate(all="ignore"):
            reach = np.asarray(above - below, np.float32)
    else:
        reach = x
    # Bits of magnitudes are in the order of the magnitudes, with NaN above infinity.
    bits = np.ascontiguousarray(reach).view(np.int32) & 0x7FFFFFFF
    largest = np.maximum.reduce(bits, axis, keepdims=True, initial=0)
    return block_scales(ar, a.blocks, largest)


def _zeros(ar: Arithmetic, a: RowGridAttrs, x: Array, scale: Array) -> Array:
    below = np.minimum.reduce(x, a.axis % x.ndim, keepdims=True, initial=np.float32(0))
    with np.errstate(all="ignore"):
        zero = np.float32(0) - below / scale
    zero = np.where(zero > 0, zero, np.float32(0))
    return np.asarray(np.rint(np.minimum(zero, np.float32(a.levels))).astype(np.int32))


def _quantize(ar: Arithmetic, a: RowGridAttrs, x: Array, scale: Array, zero: Array) -> Array:
    low, high = (np.float32(0) - zero).astype(np.float32), (a.levels - zero).astype(np.float32)
    with np.errstate(all="ignore"):
        v = x / scale
    v = np.where(v > low, v, low)  # NaN goes to the lowest
    v = np.where(v < high, v, high)
    return np.asarray((np.rint(v).astype(np.int32) + zero).astype(np.uint8))


def _dequantize(ar: Arithmetic, _: Any, q: Array, scale: Array, zero: Array) -> Array:
    return np.asarray((q.astype(np.int32) - zero).astype(np.float32) * scale)


# ---- loop nests ----------------------------------------------------------------------------------
def _end(b: PrimBuilder, axis: int, x: Buffer, update: str) -> Buffer:
    """The largest or the smallest number of each row and 0."""

    def value(*v: IntLike) -> Expr:
        *i, r = v
        return x[tuple(r if k == axis else n for k, n in enumerate(i))]

    shape = [1 if k == axis else n for k, n in enumerate(x.shape)]
    extents = {"r": x.shape[axis]}
    return b.reduce(f"row_{update.lower()}", shape, FLOAT32, extents, value, const(0.0), update)


def _scales_nest(b: PrimBuilder, a: RowScalesAttrs, x: Buffer) -> Buffer:
    axis = a.axis % len(x.shape)
    shape = [1 if k == axis else n for k, n in enumerate(x.shape)]
    if a.levels:
        above, below = _end(b, axis, x, "Max"), _end(b, axis, x, "Min")

        def reach(*i: IntLike) -> Expr:
            return call("bits", above[i] - below[i], dtype=INT32) & 0x7FFFFFFF

        return b.compute("scales", shape, FLOAT32, lambda *i: scale_expr(a.blocks, reach(*i)))

    def magnitude(*v: IntLike) -> Expr:
        *i, r = v
        at = tuple(r if k == axis else n for k, n in enumerate(i))
        return call("bits", x[at], dtype=INT32) & 0x7FFFFFFF

    zero = const(0, INT32)
    largest = b.reduce("largest", shape, INT32, {"r": x.shape[axis]}, magnitude, zero, "Max")
    return b.compute("scales", shape, FLOAT32, lambda *i: scale_expr(a.blocks, largest[i]))


def _zeros_nest(b: PrimBuilder, a: RowGridAttrs, x: Buffer, scale: Buffer) -> Buffer:
    below = _end(b, a.axis % len(x.shape), x, "Min")

    def zero(*i: IntLike) -> Expr:
        v = const(0.0) - below[i] / scale[i]
        v = minimum(select(v > 0.0, v, const(0.0)), float(a.levels))
        return call("rint_i32", v, dtype=INT32)

    return b.compute("zeros", list(scale.shape), INT32, zero)


def _quantize_nest(
    b: PrimBuilder, a: RowGridAttrs, x: Buffer, scale: Buffer, zero: Buffer
) -> Buffer:
    def element(*i: IntLike) -> Expr:
        z = read(zero, i)
        low, high = cast(const(0, INT32) - z, FLOAT32), cast(const(a.levels, INT32) - z, FLOAT32)
        v = x[i] / read(scale, i)
        v = select(v > low, v, low)
        v = select(v < high, v, high)
        return cast(call("rint_i32", v, dtype=INT32) + z, UINT8)

    return b.compute("quantized", x.shape, UINT8, element)


def _dequantize_nest(b: PrimBuilder, _: Any, q: Buffer, scale: Buffer, zero: Buffer) -> Buffer:
    return b.compute(
        "real", q.shape, FLOAT32,
        lambda *i: cast(cast(q[i], INT32) - read(zero, i), FLOAT32) * read(scale, i),
    )  # fmt: skip


def _stored(a: RowScalesAttrs, _: Sequence[TensorType]) -> Stored:
    return Stored(FLOAT32.bits if a.unit != 1.0 else 0)  # the scale of the whole tensor


# ---- definitions ---------------------------------------------------------------------------------
ROW_SCALES = register_op(
    OpDef(
        "qnn.row_scales", _scales_type, _scales, _scales_nest, RowScalesAttrs, (1, 1),
        in_float32=True, stored=_stored,
        gradient=INTEGERS,
        doc="a scale for each row of float32 data, found from the row",
    )
)  # fmt: skip
ROW_ZEROS = register_op(
    OpDef(
        "qnn.row_zeros", _zeros_type, _zeros, _zeros_nest, RowGridAttrs, (2, 2),
        in_float32=True, gradient=INTEGERS,
        doc="the integer of 0 in each row; operands: data, scales of rows",
    )
)  # fmt: skip
QUANTIZE_ROWS = register_op(
    OpDef(
        "qnn.quantize_rows", _quantize_type, _quantize, _quantize_nest, RowGridAttrs, (3, 3),
        Fusion.ELEMENTWISE, in_float32=True,
        gradient=INTEGERS,
        doc="float32 data as uint8; operands: data, scales and zero points of rows",
    )
)  # fmt: skip
DEQUANTIZE_ROWS = register_op(
    OpDef(
        "qnn.dequantize_rows", _dequantize_type, _dequantize, _dequantize_nest, arity=(3, 3),
        fusion=Fusion.ELEMENTWISE, in_float32=True,
        gradient=INTEGERS,
        doc="(q - zero point) * scale; operands: integers, scales and zero points of rows",
    )
)  # fmt: skip
