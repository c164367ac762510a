"""Converters of operators on quantized integers: integer operators, or exact compositions.

A real value r is kept as an integer q with r = (q - zero_point) * scale. Integers are widened to
int32, zero points subtracted and products summed exactly there; scaling is in float32, rounding to
nearest even, and what lies outside the result's dtype saturates.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from compiler.frontend.converters_cast import converted
from compiler.frontend.converters_conv import convolution
from compiler.frontend.converters_nn import matrix_product
from compiler.frontend.element_types import NARROW, element_dtype
from compiler.frontend.integer_products import (
    integer_convolution,
    integer_matrices,
    integer_requantized,
    known_integers,
    one_zero_point,
)
from compiler.frontend.node import Node, converts
from compiler.frontend.run_time import checked
from compiler.frontend.values import Imported, scalar
from compiler.ir.expr import Atom, Constant, tensor_type
from compiler.types.dtypes import FLOAT32, INT32, INT64, DType
from compiler.types.tensor_types import TensorType

_UINT8 = 2
_BYTES = ("int8", "uint8")
_INTEGERS = (*_BYTES, "int16", "uint16")


# ---- scales and zero points ----------------------------------------------------------------------
def _fitted(n: Node, i: int, t: TensorType) -> Atom:
    """Input `i`, a scale or zero point, in a shape that broadcasts to data of type `t`.

    It is one number, one for each position of `axis`, or one for each block along `axis`.
    """
    v, own = n.atom(i), n.type(i)
    if own.rank == 0 or own.shape == (1,):
        return n.step("reshape", v, newshape=()) if own.rank else v
    axis = n.axis(1, t.rank)
    block = int(n.attr("block_size", 0))
    if not block:
        if own.shape != (t.shape[axis],):
            raise n.unsupported(f"a scale or zero point {own} on axis {axis} of {t}")
        return n.step("reshape", v, newshape=_along(axis, t.rank))
    size, count = t.shape[axis], own.shape[axis] if own.rank == t.rank else None
    if not isinstance(size, int) or not isinstance(count, int) or -(-size // block) != count:
        raise n.unsupported(f"block_size={block} and a scale or zero point {own} for {t}")
    n.reserve(size)
    return n.step("take", v, Constant.of(np.arange(size) // block, INT64), axis=axis)


def _along(axis: int, rank: int) -> tuple[int, ...]:
    return tuple(-1 if k == axis else 1 for k in range(rank))


def _vector(n: Node, v: Atom, axis: int, rank: int) -> Atom:
    """A scale or zero point of one number, of one per position of `axis`, or of full rank."""
    own = tensor_type(v)
    if own.rank in (0, rank):
        return v
    if own.rank != 1:
        raise n.unsupported(f"a scale or zero point {own}")
    return n.step("reshape", v, newshape=() if own.shape == (1,) else _along(axis, rank))


def cast_to(n: Node, v: Atom, dtype: DType) -> Atom:
    """`v` in another dtype."""
    return v if tensor_type(v).dtype == dtype else n.step("cast", v, dtype=str(dtype))


def _per_axis(n: Node, t: TensorType) -> bool:
    """Whether the scale is one float32 number or one for each position of an axis."""
    own = n.type(1)
    if own.dtype != FLOAT32 or int(n.attr("block_size", 0)):
        return False
    return own.rank == 0 or own.shape == (1,) or own.shape == (t.shape[n.axis(1, t.rank)],)


def _scale(n: Node) -> Atom:
    return _fitted(n, 1, n.type(1)) if n.type(1).shape == (1,) else n.atom(1)


def saturated(
    n: Node, value: Atom, zero_point: Atom | None, dtype: DType, bounds: tuple[int, int]
) -> Atom:
    """A real `value` rounded to nearest even, plus the zero point, within `bounds` of a dtype.

    NaN becomes the lower bound, as in `qnn.quantize`. A number format may round the upper bound up:
    the cast saturates to the dtype, and integers within it are bounded once more.
    """
    q = cast_to(n, n.step("round", value), FLOAT32)
    if zero_point is not None:
        q = n.step("add", q, cast_to(n, zero_point, FLOAT32))
    low, high = (scalar(b, tensor_type(q)) for b in bounds)
    q = n.step("where", n.step("greater", q, low), q, low)
    q = n.step("minimum", q, high)
    if bounds[1] == np.iinfo(dtype.storage).max:
        return n.call("cast", q, dtype=str(dtype))
    whole = n.step("cast", q, dtype=str(dtype))
    return n.call("minimum", whole, scalar(bounds[1], tensor_type(whole)))


def _integer(n: Node, dtype: DType) -> DType:
    if str(dtype) not in _INTEGERS:
        raise n.unsupported(f"the quantized dtype {dtype}; supported: {', '.join(_INTEGERS)}")
    return dtype


# ---- quantize, dequantize ------------------------------------------------------------------------
@converts("QuantizeLinear")
def quantize_linear(n: Node) -> Imported:
    """Per tensor, per position of an axis, or per block; the division is in the scale's dtype."""
    t = n.type(0)
    code = n.element(2) if n.has(2) else n.attr("output_dtype", 0) or _UINT8
    dtype = element_dtype(code, n.where)
    if dtype.is_custom:
        return _to_float8(n, code)
    low, high = quantized_bounds(n, code, dtype)
    n.mark(0, code)
    zero = one_zero_point(n, 2)
    fast = str(dtype) in _BYTES and t.dtype == FLOAT32 and not n.attr("precision", 0)
    if fast and zero is not None and _per_axis(n, t):
        axis = 0 if n.type(1).size == 1 else n.axis(1, t.rank)
        return n.call(
            "qnn.quantize", n.atom(0), _scale(n), zero_point=zero, axis=axis,
            out_dtype=str(dtype), qmin=low, qmax=high,
        )  # fmt: skip
    zero_point = _fitted(n, 2, t) if n.has(2) else None
    return saturated(n, _scaled(n), zero_point, dtype, (low, high))


