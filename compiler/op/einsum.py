"""einsum: a sum of products written with an index letter per axis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from compiler.arithmetic.arrays import Arithmetic
from compiler.op.accumulate import check_mode, finished, staged, sums
from compiler.op.common import one_dtype, require, type_of
from compiler.op.equation import extents_of, letters_of
from compiler.op.facts import Summation
from compiler.op.gradients import linear as rules
from compiler.op.opdef import Fusion, OpDef, register_op
from compiler.op.reduce import total, total_of_products
from compiler.op.staged_sums import staged_sum
from compiler.symbolic import Dim, Index, IntLike, product
from compiler.tensor.builder import PrimBuilder
from compiler.tensor.expr import Buffer, Expr, const
from compiler.types.dtypes import Array
from compiler.types.tensor_types import TensorType


@dataclass(frozen=True)
class EinsumAttrs:
    """The equation as numpy writes it, e.g. `bij,bjk->bik`; `...` stands for any axes. Letters that
    are not in the result are summed over, in alphabetical order; products go from the left.

    `accumulate`: how sums are formed (`compiler.op.accumulate`), of products with the last operand:
    of more than two, those before it are multiplied first, with a rounding for each product."""

    equation: str
    accumulate: str = "sequential"


def _terms(a: EinsumAttrs, types: Sequence[TensorType]) -> IntLike:
    operands, result = letters_of(a.equation, [t.rank for t in types])
    extents = extents_of(operands, [t.shape for t in types])
    return product(n for c, n in extents.items() if c not in result)


def _infer(a: EinsumAttrs, types: Sequence[TensorType]) -> TensorType:
    dtype = one_dtype("einsum", types)
    require(dtype.kind != "bool", "einsum is not defined for bool; cast the operands first")
    check_mode("einsum", a.accumulate, dtype)
    operands, result = letters_of(a.equation, [t.rank for t in types])
    extents = extents_of(operands, [t.shape for t in types])
    shape: list[Dim] = [extents[c] for c in result]
    return TensorType(tuple(shape), dtype)


def _reference(ar: Arithmetic, a: EinsumAttrs, *xs: Array) -> Array:
    operands, result = letters_of(a.equation, [x.ndim for x in xs])
    extents = extents_of(operands, [x.shape for x in xs])
    summed = sorted(set(extents) - set(result))
    order = [*result, *summed]
    factors: list[Array] = []
    for names, x in zip(operands, xs, strict=True):
        at = np.ix_(*(np.arange(extents[c]) for c in order))
        part = x[tuple(at[order.index(c)] % n for c, n in zip(names, x.shape, strict=True))]
        factors.append(np.broadcast_to(part, tuple(extents[c] for c in order)))
    first, *last = factors
    for factor in last[:-1]:
        first = ar.mul(first, factor)
    if not summed:
        return ar.mul(first, last[-1]) if last else first
    axes = tuple(range(len(result), len(order)))
    if last:
        out = total_of_products(ar, first, last[-1], axes, a.accumulate)
    else:
        out = total(ar, first, axes, a.accumulate)
    return out.reshape(tuple(extents[c] for c in result))


def _lower(b: PrimBuilder, a: EinsumAttrs, *xs: Buffer) -> Buffer:
    operands, result = letters_of(a.equation, [len(x.shape) for x in xs])
    extents = extents_of(operands, [type_of(x).shape for x in xs])
    summed = sorted(set(extents) - set(result))
    order = [*result, *summed]
    shape, dtype = [extents[c] for c in result], xs[0].dtype
    one = staged(a.accumulate) is not None
    held = sums(
        "sequential" if one else a.accumulate,
        dtype,
        product(extents[c] for c in summed),
        len(xs) > 1,
    )

    def value(*i: Any) -> Expr:
        factors: list[Expr] = []
        for names, x in zip(operands, xs, strict=True):
            at = (0 if n == 1 else i[order.index(c)] for c, n in zip(names, x.shape, strict=True))
            factors.append(x[tuple(map(Index.of, at))])
        first, *last = factors
        for factor in last[:-1]:
            first = first * factor
        if not summed:
            return first * last[-1] if last else first
        return held.factor(first) * held.factor(last[-1]) if last else held.factor(first)

    if not summed:
        return b.compute("einsum", shape, dtype, value)
    if (how := staged(a.accumulate)) is not None:
        return staged_sum(b, "einsum", shape, [extents[c] for c in summed], value, how, dtype)
    axes = {f"r{c}": extents[c] for c in summed}
    out = b.reduce("einsum", shape, held.held, axes, value, const(0, held.held), held.update)
    return finished(b, held, "einsum_round", out, None)


EINSUM = register_op(
    OpDef("einsum", _infer, _reference, _lower, EinsumAttrs, (1, None), Fusion.ANCHOR, terms=_terms,
          summation=Summation((0, 1), products=True),
          gradient=rules.einsum,
          doc="sum of products over the letters that the result does not have")
)  # fmt: skip
