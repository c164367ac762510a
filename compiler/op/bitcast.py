"""bitcast: the same bits read as another dtype of the same width."""

from __future__ import annotations

from collections.abc import Sequence

from compiler.arithmetic.arrays import Arithmetic
from compiler.op.common import require
from compiler.op.mixed import CastAttrs
from compiler.op.opdef import Fusion, OpDef, register_op
from compiler.tensor.builder import PrimBuilder
from compiler.tensor.expr import Buffer, call
from compiler.types.dtypes import BOOL, Array, DType
from compiler.types.tensor_types import TensorType


def _infer(a: CastAttrs, types: Sequence[TensorType]) -> TensorType:
    (x,), to = types, DType.parse(a.dtype)
    plain = not any(d.is_custom or d == BOOL for d in (x.dtype, to))
    require(
        plain and to.bits == x.dtype.bits,
        f"bitcast: {x.dtype} cannot be read as {to}; both must be numbers of the same width",
    )
    return x.with_dtype(to)


def _reference(_: Arithmetic, a: CastAttrs, x: Array) -> Array:
    return x.view(DType.parse(a.dtype).storage)


def _lower(b: PrimBuilder, a: CastAttrs, x: Buffer) -> Buffer:
    to = DType.parse(a.dtype)
    if to == x.dtype:
        return b.compute("bitcast", x.shape, to, lambda *i: x[i])
    return b.compute("bitcast", x.shape, to, lambda *i: call("bits", x[i], dtype=to))


register_op(
    OpDef(
        "bitcast", _infer, _reference, _lower, CastAttrs, fusion=Fusion.ELEMENTWISE,
        gradient="bits are no numbers", doc="the same bits as another dtype of the same width",
    )
)  # fmt: skip
