"""Operators whose positions are data: gather_elements, gather_nd, scatter_elements, scatter_nd.

Scattering is computed from the result's side: every element looks for the updates that hit it, in
their order, so that the result is the same however the loops are split.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from compiler.arithmetic.arrays import Arithmetic
from compiler.op.accumulate import Accumulation, accumulation, check_mode, finished, sums
from compiler.op.common import axis_of, need_constant, one_dtype, require, type_of
from compiler.op.opdef import OpDef, register_op
from compiler.symbolic import Index, product
from compiler.tensor.builder import PrimBuilder
from compiler.tensor.expr import Expr, Gather, const, index_value, maximum, minimum, select
from compiler.tensor.stmt import Buffer
from compiler.types.dtypes import BOOL, INT64, Array
from compiler.types.tensor_types import TensorType, require_equal

_UPDATES = {"none": "", "add": "Add", "mul": "Mul", "max": "Max", "min": "Min"}
_TRUTHS = {"Add": "Or", "Max": "Or", "Mul": "And", "Min": "And"}
"""What the same is of truth values, as in numpy: a sum is true where one of its terms is."""


@dataclass(frozen=True)
class GatherElementsAttrs:
    """The axis that indices count along."""

    axis: int = 0


@dataclass(frozen=True)
class GatherNDAttrs:
    """How many leading axes data and indices share."""

    batch_dims: int = 0


@dataclass(frozen=True)
class ScatterElementsAttrs:
    """The axis that indices count along, and what an update does to what is there: none (replace),
    add, mul, max, min; `accumulate`: how sums are formed, what is there first
    (`compiler.op.accumulate`)."""

    axis: int = 0
    reduction: str = "none"
    accumulate: str = "sequential"


@dataclass(frozen=True)
class ScatterNDAttrs:
    """What an update does to what is there: none (replace), add, mul, max, min; `accumulate`: how
    sums are formed, what is there first (`compiler.op.accumulate`)."""

    reduction: str = "none"
    accumulate: str = "sequential"


# ---- positions -----------------------------------------------------------------------------------
def _wrapped(at: Expr, size: Expr) -> Expr:
    """A position that may count from the end."""
    return select(at < 0, at + size, at)


def _inside(at: Expr, size: Expr) -> Expr:
    """The same, kept inside: a position outside the buffer must never be read."""
    return minimum(maximum(_wrapped(at, size), 0), size - 1)


def _positions(indices: Array, size: int) -> Array:
    at = indices.astype(np.int64)
    return np.where(at < 0, at + size, at)


def _strides(shape: Sequence[Index]) -> list[Index]:
    out = [Index.of(1)]
    for n in list(shape)[:0:-1]:
        out.insert(0, out[0] * n)
    return out


def _require_indices(op: str, t: TensorType) -> None:
    require(t.dtype.is_integer, f"{op}: indices must be integers, not {t.dtype}; cast them")
    require(t.rank > 0, f"{op}: the indices are a scalar; give them at least one axis")


# ---- gathering -----------------------------------------------------------------------------------
def _infer_gather_elements(a: GatherElementsAttrs, types: Sequence[TensorType]) -> TensorType:
    x, indices = types
    _require_indices("gather_elements", indices)
    axis_of("gather_elements", a.axis, x.rank)
    require(x.rank == indices.rank, f"gather_elements: {x} and {indices} differ in rank")
    return TensorType(indices.shape, x.dtype)


def _gather_elements(_: Arithmetic, a: GatherElementsAttrs, x: Array, indices: Array) -> Array:
    n = x.shape[a.axis]
    at = np.clip(_positions(indices, n), 0, n - 1)
    part = x[tuple(slice(None) if k == a.axis % x.ndim else slice(m)
                   for k, m in enumerate(indices.shape))]  # fmt: skip
    return np.take_along_axis(part, at, a.axis)


def _lower_gather_elements(
    b: PrimBuilder, a: GatherElementsAttrs, x: Buffer, indices: Buffer
) -> Buffer:
    axis = a.axis % len(x.shape)
    stride, size = _strides(x.shape)[axis], index_value(x.shape[axis])

    def value(*i: Any) -> Expr:
        base = x.flat((*i[:axis], Index(), *i[axis + 1 :]))
        at = _inside(indices[i].astype(INT64), size)
        return Gather(x, index_value(base) + at * index_value(stride))

    return b.compute("gather_elements", indices.shape, x.dtype, value)


def _infer_gather_nd(a: GatherNDAttrs, types: Sequence[TensorType]) -> TensorType:
    x, indices = types
    _require_indices("gather_nd", indices)
    depth = need_constant("gather_nd", "the last dimension of the indices", indices.shape[-1])
    shared = a.batch_dims
    require(
        0 <= shared < indices.rank and shared + depth <= x.rank,
        f"gather_nd: indices {indices} with {shared} shared axes are too deep for {x}",
    )
    require_equal(
        zip(x.shape[:shared], indices.shape[:shared], strict=True),
        f"gather_nd: {x} and {indices} do not share their first {shared} axes",
    )
    return TensorType((*indices.shape[:-1], *x.shape[shared + depth :]), x.dtype)


def _gather_nd(_: Arithmetic, a: GatherNDAttrs, x: Array, indices: Array) -> Array:
    shared, depth = a.batch_dims, indices.shape[-1]
    grid = np.indices(indices.shape[:-1])[:shared]
    at = [
        np.clip(_positions(indices[..., k], n), 0, n - 1)
        for k, n in enumerate(x.shape[shared : shared + depth])
    ]
    return np.asarray(x[(*grid, *at)])


def _lower_gather_nd(b: PrimBuilder, a: GatherNDAttrs, x: Buffer, indices: Buffer) -> Buffer:
    t = _infer_gather_nd(a, [type_of(x), type_of(indices)])
    shared, rank = a.batch_dims, len(indices.shape) - 1
    depth = len(x.shape) - shared - (len(t.shape) - rank)
    strides = _strides(x.shape)

    def value(*i: Any) -> Expr:
        base = x.flat((*i[:shared], *[Index()] * depth, *i[rank:]))
        out = index_value(base)
        for k in range(depth):
            at = _inside(indices[(*i[:rank], k)].astype(INT64), index_value(x.shape[shared + k]))
            out = out + at * index_value(strides[shared + k])
        return Gather(x, out)

    return b.compute("gather_nd", t.shape, x.dtype, value)


# ---- scattering ----------------------------------------------------------------------------------
def _reduction(op: str, name: str) -> str:
    require(name in _UPDATES, f"{op}: reduction must be one of {', '.join(_UPDATES)}, not {name!r}")
    return _UPDATES[name]


def _infer_scatter_elements(a: ScatterElementsAttrs, types: Sequence[TensorType]) -> TensorType:
    x, indices, updates = types
    _require_indices("scatter_elements", indices)
    one_dtype("scatter_elements", [x, updates])
    check_mode("scatter_elements", a.accumulate, x.dtype)
    axis_of("scatter_elements", a.axis, x.rank)
    _reduction("scatter_elements", a.reduction)
    text = f"scatter_elements: indices {indices} do not fit data {x} and updates {updates}"
    require(x.rank == indices.rank == updates.rank, text)
    require_equal(zip(indices.shape, updates.shape, strict=True), text)
    return x


def _scatter_elements(
    ar: Arithmetic, a: ScatterElementsAttrs, x: Array, indices: Array, updates: Array
) -> Array:
    s, out, updates = _started(ar, a, x, updates)
    axis = a.axis % x.ndim
    at = _positions(indices, x.shape[axis])
    for i in np.ndindex(*indices.shape):
        place = (*i[:axis], int(at[i]), *i[axis + 1 :])
        if 0 <= place[axis] < x.shape[axis]:
            out[place] = _combined(ar, s, a.reduction, out[place], updates[i])
    return s.result(out)


def _lower_scatter_elements(
    b: PrimBuilder, a: ScatterElementsAttrs, x: Buffer, indices: Buffer, updates: Buffer
) -> Buffer:
    axis = a.axis % len(x.shape)
    size, strides = index_value(x.shape[axis]), _strides(indices.shape)

    def row(i: Sequence[Any], r: Expr) -> Expr:
        """Where the update r along the axis is, for the other coordinates of position i."""
        out = r * index_value(strides[axis])
        for k, n in enumerate(indices.shape):
            if k != axis:
                nearest = minimum(index_value(i[k]), index_value(n - 1))
                out = out + nearest * index_value(strides[k])
        return out

    def hits(i: Sequence[Any], r: Expr) -> Expr:
        at = _wrapped(Gather(indices, row(i, r)).astype(INT64), size)
        out = at.equal(index_value(i[axis]))
        for k, n in enumerate(indices.shape):
            if k != axis and n != x.shape[k]:
                out = out & (index_value(i[k]) < index_value(n))
        return out

    def update(i: Sequence[Any], r: Expr) -> Expr:
        return Gather(updates, row(i, r))

    count = indices.shape[axis]
    return _scattered(b, "scatter_elements", x, a, count, hits, update)


def _infer_scatter_nd(a: ScatterNDAttrs, types: Sequence[TensorType]) -> TensorType:
    x, indices, updates = types
    _require_indices("scatter_nd", indices)
    one_dtype("scatter_nd", [x, updates])
    check_mode("scatter_nd", a.accumulate, x.dtype)
    _reduction("scatter_nd", a.reduction)
    depth = need_constant("scatter_nd", "the last dimension of the indices", indices.shape[-1])
    text = f"scatter_nd: indices {indices} do not fit data {x} and updates {updates}"
    wanted = (*indices.shape[:-1], *x.shape[depth:])
    require(depth <= x.rank and updates.rank == len(wanted), text)
    require_equal(zip(updates.shape, wanted, strict=True), text)
    return x


def _scatter_nd(
    ar: Arithmetic, a: ScatterNDAttrs, x: Array, indices: Array, updates: Array
) -> Array:
    s, out, updates = _started(ar, a, x, updates)
    for i in np.ndindex(*indices.shape[:-1]):
        at = tuple(int(_positions(p, n)) for p, n in zip(indices[i], x.shape, strict=False))
        if all(0 <= p < n for p, n in zip(at, x.shape, strict=False)):
            out[at] = _combined(ar, s, a.reduction, out[at], updates[i])
    return s.result(out)


def _lower_scatter_nd(
    b: PrimBuilder, a: ScatterNDAttrs, x: Buffer, indices: Buffer, updates: Buffer
) -> Buffer:
    depth = indices.shape[-1].const
    count = Index.of(product(indices.shape[:-1]))
    strides, rest = _strides(x.shape), Index.of(1)
    for n in x.shape[depth:]:
        rest = rest * n

    def hits(i: Sequence[Any], r: Expr) -> Expr:
        out: Expr | None = None
        for k in range(depth):
            index = Gather(indices, r * depth + k).astype(INT64)
            here = _wrapped(index, index_value(x.shape[k])).equal(index_value(i[k]))
            out = here if out is None else out & here
        return r.equal(r) if out is None else out

    def update(i: Sequence[Any], r: Expr) -> Expr:
        inner = Index()
        for k in range(depth, len(x.shape)):
            inner = inner + Index.of(i[k]) * strides[k]
        return Gather(updates, r * index_value(rest) + index_value(inner))

    return _scattered(b, "scatter_nd", x, a, count, hits, update)


_Scatter = ScatterElementsAttrs | ScatterNDAttrs


def _started(
    ar: Arithmetic, a: _Scatter, x: Array, updates: Array
) -> tuple[Accumulation, Array, Array]:
    """How updates are added, and data and updates as they are added."""
    s = accumulation(_mode(a), ar)
    if a.reduction != "add":
        return s, x.copy(), updates
    both = s.operand(np.concatenate([x.reshape(-1), updates.reshape(-1)]), ar.dtype)
    return s, both[: x.size].reshape(x.shape), both[x.size :].reshape(updates.shape)


def _mode(a: _Scatter) -> str:
    return a.accumulate if a.reduction == "add" else "sequential"


def _combined(ar: Arithmetic, s: Accumulation, reduction: str, old: Any, new: Any) -> Any:
    if reduction == "none":
        return new
    step = {"add": s.add, "mul": ar.mul, "max": ar.maximum, "min": ar.minimum}[reduction]
    kind = object if type(old) in (int, float) else None  # Python's own numbers stay such
    return step(np.asarray(old, kind), np.asarray(new, kind))[()]


_Where = Callable[[Sequence[Any], Expr], Expr]


def _scattered(
    b: PrimBuilder, name: str, x: Buffer, a: _Scatter, count: Index, hits: _Where, update: _Where
) -> Buffer:
    """x with its updates: `hits(position, r)` says whether update r < count is for this element,
    `update(position, r)` reads it."""
    step = _UPDATES[a.reduction]
    if x.dtype == BOOL:
        step = _TRUTHS.get(step, "")
    if step:
        held = sums(_mode(a), x.dtype, count + 1, products=False)

        def value(*i: Any) -> Expr:
            *at, r = i
            zero = 0 if held.held.is_integer else -0.0
            neutral = {"Add": zero, "Mul": 1, "Or": 0, "And": 1}.get(step)
            other = x[tuple(at)] if neutral is None else const(neutral, held.held)
            new = held.factor(update(at, index_value(r)))
            return select(hits(at, index_value(r)), new, other)

        def start(*i: Any) -> Expr:
            first = held.factor(x[i])
            # An exact sum that is zero is +0, that of a single -0 too; a held float keeps the sign.
            return first + const(0, held.held) if _mode(a) == "exact" else first

        out = b.reduce(name, x.shape, held.held, {"r": count}, value, start, step)
        return finished(b, held, f"{name}_round", out, None)

    def found(*i: Any) -> Expr:
        *at, r = i
        return select(hits(at, index_value(r)), index_value(r), const(-1, INT64))

    last = b.reduce(f"{name}_last", x.shape, INT64, {"r": count}, found, const(-1, INT64), "Max")

    def chosen(*i: Any) -> Expr:
        return select(last[i] < 0, x[i], update(i, maximum(last[i], 0)))

    return b.compute(name, x.shape, x.dtype, chosen)


for _definition in (
    OpDef(
        "gather_elements", _infer_gather_elements, _gather_elements, _lower_gather_elements,
        GatherElementsAttrs, (2, 2), doc="elements at the positions given along an axis",
    ),
    OpDef(
        "gather_nd", _infer_gather_nd, _gather_nd, _lower_gather_nd, GatherNDAttrs, (2, 2),
        doc="slices at the positions that the last axis of the indices gives",
    ),
    OpDef(
        "scatter_elements", _infer_scatter_elements, _scatter_elements, _lower_scatter_elements,
        ScatterElementsAttrs, (3, 3), terms=lambda a, types: types[1].shape[a.axis] + 1,
        doc="data with updates at positions given along an axis",
    ),
    OpDef(
        "scatter_nd", _infer_scatter_nd, _scatter_nd, _lower_scatter_nd, ScatterNDAttrs, (3, 3),
        terms=lambda a, types: product(types[1].shape[:-1]) + 1,
        doc="data with updates of the slices at the positions given",
    ),
):  # fmt: skip
    register_op(_definition)