def _scaled(n: Node) -> Atom:
    """The data over the scale, in the dtype that the node asks for, or the scale's."""
    scale, precision = _fitted(n, 1, n.type(0)), n.attr("precision", 0)
    within = element_dtype(precision, n.where) if precision else tensor_type(scale).dtype
    return n.step("divide", cast_to(n, n.atom(0), within), cast_to(n, scale, within))


def quantized_bounds(n: Node, code: int, dtype: DType) -> tuple[int, int]:
    """The smallest and the largest quantized value of an ONNX element type, held in `dtype`."""
    if code in NARROW:
        return NARROW[code].bounds
    info = np.iinfo(_integer(n, dtype).storage)
    return int(info.min), int(info.max)


def _to_float8(n: Node, code: int) -> Imported:
    """Data over its scale in an 8-bit or 4-bit float, whose zero point is zero."""
    _no_zero_point(n)
    return converted(n, _scaled(n), code, n.call)


def _no_zero_point(n: Node) -> None:
    if not n.has(2):
        return
    known = n.constant(2)
    if known is None:
        zeros = n.step("cast", n.atom(2), dtype="float32")
        others = n.step("not_equal", zeros, scalar(0, tensor_type(zeros)))
        others = n.step("reshape", n.step("cast", others, dtype="int64"), newshape=(-1,))
        count = n.step("sum", others, axis=(0,), keepdims=False)
        checked(n, count, 0, "zero_points_that_are_not_0")
    elif known.any():
        raise n.unsupported("a zero point of a float other than 0")


@converts("DequantizeLinear")
def dequantize_linear(n: Node) -> Imported:
    """Per tensor, per position of an axis, or per block; the result has the scale's dtype."""
    t = n.type(0)
    code = n.attr("output_dtype", 0)
    wanted = element_dtype(code, n.where) if code else n.type(1).dtype
    if t.dtype.is_custom:
        _no_zero_point(n)
        real = n.step(
            "multiply", cast_to(n, n.atom(0), FLOAT32), cast_to(n, _fitted(n, 1, t), FLOAT32)
        )
        return cast_to(n, real, wanted)
    zero = one_zero_point(n, 2)
    if t.dtype != INT32:
        _integer(n, t.dtype)
    fast = wanted == FLOAT32 and str(t.dtype) in (*_BYTES, "int32")
    if fast and zero is not None and _per_axis(n, t):
        axis = 0 if n.type(1).size == 1 else n.axis(1, t.rank)
        return n.call("qnn.dequantize", n.atom(0), _scale(n), zero_point=zero, axis=axis)
    q = cast_to(n, n.atom(0), INT32)
    if n.has(2):
        q = n.step("subtract", q, cast_to(n, _fitted(n, 2, t), INT32))
    scale = cast_to(n, _fitted(n, 1, t), FLOAT32)
    real = n.step("multiply", cast_to(n, q, FLOAT32), scale)
    return cast_to(n, real, wanted)


