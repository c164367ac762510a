"""qnn.softmax: of 8-bit integers, by a table of exponentials in fixed point and integer sums.

The largest integer m is found exactly; e = table[m - x], exponentials of what lies below it in
units of 2^-15; sums of e are exact. The quotient is one float32 division a row and one float32
product an element, as in other integer operators: clip(rint(float32(e) * (inverse / float32(sum)))
+ output_zero_point). (The table in place of I-BERT's polynomial: Kim et al., I-BERT: Integer-only
BERT Quantization, 2021, section 3.5.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from compiler.arithmetic.arrays import Arithmetic
from compiler.op.common import axis_of, read, require, type_of
from compiler.op.facts import Zeros
from compiler.op.gradient import INTEGERS
from compiler.op.opdef import Fusion, OpDef, register_op
from compiler.op.qnn.lookup import ENTRIES, entry
from compiler.op.qnn.quantize import clipped, integer_dtype, narrowed
from compiler.op.reduce import lower_fold
from compiler.op.stored import Stored, zero_points
from compiler.symbolic import Dim, IntLike
from compiler.tensor.builder import PrimBuilder
from compiler.tensor.expr import Buffer, Expr, cast, const
from compiler.types.dtypes import FLOAT32, INT32, INT64, UINT8, Array, DType
from compiler.types.tensor_types import TensorType

UNIT = 1 << 15
"""What 1 is in the table."""
MOST = (2**31 - 1) // UNIT
"""Terms whose sum an int32 holds; sums of more, or of an unknown number, are int64."""


@dataclass(frozen=True)
class QuantizedSoftmaxAttrs:
    """Attributes of qnn.softmax: the axis, `inverse` of the result's scale, and its grid."""

    axis: int = -1
    inverse: float = 256.0
    output_zero_point: int = 0
    out_dtype: str = "uint8"
    qmin: int = 0
    qmax: int = 255


def exponentials(scale: float) -> Array:
    """int32 [256]: exp(-k * scale) in units of 2^-15, nearest."""
    exact = np.exp(-np.arange(ENTRIES) * np.float64(scale))
    return np.asarray(np.rint(exact * UNIT), np.int32)


def _infer(a: QuantizedSoftmaxAttrs, types: Sequence[TensorType]) -> TensorType:
    x, table = types
    require(
        str(x.dtype) in ("int8", "uint8"), f"qnn.softmax takes int8 or uint8 data, not {x.dtype}"
    )
    require(
        table == TensorType((ENTRIES,), INT32),
        f"qnn.softmax takes an int32 table of {ENTRIES} entries, not {table}",
    )
    axis_of("qnn.softmax", a.axis, x.rank)
    return x.with_dtype(integer_dtype("qnn.softmax", a))


def _reference(ar: Arithmetic, a: QuantizedSoftmaxAttrs, x: Array, table: Array) -> Array:
    q = x.astype(np.int64)
    e = table[q.max(a.axis, keepdims=True) - q].astype(np.int64)
    total = e.sum(a.axis, keepdims=True).astype(np.float32)
    value = e.astype(np.float32) * (np.float32(a.inverse) / total)
    return clipped(np.rint(value).astype(np.int64), a)


def _held(terms: Dim) -> DType:
    return INT32 if isinstance(terms, int) and terms <= MOST else INT64


def _lower(b: PrimBuilder, a: QuantizedSoftmaxAttrs, x: Buffer, table: Buffer) -> Buffer:
    t = _infer(a, [type_of(x), type_of(table)])
    axis = a.axis % t.rank
    held = _held(t.shape[axis])
    top = lower_fold(b, "softmax_max", x, (axis,), "Max")

    def below(*i: IntLike) -> Expr:
        return entry(table, cast(cast(read(top, i), INT32) - cast(x[i], INT32), UINT8))

    e = b.compute("softmax_exp", x.shape, INT32, below)

    def term(*v: IntLike) -> Expr:
        idx = [v[t.rank] if k == axis else v[k] for k in range(t.rank)]
        return cast(e[tuple(idx)], held)

    kept = tuple(1 if k == axis else n for k, n in enumerate(t.shape))
    extents = {f"r{axis}": x.shape[axis]}
    total = b.reduce("softmax_sum", kept, held, extents, term, const(0, held))

    def scale(*i: IntLike) -> Expr:
        return const(a.inverse, FLOAT32) / cast(total[i], FLOAT32)

    scales = b.compute("softmax_scale", kept, FLOAT32, scale)

    def value(*i: IntLike) -> Expr:
        return narrowed(cast(e[i], FLOAT32) * read(scales, i), a.output_zero_point, a)

    return b.compute("softmax", x.shape, t.dtype, value)


def _stored(a: QuantizedSoftmaxAttrs, _: Sequence[TensorType]) -> Stored:
    return Stored(FLOAT32.bits + zero_points((a.output_zero_point, DType.parse(a.out_dtype))))


register_op(
    OpDef(
        "qnn.softmax", _infer, _reference, _lower, QuantizedSoftmaxAttrs, (2, 2),
        fusion=Fusion.ANCHOR, tables=(1,), stored=_stored, zeros=Zeros(("",), "output_zero_point"),
        gradient=INTEGERS,
        doc="softmax of integers; operands: data, int32 [256] exponentials of distances from the "
        "largest",
    )
)  # fmt: skip
