"""Where things are: argmax, argmin, topk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from compiler.dtypes import BOOL, FLOAT32, FLOAT64, INT64, Array
from compiler.ir.types import TensorType, TupleType
from compiler.op.arithmetic import Arithmetic
from compiler.op.common import axis_of, known_shape, require, type_of
from compiler.op.opdef import Fusion, OpDef, register_op
from compiler.op.reduce import lower_fold
from compiler.symbolic import Dim, Index
from compiler.tensor.builder import PrimBuilder
from compiler.tensor.expr import Expr, Gather, binary, cast, const, index_value, select
from compiler.tensor.stmt import Buffer


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
    values = ar.of(FLOAT64).cast(x, ar.dtype) if ar.dtype.is_custom else x
    order = np.argsort(values, a.axis, kind="stable")
    if a.largest:
        order = np.flip(np.argsort(np.flip(values, a.axis), a.axis, kind="stable"), a.axis)
        order = x.shape[a.axis] - 1 - order
    first = np.take(order, np.arange(*known_shape((a.k,))), a.axis)
    return np.take_along_axis(x, first, a.axis), first.astype(np.int64)


def _is_nan(x: Expr) -> Expr:
    """Whether a value is NaN; custom datatypes, whose NaN may equal itself, go by float32."""
    wide = cast(x, FLOAT32) if x.dtype.is_custom else x
    return binary("NE", wide, wide)


def _lower_topk(b: PrimBuilder, a: TopKAttrs, x: Buffer) -> tuple[Buffer, Buffer]:
    """Every element's rank is counted: n^2 comparisons, no sorting network. NaN is larger than any
    number, as in numpy's order."""
    axis = a.axis % len(x.shape)
    n = x.shape[axis]

    def before(*i: Any) -> Expr:
        *outer, r = i
        mine, other = x[tuple(outer)], x[(*outer[:axis], r, *outer[axis + 1 :])]
        ahead = other > mine if a.largest else other < mine
        same = other.equal(mine)
        if x.dtype.is_float or x.dtype.is_custom:
            first, second = (other, mine) if a.largest else (mine, other)
            nan, nans = _is_nan(first), _is_nan(second)
            ahead = select(nan | nans, nan & nans.equal(const(0, BOOL)), ahead)
            same = same | (nan & nans)
        earlier = index_value(r) < index_value(outer[axis])
        return select(ahead | (same & earlier), const(1, INT64), const(0, INT64))

    rank = b.reduce("rank", x.shape, INT64, {"r": n}, before, const(0, INT64))
    shape = [Index.of(a.k) if k == axis else d for k, d in enumerate(x.shape)]

    def position(*i: Any) -> Expr:
        *outer, r = i
        place = rank[(*outer[:axis], r, *outer[axis + 1 :])]
        mine = place.equal(index_value(outer[axis]))
        return select(mine, index_value(r), const(0, INT64))

    where = b.reduce("indices", shape, INT64, {"r": n}, position, const(0, INT64), "Max")
    stride = Index(const=1)
    for d in x.shape[axis + 1 :]:
        stride = stride * d

    def value(*i: Any) -> Expr:
        base = x.flat((*i[:axis], Index(), *i[axis + 1 :]))
        return Gather(x, index_value(base) + where[i] * index_value(stride))

    return b.compute("values", shape, x.dtype, value), where


register_op(
    OpDef("topk", _infer_topk, _topk, _lower_topk, TopKAttrs,
          doc="the k largest or smallest elements along an axis, and their positions")
)  # fmt: skip
