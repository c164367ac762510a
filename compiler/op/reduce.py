"""Reductions over axes (sum and mean, of products too, max, min), and what others reduce with."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from compiler.arithmetic.arrays import Arithmetic
from compiler.op.accumulate import accumulation, check_mode, finished, staged, sums
from compiler.op.common import axes_of, fold, known_shape, require, shared, shared_expr, type_of
from compiler.op.facts import Average, Division, Shape, Summation, Undivided, onnx_node
from compiler.op.gradient import Gradient
from compiler.op.gradients import reductions as rules
from compiler.op.opdef import Fusion, OpDef, Quantized, register_op
from compiler.op.staged_sums import staged_sum
from compiler.symbolic import Dim, IntLike, product
from compiler.tensor.builder import PrimBuilder
from compiler.tensor.expr import Buffer, Expr, const
from compiler.types.dtypes import Array
from compiler.types.tensor_types import TensorType


@dataclass(frozen=True)
class ReduceAttrs:
    """Attributes of reductions.

    Attributes:
        axis: axes to reduce; empty: all.
        keepdims: reduced axes stay, with length 1.
    """

    axis: int | tuple[int, ...] = ()
    keepdims: bool = False


@dataclass(frozen=True)
class SumAttrs(ReduceAttrs):
    """Attributes of sums and means; `accumulate`: see `compiler.op.accumulate`."""

    accumulate: str = "sequential"


def _reduced(shape: Sequence[Dim], axes: Sequence[int], keepdims: bool) -> tuple[Dim, ...]:
    if keepdims:
        return tuple(1 if k in axes else n for k, n in enumerate(shape))
    return tuple(n for k, n in enumerate(shape) if k not in axes)


# ---- references: the reduced axes stay, with length 1 -------------------------------------------
def total(ar: Arithmetic, x: Array, axes: Sequence[int], mode: str = "sequential") -> Array:
    """acc = +0; over `axes`, row-major: acc = acc + x."""
    s = accumulation(mode, ar)
    return s.result(fold(s.add, s.start(), s.operand(x, ar.dtype), axes))


def total_of_products(
    ar: Arithmetic, x: Array, w: Array, axes: Sequence[int], mode: str = "sequential"
) -> Array:
    """acc = +0; over `axes`, row-major: acc = acc + x * w. Where products are rounded, all are
    formed before the first is added."""
    if mode == "sequential":
        return total(ar, ar.mul(x, w), axes)
    s = accumulation(mode, ar)
    factors = s.operand(x, ar.dtype), s.operand(w, ar.dtype)
    return s.result(fold(s.step, s.start(), factors[0], axes, factors[1]))


def mean(ar: Arithmetic, x: Array, axes: Sequence[int], mode: str = "sequential") -> Array:
    """`total`, then one division by the number of elements."""
    return shared(ar, total(ar, x, axes, mode), _count(x, axes))


def mean_of_products(
    ar: Arithmetic, x: Array, w: Array, axes: Sequence[int], mode: str = "sequential"
) -> Array:
    """`total_of_products`, then one division by the number of elements."""
    return shared(ar, total_of_products(ar, x, w, axes, mode), _count(x, axes))


def _count(x: Array, axes: Sequence[int]) -> int:
    return math.prod(x.shape[k] for k in axes)


def largest(ar: Arithmetic, x: Array, axes: Sequence[int]) -> Array:
    """acc = the first element; over `axes`, row-major: acc = max(acc, x)."""
    return fold(ar.maximum, _first(x, axes), x, axes)


def smallest(ar: Arithmetic, x: Array, axes: Sequence[int]) -> Array:
    """acc = the first element; over `axes`, row-major: acc = min(acc, x)."""
    return fold(ar.minimum, _first(x, axes), x, axes)


def product_of(ar: Arithmetic, x: Array, axes: Sequence[int]) -> Array:
    """acc = 1; over `axes`, row-major: acc = acc * x."""
    return fold(ar.mul, ar.const(1), x, axes)


def _first(x: Array, axes: Sequence[int]) -> Array:
    return x[tuple(0 if k in axes else slice(None) for k in range(x.ndim))]


# ---- loop nests ----------------------------------------------------------------------------------
def lower_fold(
    b: PrimBuilder,
    name: str,
    x: Buffer,
    axes: Sequence[int],
    update: str,
    keepdims: bool = True,
    mode: str = "sequential",
    times: Buffer | None = None,
) -> Buffer:
    """Loop nest of `total` (update "Add"), `product_of` ("Mul"), `largest` ("Max") or `smallest`
    ("Min"); with a second factor `times`, of x's shape, of `total_of_products`."""
    if times is not None and mode == "sequential":
        factor = times
        products = b.compute(f"{name}_products", x.shape, x.dtype, lambda *i: x[i] * factor[i])
        return lower_fold(b, name, products, axes, update, keepdims)
    how = staged(mode)
    mode = mode if how is None else "sequential"
    held = sums(mode, x.dtype, product(x.shape[k] for k in axes), products=times is not None)
    shape = _reduced(type_of(x).shape, axes, keepdims)
    rank = len(shape)

    def at(outer: Sequence[Any], inner: Sequence[Any]) -> Expr:
        kept = [i for k, i in enumerate(outer) if k not in axes] if keepdims else list(outer)
        rest, reduced = iter(kept), iter(inner)
        at = tuple(next(reduced if k in axes else rest) for k in range(len(x.shape)))
        term = held.factor(x[at])
        return term if times is None else term * held.factor(times[at])

    def start(*outer: Any) -> Expr:
        neutral = {"Add": 0, "Mul": 1}.get(update)
        return at(outer, [0] * len(axes)) if neutral is None else const(neutral, held.held)

    extents = {f"r{k}": x.shape[k] for k in axes}

    def value(*v: Any) -> Expr:
        return at(v[:rank], v[rank:])

    if how is not None:
        over = [x.shape[k] for k in axes]
        return staged_sum(b, name, shape, over, value, how, x.dtype)
    step = held.update if update == "Add" else update
    out = b.reduce(name, shape, held.held, extents, value, start, step)
    return finished(b, held, f"{name}_round", out, None)


