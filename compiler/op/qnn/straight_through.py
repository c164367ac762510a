"""qnn.straight_through: a value that stands in for another one, whose gradient it has.

Training with quantization computes forward what integers give, and backward as if it had been
computed in float32 on the numbers that the integers stand for. This operator joins both: its result
is the first operand, and what flows back into it goes on into the second. Once gradients are taken
it is the first operand alone (SimplifyInference), and what only the second needed is not computed.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from compiler.arithmetic.arrays import Arithmetic
from compiler.op.common import require
from compiler.op.gradients import grids as rules
from compiler.op.opdef import Fusion, NoAttrs, OpDef, register_op
from compiler.symbolic import IntLike
from compiler.tensor.builder import PrimBuilder
from compiler.tensor.expr import Buffer, Expr
from compiler.types.dtypes import Array
from compiler.types.tensor_types import TensorType


def _infer(_: NoAttrs, types: Sequence[TensorType]) -> TensorType:
    value, other = types
    require(value == other, f"qnn.straight_through takes two of one type, not {value} and {other}")
    return value


def _value(ar: Arithmetic, _: NoAttrs, value: Array, other: Array) -> Array:
    return np.array(value)


def _lower(b: PrimBuilder, _: NoAttrs, value: Buffer, other: Buffer) -> Buffer:
    def element(*i: IntLike) -> Expr:
        return value[i]

    return b.compute("value", value.shape, value.dtype, element)


STRAIGHT_THROUGH = register_op(
    OpDef(
        "qnn.straight_through", _infer, _value, _lower, arity=(2, 2), fusion=Fusion.ELEMENTWISE,
        in_order=True, gradient=rules.straight_through,
        doc="the first operand, whose gradient the second one gets",
    )
)  # fmt: skip
