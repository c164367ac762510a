"""What convolution, dense and matmul ask of the dtypes of their operands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from compiler.op.common import require
from compiler.tensor.expr import Expr
from compiler.types.dtypes import INT8, INT16, UINT8, Array, DType
from compiler.types.tensor_types import TensorType, shape_text


def result_dtype(op: str, x: DType, w: DType, out_dtype: str, zero_point: int = 0) -> DType:
    """dtype in which products are formed, accumulated and returned.

    Operands share a dtype, except that int8 and uint8 may be mixed, and int16 data have int8
    weights, if `out_dtype` is given.

    Raises:
        TypeInferenceError: the dtypes do not fit together.
    """
    mixed = {x, w} <= {INT8, UINT8} or (x, w) == (INT16, INT8)
    require(
        x == w or (mixed and bool(out_dtype)),
        f"{op}: data is {x} and weight {w}; cast one of them"
        + (", or give out_dtype='int32'" if mixed else ""),
    )
    require(x.kind != "bool", f"{op} is not defined for bool; cast the operands first")
    out = DType.parse(out_dtype) if out_dtype else x
    require(
        out.is_integer or not x.is_integer,
        f"{op}: integer operands need an integer out_dtype, not {out}",
    )
    require(not zero_point or x.is_integer, f"{op}: input_zero_point is for integer data, not {x}")
    return out


def check_bits(op: str, x: DType, bits: int, filling: int = 0) -> None:
    """Check that data have an attribute `input_bits` that goes with their dtype, and so does what
    fills padding.

    Raises:
        TypeInferenceError: it does not.
    """
    if bits:
        text = f"{op}: input_bits is 0, or 1 to 8 for uint8 data, not {bits} for {x}"
        require(x == UINT8 and 1 <= bits <= 8, text)
        fits = 0 <= filling < 1 << bits
        require(fits, f"{op}: {filling}, which stands for zero, has more than {bits} bits")


Integers = TypeVar("Integers", Array, Expr)


def low_bits(x: Integers, bits: int) -> Integers:
    """The low `bits` of integers; 0: all of them."""
    return x & ((1 << bits) - 1) if bits else x


def check_bias(op: str, types: Sequence[TensorType], channels: int, dtype: DType) -> None:
    """Check that the third of `types`, if any, is a bias [channels] of `dtype`.

    Raises:
        TypeInferenceError: it is not.
    """
    for bias in types[2:]:
        require(
            bias.shape == (channels,) and bias.dtype == dtype,
            f"{op}: the bias must be {dtype} of shape ({channels},), "
            f"not {bias.dtype} of shape {shape_text(bias.shape)}",
        )