def lower_mean(
    b: PrimBuilder,
    name: str,
    x: Buffer,
    axes: Sequence[int],
    keepdims: bool = True,
    mode: str = "sequential",
    times: Buffer | None = None,
) -> Buffer:
    """Loop nest of `mean`, or, with `times`, of the mean of products: the sum, then the division in
    a stage of its own."""
    acc = lower_fold(b, f"{name}_sum", x, axes, "Add", keepdims, mode, times)
    count = product(type_of(x).shape[k] for k in axes)
    return b.compute(name, acc.shape, x.dtype, lambda *i: shared_expr(acc[i], count, x.dtype))


# ---- sums and means ------------------------------------------------------------------------------
def over_axes(a: Any, rank: int) -> tuple[tuple[int, ...], bool]:
    """The axes of a reduction, and whether they stay."""
    return ((a.axis,) if isinstance(a.axis, int) else a.axis), a.keepdims


MEAN_OF_ONE = Average(over_axes, "qnn.mean")


def _summation(reference: Callable[..., Array]) -> Summation:
    products = reference in (total_of_products, mean_of_products)

    def undivided(a: SumAttrs, _: Shape, __: Shape) -> Undivided:
        name = "sum_products" if products else "sum"
        return Undivided(name, {"axis": a.axis, "keepdims": a.keepdims})

    means = reference in (mean, mean_of_products)
    division = Division(undivided) if means else None
    if products:
        return Summation((0, 1), products=True, itself=False, division=division)
    return Summation(division=division, of_products="mean_products" if means else "sum_products")


# ---- operators -----------------------------------------------------------------------------------
def _register(
    name: str,
    reference: Callable[..., Array],
    update: str,
    quantized: Quantized,
    doc: str,
    gradient: Gradient,
    onnx: str = "",
) -> OpDef:
    products = reference in (total_of_products, mean_of_products)
    attrs = SumAttrs if products or reference in (total, mean) else ReduceAttrs

    def axes(a: ReduceAttrs, rank: int) -> tuple[int, ...]:
        return tuple(range(rank)) if a.axis == () else axes_of(name, a.axis, rank)

    def terms(a: SumAttrs, types: Sequence[TensorType]) -> IntLike:
        x = types[0]
        return product(x.shape[k] for k in axes(a, x.rank))

    def infer(a: ReduceAttrs, types: Sequence[TensorType]) -> TensorType:
        x, *more = types
        require(more == [x] * products, f"{name}: both factors must be of one type, not {types}")
        require(x.dtype.kind != "bool", f"{name} is not defined for bool; cast the operand first")
        if isinstance(a, SumAttrs):
            check_mode(name, a.accumulate, x.dtype)
        return TensorType(_reduced(x.shape, axes(a, x.rank), a.keepdims), x.dtype)

    def run(ar: Arithmetic, a: ReduceAttrs, x: Array, *w: Array) -> Array:
        over = axes(a, x.ndim)
        mode = (a.accumulate,) if isinstance(a, SumAttrs) else ()
        out = reference(ar, x, *w, over, *mode)
        return out if a.keepdims else out.reshape(known_shape(_reduced(x.shape, over, False)))

    def lower(b: PrimBuilder, a: ReduceAttrs, x: Buffer, *w: Buffer) -> Buffer:
        over = axes(a, len(x.shape))
        mode = a.accumulate if isinstance(a, SumAttrs) else "sequential"
        if reference in (mean, mean_of_products):
            return lower_mean(b, name, x, over, a.keepdims, mode, *w)
        return lower_fold(b, name, x, over, update, a.keepdims, mode, *w)

    return register_op(
        OpDef(
            name,
            infer,
            run,
            lower,
            attrs,
            (1 + products, 1 + products),
            fusion=Fusion.ANCHOR,
            quantized=quantized,
            terms=terms if attrs is SumAttrs else None,
            summation=_summation(reference) if attrs is SumAttrs else None,
            average=MEAN_OF_ONE if reference is mean else None,
            onnx=onnx_node(onnx, "keepdims", axes=True) if onnx else None,
            numbered=True,
            gradient=gradient,
            doc=doc,
        )
    )


SUM, MEAN, SUM_PRODUCTS, MEAN_PRODUCTS, PROD, MAX, MIN = (
    _register(*_row)
    for _row in (
        ("sum", total, "Add", Quantized.FLOAT, "sum over axes, row-major", rules.total,
         "ReduceSum"),
        ("mean", mean, "Add", Quantized.INTEGER, "sum over axes, then one division", rules.mean,
         "ReduceMean"),
        ("sum_products", total_of_products, "Add", Quantized.FLOAT,
         "sum over axes, row-major, of products of two operands of one type",
         rules.total_of_products),
        ("mean_products", mean_of_products, "Add", Quantized.FLOAT,
         "mean over axes of products of two operands of one type", rules.mean_of_products),
        ("prod", product_of, "Mul", Quantized.FLOAT, "product over axes, row-major",
         rules.product),
        ("max", largest, "Max", Quantized.SAME, "largest value over axes", rules.extreme,
         "ReduceMax"),
        ("min", smallest, "Min", Quantized.SAME, "smallest value over axes", rules.extreme,
         "ReduceMin"),
    )
)  # fmt: skip
