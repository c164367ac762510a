"""A custom dtype for tests that does not depend on `datatypes`: float16 arithmetic, in which every
operation rounds, so that the order of operations shows."""

from __future__ import annotations

from typing import Any

import numpy as np

from compiler.dtypes import Array, DType, register_custom
from compiler.errors import LoweringError
from compiler.op.arithmetic import arithmetic

_HALF = arithmetic(DType("float", 16))
_BINARY = {
    "Add": _HALF.add,
    "Sub": _HALF.sub,
    "Mul": _HALF.mul,
    "Div": _HALF.div,
    "Max": _HALF.maximum,
    "Min": _HALF.minimum,
}


class Toy:
    """float16 bits under a custom name."""

    name = "toyhalf"

    def lower(self, node: Any, target: str) -> Any:
        raise LoweringError(f"toyhalf has no lowering for {target}")

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
