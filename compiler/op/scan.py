"""Running sums and products along an axis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from compiler.dtypes import Array
from compiler.ir.types import TensorType
from compiler.op.arithmetic import Arithmetic
from compiler.op.common import axis_of, require
from compiler.op.opdef import OpDef, register_op
from compiler.symbolic import Index
from compiler.tensor.builder import PrimBuilder
from compiler.tensor.expr import Expr, const, index_value, select
from compiler.tensor.stmt import Buffer


@dataclass(frozen=True)
class ScanAttrs:
    """Along `axis`, from its end if `reverse`; `exclusive`: without the element itself."""

    axis: int = 0
    exclusive: bool = False
    reverse: bool = False


def _register(name: str, update: str, neutral: int, doc: str) -> None:
    def infer(a: ScanAttrs, types: Sequence[TensorType]) -> TensorType:
        (x,) = types
        axis_of(name, a.axis, x.rank)
        require(x.dtype.kind != "bool", f"{name} is not defined for bool; cast the operand first")
        return x

    def reference(ar: Arithmetic, a: ScanAttrs, x: Array) -> Array:
        step = ar.add if update == "Add" else ar.mul
        out, n = np.empty_like(x), x.shape[a.axis]
        rows, results = np.moveaxis(x, a.axis, 0), np.moveaxis(out, a.axis, 0)
        acc = np.broadcast_to(ar.const(neutral), rows.shape[1:])
        for k in range(n)[::-1] if a.reverse else range(n):
            following = step(acc, rows[k])
            results[k] = acc if a.exclusive else following
            acc = following
        return out

    def lower(b: PrimBuilder, a: ScanAttrs, x: Buffer) -> Buffer:
        """Each element folds its own prefix, so that the order of operations is the scan's."""
        axis = a.axis % len(x.shape)
        n = x.shape[axis]

        def length(*i: Any) -> Index:
            return Index.of(n - i[axis] if a.reverse else i[axis] + 1)

        def value(*i: Any) -> Expr:
            *outer, r = i
            at = n - 1 - r if a.reverse else r
            element = x[(*outer[:axis], at, *outer[axis + 1 :])]
            if not a.exclusive:
                return element
            mine = index_value(at).equal(index_value(outer[axis]))
            return select(mine, const(neutral, x.dtype), element)

        start = const(neutral, x.dtype)
        return b.reduce(name, x.shape, x.dtype, {"r": length}, value, start, update)

    register_op(OpDef(name, infer, reference, lower, ScanAttrs, doc=doc))


_register("cumsum", "Add", 0, "sum of the elements up to each, along an axis")
_register("cumprod", "Mul", 1, "product of the elements up to each, along an axis")
