"""The accused: compiled modules of one operator, as users' networks run them."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

import compiler
from compiler.arithmetic.scalar_functions import UNARY
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import IRModule
from compiler.types.dtypes import Array, DType
from datatypes.formats import Format

BLOCK = 1 << 16
"""Elements that one call of a kernel computes."""

OPERATORS = {
    "Add": "add", "Sub": "subtract", "Mul": "multiply", "Div": "divide", "Max": "maximum",
    "Min": "minimum", "LT": "less", "GT": "greater", "EQ": "equal",
}  # fmt: skip
"""Scalar operation -> operator of two operands."""
FUNCTIONS = ("negative", "abs", "nn.relu", *(f.name for f in UNARY.values() if f.in_formats))
"""Operators of one operand."""
TARGETS = ("llvm", "llvm -mcpu=haswell", "llvm -mcpu=x86-64-v2")
"""One for every way that kernels are generated."""


def runnable_targets() -> list[str]:
    """Those of TARGETS that this machine runs."""
    return [target for target in TARGETS if _runs(target)]


def _runs(target: str) -> bool:
    try:
        compiler.Target.parse(target)
    except compiler.DtypelabError:
        return False
    return True


class Subject:
    """The operators of a format in one lowering, for one target; compiled when first asked for.

    Attributes:
        fmt: the format.
        target: as `compiler.build` takes it.
        lowering: "library", "table", "vector", or None: chosen by `compiler.build`.
    """

    def __init__(self, fmt: Format, target: str, lowering: str | None):
        self.fmt, self.target, self.lowering = fmt, target, lowering
        self.dtype = DType.parse(f"custom[{fmt.name}]{fmt.nbits}")
        self.operator = cache(self._operator)

    def chosen(self) -> str:
        """The lowering that is used."""
        return str(self.operator("add", (self.dtype,) * 2).dtype_lowering)

    def apply(self, op: str, *codes: Array) -> Array:
        """An operation (OPERATORS, FUNCTIONS) on one-dimensional arrays of codes."""
        operator = OPERATORS.get(op, op)
        return self._blocks(self.operator(operator, (self.dtype,) * len(codes)), codes)

    def cast(self, values: Array, source: DType, dest: DType) -> Array:
        """A one-dimensional array in another dtype."""
        return self._blocks(self.operator("cast", (source,), dtype=str(dest)), (values,))

    def _blocks(self, run: Any, arrays: tuple[Array, ...]) -> Array:
        size = arrays[0].size
        parts = []
        for start in range(0, size, BLOCK):
            given = [a[start : start + BLOCK] for a in arrays]
            short = BLOCK - given[0].size
            parts.append(run(*(np.pad(a, (0, short)) if short else a for a in given)))
        return np.concatenate(parts)[:size]

    def _operator(self, name: str, dtypes: tuple[DType, ...], **attrs: Any) -> Any:
        b = FunctionBuilder()
        operands = [b.param(f"x{k}", (BLOCK,), dtype) for k, dtype in enumerate(dtypes)]
        return self.build(b, b.call(name, *operands, **attrs))

    def build(self, b: FunctionBuilder, result: Any) -> Any:
        """The module of one function, compiled."""
        mod = IRModule({"main": b.finish(result)})
        return compiler.build(mod, self.target, dtype_lowering=self.lowering)