# ---- products of integers ------------------------------------------------------------------------
def _centred(n: Node, i: int, zero: int, axis: int) -> Atom:
    """Input `i` as int32 minus its zero point, input `zero`."""
    q = cast_to(n, n.atom(i), INT32)
    if not n.has(zero) or one_zero_point(n, zero) == 0:
        return q
    offset = _vector(n, cast_to(n, n.atom(zero), INT32), axis, n.type(i).rank)
    return n.step("subtract", q, offset)


def _matrices(n: Node, b: int, zeros: tuple[int, int]) -> Atom:
    """The int32 product; zero points of the left are per row, of the right per column."""
    columns = known_integers(n, b, zeros[1], n.type(b).rank - 1)
    known = integer_matrices(n, n.atom(0), None if columns is None else columns.T, zeros[0])
    if known is not None:
        return known
    zero = [one_zero_point(n, i) for i in zeros]
    if None not in zero and all(str(n.type(i).dtype) in _BYTES for i in (0, b)):
        return matrix_product(n, n.atom(0), n.atom(b), partial(_in_bytes, n, zero))
    rows = max(n.type(0).rank - 2, 0)
    left = _centred(n, 0, zeros[0], rows)
    right = _centred(n, b, zeros[1], n.type(b).rank - 1)
    return matrix_product(n, left, right, n.step)


def _in_bytes(n: Node, zero: list[int | None], op: str, *args: Atom, **attrs: Any) -> Atom:
    if op == "nn.matmul":
        attrs |= {"input_zero_point": zero[0], "weight_zero_point": zero[1], "out_dtype": "int32"}
    return n.step(op, *args, **attrs)


@converts("MatMulInteger")
def matmul_integer(n: Node) -> Imported:
    """An int32 matrix product of 8-bit integers."""
    return _matrices(n, 1, (2, 3))


@converts("QLinearMatMul")
def qlinear_matmul(n: Node) -> Imported:
    """A matrix product of integers, scaled to another grid."""
    acc = _matrices(n, 3, (2, 5))
    rank = tensor_type(acc).rank
    left = _vector(n, cast_to(n, n.atom(1), FLOAT32), max(rank - 2, 0), rank)
    right = _vector(n, cast_to(n, n.atom(4), FLOAT32), max(rank - 1, 0), rank)
    return _requantized(n, acc, left, right, 6)


@converts("ConvInteger")
def conv_integer(n: Node) -> Imported:
    """An int32 convolution of 8-bit integers; padding is the zero point."""
    return _convolved(n, 1, (2, 3), None)


@converts("QLinearConv")
def qlinear_conv(n: Node) -> Imported:
    """A convolution of integers, scaled to another grid."""
    acc = _convolved(n, 3, (2, 5), n.atom(8) if n.has(8) else None)
    rank = tensor_type(acc).rank
    left = _vector(n, cast_to(n, n.atom(1), FLOAT32), 1, rank)
    right = _vector(n, cast_to(n, n.atom(4), FLOAT32), 1, rank)
    return _requantized(n, acc, left, right, 6)


def _convolved(n: Node, w: int, zeros: tuple[int, int], bias: Any) -> Atom:
    known = integer_convolution(
        n, known_integers(n, w, zeros[1], 0), zeros, [] if bias is None else [bias]
    )
    if known is not None:
        return known
    data, weight = _centred(n, 0, zeros[0], 1), _centred(n, w, zeros[1], 0)
    return convolution(n, data, weight, [bias] if bias is not None else [], n.step)


def _requantized(n: Node, acc: Atom, left: Atom, right: Atom, scale: int) -> Atom:
    """round(acc * (left * right / scale)) + zero point, saturated; the zero point follows `scale`.

    The factors are combined first, in float32.
    """
    dtype = _integer(n, n.type(scale + 1).dtype)
    rank = tensor_type(acc).rank
    y_scale = _vector(n, cast_to(n, n.atom(scale), FLOAT32), rank - 1, rank)
    factor = n.step("divide", n.step("multiply", left, right), y_scale)
    bounds = quantized_bounds(n, n.element(scale + 1), dtype)
    known = integer_requantized(n, acc, factor, scale, bounds)
    if known is not None:
        return known
    real = n.step("multiply", cast_to(n, acc, FLOAT32), factor)
    zero = _vector(n, n.atom(scale + 1), rank - 1, rank)
    return saturated(n, real, zero, dtype, bounds)
