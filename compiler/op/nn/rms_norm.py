"""nn.rms_norm: data over its root mean square, times a gain (Zhang and Sennrich, Root Mean Square
Layer Normalization, 2019)."""

from __future__ import annotations

from collections.abc import Sequence

from compiler.arithmetic.arrays import Arithmetic
from compiler.op.accumulate import check_mode
from compiler.op.common import axis_of, one_dtype, read, require
from compiler.op.facts import IntegerForm
from compiler.op.gradients import normalizations
from compiler.op.nn.norm import LayerNormAttrs, normalized_terms
from compiler.op.opdef import Fusion, OpDef, Quantized, register_op
from compiler.op.reduce import lower_mean, mean_of_products
from compiler.tensor.builder import PrimBuilder
from compiler.tensor.expr import call
from compiler.tensor.stmt import Buffer
from compiler.types.dtypes import Array
from compiler.types.tensor_types import TensorType, broadcast, shape_text


def _infer(a: LayerNormAttrs, types: Sequence[TensorType]) -> TensorType:
    x, gain = types
    dtype = one_dtype("nn.rms_norm", types)
    require(
        dtype.is_float or dtype.is_custom,
        f"nn.rms_norm is not defined for {dtype}; cast the operands to a float dtype",
    )
    check_mode("nn.rms_norm", a.accumulate, x.dtype)
    inner = x.shape[axis_of("nn.rms_norm", a.axis, x.rank) :]
    require(
        broadcast(inner, gain.shape) == inner,
        f"nn.rms_norm: a gain of shape {shape_text(gain.shape)} does not fit the normalized shape "
        f"{shape_text(inner)}",
    )
    return x


def _reference(ar: Arithmetic, a: LayerNormAttrs, x: Array, gain: Array) -> Array:
    """s = sqrt(mean(x * x) + epsilon); (x / s) * gain, one rounding per operation."""
    axes = range(a.axis % x.ndim, x.ndim)
    squares = mean_of_products(ar, x, x, axes, a.accumulate)
    s = ar.call("sqrt", ar.add(squares, ar.const(a.epsilon)))
    return ar.mul(ar.div(x, s), gain)


def _lower(b: PrimBuilder, a: LayerNormAttrs, x: Buffer, gain: Buffer) -> Buffer:
    axes = range(a.axis % len(x.shape), len(x.shape))
    squares = lower_mean(b, "rms_squares", x, axes, mode=a.accumulate, times=x)
    s = b.compute(
        "rms_root", squares.shape, x.dtype, lambda *i: call("sqrt", squares[i] + a.epsilon)
    )
    y = b.compute("rms_scaled", x.shape, x.dtype, lambda *i: x[i] / read(s, i))
    return b.compute("rms_norm", x.shape, x.dtype, lambda *i: y[i] * read(gain, i))


RMS_NORM = register_op(
    OpDef(
        "nn.rms_norm",
        _infer,
        _reference,
        _lower,
        LayerNormAttrs,
        (2, 2),
        Fusion.ANCHOR,
        quantized=Quantized.INTEGER,
        terms=normalized_terms,
        numbered=True,
        integer_form=IntegerForm.RMS_NORM,
        gradient=normalizations.rms_norm,
        doc="data, gain; root mean square over the axes from `axis` to the last",
    )
)
