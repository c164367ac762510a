"""A small call of an operator, and values for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from toy_dtype import TOY

from compiler.arithmetic.arrays import arithmetic
from compiler.arithmetic.scalar_function import ScalarFunction
from compiler.types.dtypes import BOOL, INT8, UINT8, Array, DType
from compiler.types.tensor_types import TensorType

F32 = DType("float", 32)
F64 = DType("float", 64)
I32 = DType("int", 32)


@dataclass(frozen=True)
class Case:
    """A call: operand shapes, attributes, and the dtype(s) to try.

    `dtypes`: one set of operand dtypes per run; a single dtype stands for all operands.
    `low`, `high`: range of random values. `n` in a shape is the symbolic batch dimension.
    """

    op: str
    shapes: Sequence[Sequence[Any]]
    attrs: Mapping[str, Any] = field(default_factory=dict)
    dtypes: Sequence[DType | tuple[DType, ...]] = (F32, TOY)
    low: float = -2.0
    high: float = 2.0

    def operand_dtypes(self, which: DType | tuple[DType, ...]) -> tuple[DType, ...]:
        return which if isinstance(which, tuple) else (which,) * len(self.shapes)


def values(rng: np.random.Generator, t: TensorType, low: float, high: float) -> Array:
    """Random storage elements of a static type."""
    shape = t.static_shape
    if t.dtype == BOOL:
        return rng.random(shape) < 0.5
    if t.dtype.is_integer:
        start = 0 if t.dtype.kind == "uint" else int(low)
        return rng.integers(start, int(high) + 1, shape).astype(t.dtype.storage)
    ar = arithmetic(t.dtype)
    return np.asarray(ar.cast(rng.uniform(low, high, shape).astype(np.float32), F32))


def within(f: ScalarFunction) -> tuple[float, float]:
    """An interval inside the domain of a function."""
    low, high = f.domain
    return max(low, -2) + 0.1, min(high, 3) - 0.1


NUMBERS = (F32, TOY, I32)
CONV8 = ((UINT8, INT8), (INT8, INT8))
