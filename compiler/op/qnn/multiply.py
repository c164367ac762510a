"""qnn.multiply: the exact product of two integer tensors, for qnn.requantize to scale."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from compiler.arithmetic.arrays import Arithmetic
from compiler.op.common import read, type_of
from compiler.op.facts import Zeros
from compiler.op.gradient import INTEGERS
from compiler.op.opdef import Fusion, OpDef, register_op
from compiler.op.qnn.quantize import centred, require_integer
from compiler.op.stored import Stored, zero_points
from compiler.symbolic import IntLike
from compiler.tensor.builder import PrimBuilder
from compiler.tensor.expr import Buffer, Expr
from compiler.types.dtypes import INT32, Array
from compiler.types.tensor_types import TensorType, broadcast


@dataclass(frozen=True)
class QuantizedMultiplyAttrs:
    """Result (a - a_zero_point) * (b - b_zero_point) in int32, which wraps."""

    a_zero_point: int = 0
    b_zero_point: int = 0


def _infer(_: QuantizedMultiplyAttrs, types: Sequence[TensorType]) -> TensorType:
    a, b = types
    require_integer("qnn.multiply", "the first operand", a)
    require_integer("qnn.multiply", "the second operand", b)
    return TensorType(broadcast(a.shape, b.shape), INT32)


def _reference(ar: Arithmetic, attrs: QuantizedMultiplyAttrs, a: Array, b: Array) -> Array:
    left, right = a.astype(np.int64) - attrs.a_zero_point, b.astype(np.int64) - attrs.b_zero_point
    return np.asarray((left * right).astype(np.int32))


def _lower(b: PrimBuilder, attrs: QuantizedMultiplyAttrs, x: Buffer, y: Buffer) -> Buffer:
    t = _infer(attrs, [type_of(x), type_of(y)])

    def element(*i: IntLike) -> Expr:
        return centred(read(x, i), attrs.a_zero_point) * centred(read(y, i), attrs.b_zero_point)

    return b.compute("product", t.shape, t.dtype, element)


def _stored(attrs: QuantizedMultiplyAttrs, types: Sequence[TensorType]) -> Stored:
    zeros = attrs.a_zero_point, attrs.b_zero_point
    return Stored(zero_points(*((z, t.dtype) for z, t in zip(zeros, types, strict=True))))


register_op(
    OpDef(
        "qnn.multiply", _infer, _reference, _lower, QuantizedMultiplyAttrs, (2, 2),
        fusion=Fusion.ELEMENTWISE, stored=_stored, zeros=Zeros(("a_zero_point", "b_zero_point")),
        gradient=INTEGERS,
        doc="int32 product of two integer tensors, broadcasting",
    )
)  # fmt: skip
