"""qnn.layer_norm: of 8-bit integers, in integers alone.

Neither the scale nor the zero point of the data matters to x - mean over the standard deviation.
With n elements x in a row, S their sum and W = n * sum(x^2) - S^2 (n^2 times the variance, exact):

    s = floor(sqrt(W * 4^k + epsilon))       n times the standard deviation, k bits behind the point
    u = floor((n * x - S) * floor(2^60 / s) / 2^(44 - k))        normalized, 16 bits behind it
    y = floor((u * gain + offset + 2^31) / 2^32) + output_zero_point, clipped

A root mean square norm (`centred` false) takes no mean away: with z the zero point of the data,
W = n * sum((x - z)^2), and n * (x - z) takes the place of n * x - S.

All in int64, with k = 23 - bits(n - 1). (Kim et al., I-BERT: Integer-only BERT Quantization, 2021,
section 3.6, with a root that is exact: their Newton iterations arrive at the same integer.)

Nothing overflows: W < n^2 * 2^14, so that s^2 < 2^62 if epsilon <= 2^60 (uncentred W < n^2 * 2^16,
so that s^2 < 2^63); |n * x - S| is at most sqrt(n * W), so that |u| < 2^25 for n <= 2^16; gain <
2^36 and offset < 2^62 are the caller's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from compiler.arithmetic.arrays import Arithmetic
from compiler.op.common import axis_of, read, require, type_of
from compiler.op.facts import Zeros
from compiler.op.gradient import INTEGERS
from compiler.op.opdef import Fusion, OpDef, register_op
from compiler.op.qnn.quantize import integer_dtype, plus
from compiler.op.stored import Stored, zero_points
from compiler.symbolic import IntLike
from compiler.tensor.builder import PrimBuilder
from compiler.tensor.expr import Buffer, Expr, call, cast, const, let, maximum, minimum, select
from compiler.types.dtypes import FLOAT64, INT32, INT64, Array, DType
from compiler.types.tensor_types import TensorType, broadcast, shape_text

MOST = 1 << 16
"""Elements that a row may have."""
LARGEST_EPSILON = 1 << 60
GAIN_BITS = 16
OFFSET_BITS = 32
_INVERSE_BITS = 60
_UNIT_BITS = OFFSET_BITS - GAIN_BITS


@dataclass(frozen=True)
class QuantizedLayerNormAttrs:
    """Attributes of qnn.layer_norm: the axes from `axis` to the last are normalized; `epsilon`, in
    units of the variance times n^2 * 4^k, is from 1 to 2^60; `centred`: the mean is taken away,
    else `input_zero_point` is."""

    axis: int = -1
    epsilon: int = 1
    output_zero_point: int = 0
    out_dtype: str = "uint8"
    qmin: int = 0
    qmax: int = 255
    centred: bool = True
    input_zero_point: int = 0


def root_bits(n: int) -> int:
    """k: the bits behind the point of the root, for rows of `n` elements."""
    return 23 - (n - 1).bit_length()


def _infer(a: QuantizedLayerNormAttrs, types: Sequence[TensorType]) -> TensorType:
    x, *constants = types
    name = "qnn.layer_norm"
    require(str(x.dtype) in ("int8", "uint8"), f"{name} takes int8 or uint8 data, not {x.dtype}")
    inner = x.shape[axis_of(name, a.axis, x.rank) :]
    size = math.prod(n for n in inner if isinstance(n, int))
    require(
        all(isinstance(n, int) for n in inner) and 1 <= size <= MOST,
        f"{name} takes rows of 1 to {MOST} elements, not {shape_text(inner)}",
    )
    for p in constants:
        require(p.dtype == INT64, f"{name} takes int64 gain and offset, not {p.dtype}")
        require(
            broadcast(inner, p.shape) == inner,
            f"{name}: a gain or offset of shape {shape_text(p.shape)} does not fit rows of "
            f"{shape_text(inner)}",
        )
    limits = f"{name}: epsilon must be an integer from 1 to 2^60, not {a.epsilon!r}"
    require(isinstance(a.epsilon, int) and 1 <= a.epsilon <= LARGEST_EPSILON, limits)
    return x.with_dtype(integer_dtype(name, a))


# ---- reference -----------------------------------------------------------------------------------
def _root(v: Array) -> Array:
    """floor(sqrt(v)) of int64 below 2^62: the float64 root is at most one off."""
    r = np.sqrt(v.astype(np.float64)).astype(np.int64)
    r = r - (r * r > v)
    return np.asarray(r + ((r + 1) * (r + 1) <= v))


def _reference(
    _: Arithmetic, a: QuantizedLayerNormAttrs, x: Array, gain: Array, offset: Array
) -> Array:
    axes = tuple(range(a.axis % x.ndim, x.ndim))
    q = x.astype(np.int64) - (0 if a.centred else a.input_zero_point)
    n = math.prod(x.shape[k] for k in axes)
    k = root_bits(n)
    total, squares = (v.sum(axes, keepdims=True) for v in (q * a.centred, q * q))
    inverse = (1 << _INVERSE_BITS) // _root(((n * squares - total * total) << (2 * k)) + a.epsilon)
    unit = ((n * q - total) * inverse) >> (_INVERSE_BITS - k - _UNIT_BITS)
    y = ((unit * gain + offset + (1 << (OFFSET_BITS - 1))) >> OFFSET_BITS) + a.output_zero_point
    return np.asarray(np.clip(y, a.qmin, a.qmax).astype(a.out_dtype))


# ---- loop nest -----------------------------------------------------------------------------------
def _int64(value: int) -> Expr:
    return const(value, INT64)


def _root_expr(v: Expr) -> Expr:
    """`_root` of one number."""

    def not_above(r: Expr) -> Expr:
        return select(r * r > v, r - 1, r)

    def not_below(r: Expr) -> Expr:
        return select((r + 1) * (r + 1) <= v, r + 1, r)

    near = cast(call("sqrt", cast(v, FLOAT64)), INT64)
    return let(near, lambda r: let(not_above(r), not_below))


def _lower(
    b: PrimBuilder, a: QuantizedLayerNormAttrs, x: Buffer, gain: Buffer, offset: Buffer
) -> Buffer:
    t = type_of(x)
    first = a.axis % t.rank
    inner = [d for d in t.shape[first:] if isinstance(d, int)]
    n = math.prod(inner)
    k = root_bits(n)
    kept = (*t.shape[:first], *(1 for _ in inner))
    extents = {f"r{first + j}": d for j, d in enumerate(inner)}
    held = INT32 if n * 255**2 < 2**31 else INT64
    zero = 0 if a.centred else -a.input_zero_point

    def sum_of(name: str, square: bool = False) -> Buffer:
        def value(*v: IntLike) -> Expr:
            e = plus(cast(x[(*v[:first], *v[t.rank :])], held), zero)
            return e * e if square else e

        return b.reduce(name, kept, held, extents, value, const(0, held))

    total = sum_of("ln_sum") if a.centred else None
    squares = sum_of("ln_squares", square=True)

    def inverse(*i: IntLike) -> Expr:
        spread = cast(squares[i], INT64) * n
        if total is not None:
            s = cast(total[i], INT64)
            spread = spread - s * s
        return let(
            (spread << (2 * k)) + _int64(a.epsilon),
            lambda v: _int64(1 << _INVERSE_BITS) / _root_expr(v),
        )

    inverses = b.compute("ln_inverse", kept, INT64, inverse)

    def value(*i: IntLike) -> Expr:
        above = plus(cast(x[i], INT64), zero) * n
        if total is not None:
            above = above - cast(read(total, i), INT64)
        unit = (above * read(inverses, i)) >> (_INVERSE_BITS - k - _UNIT_BITS)
        y = unit * read(gain, i) + read(offset, i) + _int64(1 << (OFFSET_BITS - 1))
        y = plus(y >> OFFSET_BITS, a.output_zero_point)
        return cast(minimum(maximum(y, a.qmin), a.qmax), DType.parse(a.out_dtype))

    return b.compute("layer_norm", t.shape, DType.parse(a.out_dtype), value)


def _stored(a: QuantizedLayerNormAttrs, types: Sequence[TensorType]) -> Stored:
    zeros = [(a.output_zero_point, DType.parse(a.out_dtype))]
    if not a.centred:
        zeros.append((a.input_zero_point, types[0].dtype))
    return Stored(zero_points(*zeros))


register_op(
    OpDef(
        "qnn.layer_norm", _infer, _reference, _lower, QuantizedLayerNormAttrs, (3, 3),
        fusion=Fusion.ANCHOR, stored=_stored,
        zeros=Zeros(("input_zero_point",), "output_zero_point"),
        gradient=INTEGERS,
        doc="layer norm of integers, or root mean square norm; operands: data, int64 gain (16 bits "
        "behind the point) and offset (32 bits), in units of the result",
    )
)  # fmt: skip
