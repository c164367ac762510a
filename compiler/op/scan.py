"""Running sums and products along an axis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from compiler.arithmetic.arrays import Arithmetic
from compiler.op.accumulate import accumulation, check_mode, finished, sums
from compiler.op.common import axis_of, require
from compiler.op.opdef import OpDef, register_op
from compiler.symbolic import Index, IntLike
from compiler.tensor.builder import PrimBuilder
from compiler.tensor.expr import Expr, const, index_value, select
from compiler.tensor.stmt import Buffer
from compiler.types.dtypes import Array
from compiler.types.tensor_types import TensorType


@dataclass(frozen=True)
class ScanAttrs:
    """Along `axis`, from its end if `reverse`; `exclusive`: without the element itself."""

    axis: int = 0
    exclusive: bool = False
    reverse: bool = False


@dataclass(frozen=True)
class CumsumAttrs(ScanAttrs):
    """Attributes of cumsum; `accumulate`: how each of its sums is formed
    (`compiler.op.accumulate`)."""

    accumulate: str = "sequential"


def _mode(a: ScanAttrs) -> str:
    return a.accumulate if isinstance(a, CumsumAttrs) else "sequential"


def _register(name: str, update: str, neutral: int, doc: str) -> None:
    def infer(a: ScanAttrs, types: Sequence[TensorType]) -> TensorType:
        (x,) = types
        axis_of(name, a.axis, x.rank)
        require(x.dtype.kind != "bool", f"{name} is not defined for bool; cast the operand first")
        check_mode(name, _mode(a), x.dtype)
        return x

    def reference(ar: Arithmetic, a: ScanAttrs, x: Array) -> Array:
        s = accumulation(_mode(a), ar)
        step, start = (s.add, s.start()) if update == "Add" else (ar.mul, ar.const(neutral))
        terms = s.operand(x, ar.dtype) if update == "Add" else x
        out, n = np.empty_like(x), x.shape[a.axis]
        rows, results = np.moveaxis(terms, a.axis, 0), np.moveaxis(out, a.axis, 0)
        acc = np.broadcast_to(start, rows.shape[1:])
        for k in range(n)[::-1] if a.reverse else range(n):
            following = step(acc, rows[k])
            results[k] = s.result(acc if a.exclusive else following)
            acc = following
        return out

    def lower(b: PrimBuilder, a: ScanAttrs, x: Buffer) -> Buffer:
        """Each element folds its own prefix, so that the order of operations is the scan's."""
        axis = a.axis % len(x.shape)
        n = x.shape[axis]
        held = sums(_mode(a), x.dtype, n, products=False)

        def length(*i: Any) -> Index:
            return Index.of(n - i[axis] if a.reverse else i[axis] + 1)

        def value(*i: Any) -> Expr:
            *outer, r = i
            at = n - 1 - r if a.reverse else r
            element = held.factor(x[(*outer[:axis], at, *outer[axis + 1 :])])
            if not a.exclusive:
                return element
            mine = index_value(at).equal(index_value(outer[axis]))
            return select(mine, const(neutral, held.held), element)

        start = const(neutral, held.held)
        out = b.reduce(name, x.shape, held.held, {"r": length}, value, start, update)
        return finished(b, held, f"{name}_round", out, None)

    attrs = CumsumAttrs if update == "Add" else ScanAttrs

    def terms(a: ScanAttrs, types: Sequence[TensorType]) -> IntLike:
        return types[0].shape[a.axis]

    counted = terms if update == "Add" else None
    register_op(OpDef(name, infer, reference, lower, attrs, terms=counted, doc=doc))


_register("cumsum", "Add", 0, "sum of the elements up to each, along an axis")
_register("cumprod", "Mul", 1, "product of the elements up to each, along an axis")
