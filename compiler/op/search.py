"""Where things are: argmax, argmin, topk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from compiler.arithmetic.arrays import Arithmetic
from compiler.op.common import axis_of, known_shape, require, type_of
from compiler.op.gradient import flat
from compiler.op.gradients import positions
from compiler.op.opdef import Fusion, OpDef, register_op
from compiler.op.reduce import lower_fold
from compiler.op.sorting import order_of, sorted_positions
from compiler.symbolic import Dim, Index
from compiler.tensor.builder import PrimBuilder
from compiler.tensor.expr import Buffer, Expr, Gather, const, index_value, select
from compiler.types.dtypes import BOOL, FLOAT64, INT64, Array
from compiler.types.tensor_types import TensorType, TupleType


@dataclass(frozen=True)
class ArgAttrs:
    """The axis that is searched; of equal elements, the first counts or (`last`) the last."""

    axis: int = 0
    keepdims: bool = True
    last: bool = False


def _arg_shape(a: ArgAttrs, name: str, x: TensorType) -> tuple[Dim, ...]:
    k = axis_of(name, a.axis, x.rank)
    kept: tuple[Dim, ...] = (1,) if a.keepdims else ()
    return (*x.shape[:k], *kept, *x.shape[k + 1 :])


def _register_arg(name: str, best: Any, update: str) -> None:
    def infer(a: ArgAttrs, types: Sequence[TensorType]) -> TensorType:
        (x,) = types
        require(x.dtype.kind != "bool", f"{name} is not defined for bool; cast the operand first")
        return TensorType(_arg_shape(a, name, x), INT64)

    def reference(ar: Arithmetic, a: ArgAttrs, x: Array) -> Array:
        values = ar.of(FLOAT64).cast(x, ar.dtype) if ar.dtype.is_custom else x
        if not a.last:
            return np.asarray(best(values, axis=a.axis, keepdims=a.keepdims), np.int64)
        back = best(np.flip(values, a.axis), axis=a.axis, keepdims=a.keepdims)
        return np.asarray(x.shape[a.axis] - 1 - back, np.int64)

    def lower(b: PrimBuilder, a: ArgAttrs, x: Buffer) -> Buffer:
        axis, n = a.axis % len(x.shape), x.shape[a.axis % len(x.shape)]
        extreme = lower_fold(b, f"{name}_value", x, [axis], update)

        def found(*i: Any) -> Expr:
            *outer, r = i
            at = [*outer[:axis], r, *outer[axis + int(a.keepdims) :]]
            here, there = x[tuple(at)], extreme[(*at[:axis], 0, *at[axis + 1 :])]
            match = here.equal(there)
            if x.dtype.is_float or x.dtype.is_custom:  # NaN is the extreme where there is one
                match = match | here.equal(here).equal(const(0, BOOL))
            return select(match, index_value(r), const(-1, INT64) if a.last else index_value(n))

        shape = _arg_shape(a, name, type_of(x))
        start = const(-1, INT64) if a.last else index_value(n)
        return b.reduce(name, shape, INT64, {"r": n}, found, start, "Max" if a.last else "Min")

    register_op(
        OpDef(name, infer, reference, lower, ArgAttrs, fusion=Fusion.OPAQUE,
              gradient=flat,
              doc=f"position of the {'largest' if update == 'Max' else 'smallest'} element")
    )  # fmt: skip


_register_arg("argmax", np.argmax, "Max")
_register_arg("argmin", np.argmin, "Min")


@dataclass(frozen=True)
class TopKAttrs:
    """The k largest (or smallest) along an axis, in order; equal ones in order of position. A
    symbolic k is at most the length of the axis."""

    k: Dim = 1
    axis: int = -1
    largest: bool = True


def _infer_topk(a: TopKAttrs, types: Sequence[TensorType]) -> TupleType:
    (x,) = types
    axis = axis_of("topk", a.axis, x.rank)
    n = x.shape[axis]
    require(
        not isinstance(a.k, int) or (a.k >= 1 and (not isinstance(n, int) or a.k <= n)),
        f"topk: k={a.k} does not fit the {n} elements of axis {axis}",
    )
    shape = (*x.shape[:axis], a.k, *x.shape[axis + 1 :])
    return TupleType((TensorType(shape, x.dtype), TensorType(shape, INT64)))


def _topk(ar: Arithmetic, a: TopKAttrs, x: Array) -> tuple[Array, Array]:
    order = order_of(ar, x, a.axis, a.largest)
    first = np.take(order, np.arange(*known_shape((a.k,))), a.axis)
    return np.take_along_axis(x, first, a.axis), first.astype(np.int64)


def _lower_topk(b: PrimBuilder, a: TopKAttrs, x: Buffer) -> tuple[Buffer, Buffer]:
    axis = a.axis % len(x.shape)
    order = sorted_positions(b, x, axis, a.largest)
    shape = [Index.of(a.k) if k == axis else d for k, d in enumerate(x.shape)]

    def position(*i: Any) -> Expr:
        return order[(*i[:axis], *i[axis + 1 :], i[axis])]

    where = b.compute("indices", shape, INT64, position)
    stride = Index(const=1)
    for d in x.shape[axis + 1 :]:
        stride = stride * d

    def value(*i: Any) -> Expr:
        base = x.flat((*i[:axis], Index(), *i[axis + 1 :]))
        return Gather(x, index_value(base) + where[i] * index_value(stride))

    return b.compute("values", shape, x.dtype, value), where


register_op(
    OpDef("topk", _infer_topk, _topk, _lower_topk, TopKAttrs,
          gradient=positions.topk,
          doc="the k largest or smallest elements along an axis, and their positions")
)  # fmt: skip
