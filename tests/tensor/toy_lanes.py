"""float16 arithmetic (of up to 65504) as a custom dtype with a vector lowering, on float32 lanes.

Its deferred expressions are not sure of results of 8 and more, so that ordinary data makes some
sums take the second attempt.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from compiler.errors import LoweringError
from compiler.lowering.custom_dtypes import Lane
from compiler.tensor.expr import (
    COMPARISONS,
    BinOp,
    Call,
    Cast,
    Expr,
    binary,
    call,
    const,
    let,
    maximum,
    select,
)
from compiler.types.dtypes import FLOAT32, INT32, Array, DType, register_custom

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "op"))

from toy_dtype import HALF, Toy

LIMIT = 8.0


def rounded(x: Expr) -> Expr:
    """`x` rounded to 11 bits, or a multiple of 2**-24; written for targets without float16."""

    def body(v: Expr) -> Expr:
        exponent = (call("bits", v, dtype=INT32) >> 23) & 255
        magic = call("bits", (maximum(exponent, 127 - 14) + 13) << 23, dtype=FLOAT32)
        with_sign = select(v < 0.0, (v - magic) + magic, (v + magic) - magic)
        return select(call("abs", v) < float("inf"), select(v.equal(0.0), v, with_sign), v)

    return let(x, body)


def unless_large(x: Expr) -> Expr:
    return let(x, lambda v: select(call("abs", v) < LIMIT, v, const(float("nan"))))


class ToyLanes(Toy):
    """See the module."""

    name = "toylanes"

    def lanes(self, dtype: DType) -> DType | None:
        return FLOAT32

    def lanes_reason(self, dtype: DType) -> str:
        return "float32 holds every float16"

    def slow_sums(self, dtype: DType) -> str:
        return ""

    def vector(self, node: Expr, deferred: bool, keeps_nan: bool = True) -> Expr:
        xs = [k.value if isinstance(k, Lane) else k for k in node.children()]
        if isinstance(node, BinOp):
            result = binary(node.op, *xs)
            if node.op in COMPARISONS:
                return result
            return unless_large(rounded(result)) if deferred else rounded(result)
        if isinstance(node, Cast):
            if not node.dtype.is_custom:
                return xs[0].astype(node.dtype)
            return rounded(xs[0].astype(FLOAT32))
        if isinstance(node, Call):
            return rounded(call(node.fn, *xs))
        raise LoweringError(f"toylanes has no vector lowering of {node!r}")

    def from_bits(self, bits: Expr, dtype: DType) -> Expr:
        return call("bits", bits, dtype=HALF).astype(FLOAT32)

    def to_bits(self, value: Expr, dtype: DType) -> Expr:
        return call("bits", value.astype(HALF), dtype=DType("uint", 16))

    def lane_array(self, codes: Array, dtype: DType) -> Array:
        return np.asarray(codes, np.uint16).view(np.float16).astype(np.float32)


register_custom(ToyLanes(), override=True)
TOY_LANES = DType.parse("custom[toylanes]16")
