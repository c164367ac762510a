"""A custom dtype for tests that does not depend on `datatypes`: float16 arithmetic, in which every
operation rounds, so that the order of operations shows."""

from __future__ import annotations

from typing import Any

import numpy as np

from compiler.arithmetic.arrays import arithmetic
from compiler.errors import LoweringError
from compiler.tensor.expr import (
    COMPARISONS,
    BinOp,
    Call,
    Cast,
    Expr,
    FloatImm,
    IntImm,
    binary,
    call,
)
from compiler.types.dtypes import FLOAT32, Array, DType, register_custom

HALF, BITS = DType("float", 16), DType("uint", 16)
_HALF = arithmetic(HALF)
_BINARY = {
    "Add": _HALF.add,
    "Sub": _HALF.sub,
    "Mul": _HALF.mul,
    "Div": _HALF.div,
    "Max": _HALF.maximum,
    "Min": _HALF.minimum,
}


def _value(operand: Expr) -> Expr:
    """float32 value of a stored operand; operands of other dtypes as they are."""
    if not operand.dtype.is_custom:
        return operand
    bits: Expr = operand.bits
    return call("bits", bits, dtype=HALF).astype(FLOAT32)


def _bits(value: Expr) -> Expr:
    return call("bits", value.astype(HALF), dtype=BITS)


class Toy:
    """float16 bits under a custom name."""

    name = "toyhalf"

    def lower(self, node: Any, target: str) -> Expr:
        """Computed in float32 and rounded: no double rounding, as 24 bits >= 2 * 11 + 2."""
        if isinstance(node, FloatImm):
            return IntImm(int(self.encode(np.asarray(node.value), node.dtype)), BITS)
        operands = [_value(k) for k in node.children()]
        if isinstance(node, Cast):
            if node.dtype.is_custom:
                return _bits(operands[0].astype(FLOAT32))
            return operands[0].astype(node.dtype)
        if isinstance(node, BinOp):
            result = binary(node.op, *operands)
            return result if node.op in COMPARISONS else _bits(result)
        if isinstance(node, Call):
            return _bits(call(node.fn, *operands))
        raise LoweringError(f"toyhalf has no lowering of {type(node).__name__} for {target}")

    def apply(self, op: str, dtype: DType, *args: Array) -> Array:
        values = [np.asarray(a, np.uint16).view(np.float16) for a in args]
        if op in ("LT", "LE", "GT", "GE", "EQ", "NE"):
            return _HALF.compare(op, *values)
        out = _BINARY[op](*values) if op in _BINARY else _HALF.call(op, *values)
        return np.asarray(out, np.float16).view(np.uint16)

    def encode(self, values: Array, dtype: DType) -> Array:
        with np.errstate(over="ignore"):
            return np.asarray(values).astype(np.float16).view(np.uint16)

    def decode(self, bits: Array, dtype: DType) -> Array:
        return np.asarray(bits, np.uint16).view(np.float16).astype(np.float64)

    def lowest(self, dtype: DType) -> int:
        return int(np.float16(-65504).view(np.uint16))


register_custom(Toy(), override=True)
TOY = DType.parse("custom[toyhalf]16")
