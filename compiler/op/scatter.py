"""Operators whose positions are data: gather_elements, gather_nd, scatter_elements, scatter_nd.

Scattering copies the data and then goes through the updates in their order. Threads share only what
no update of another thread can hit, so that the result is the same however the loops are split.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from compiler.arithmetic.arrays import Arithmetic
from compiler.op.accumulate import (
    Accumulation,
    accumulation,
    check_mode,
    finished,
    require_steps,
    staged,
    sums,
)
from compiler.op.common import axis_of, need_constant, one_dtype, require, type_of
from compiler.op.facts import Summation, onnx_node
from compiler.op.gradients import positions as rules
from compiler.op.gradients import scattering
from compiler.op.opdef import Fusion, OpDef, register_ops
from compiler.op.running_sums import ScatteredSum
from compiler.symbolic import Index, IntLike, Var, imin, product
from compiler.tensor.builder import PrimBuilder
from compiler.tensor.expr import (
    Buffer,
    Expr,
    Gather,
    binary,
    const,
    index_value,
    maximum,
    minimum,
    select,
)
from compiler.tensor.stmt import For, Pick, Stmt, Store
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
    if rank < len(t.shape):
        return _gather_slices(b, a, x, indices)

    def value(*i: Any) -> Expr:
        base = x.flat((*i[:shared], *[Index()] * depth))
        out = index_value(base)
        for k in range(depth):
            at = _inside(indices[(*i[:rank], k)].astype(INT64), index_value(x.shape[shared + k]))
            out = out + at * index_value(strides[shared + k])
        return Gather(x, out)

    return b.compute("gather_nd", t.shape, x.dtype, value)


def _gather_slices(b: PrimBuilder, a: GatherNDAttrs, x: Buffer, indices: Buffer) -> Buffer:
    """Whole slices: where one lies is looked up once, not for each of its elements."""
    shared, depth = a.batch_dims, indices.shape[-1].const
    stage = b.fresh("gather_nd_slice")

    def loops(name: str, extents: Sequence[Index]) -> list[Var]:
        return [Var(f"{stage}.{name}{k}", n) for k, n in enumerate(extents)]

    rows, inner = loops("r", indices.shape[:-1]), loops("i", x.shape[shared + depth :])
    at = loops("at", x.shape[shared : shared + depth])
    out = b.buffer("gather_nd", [Index.of(v.extent or 0) for v in (*rows, *inner)], x.dtype)
    place = tuple(map(Index.of, (*rows, *inner)))
    node: Stmt = Store(stage, out, place, x[(*rows[:shared], *at, *inner)])
    for v in reversed(inner):
        node = For(v, [node])
    for k, v in reversed(list(enumerate(at))):
        position = _inside(indices[(*rows, k)].astype(INT64), index_value(v.extent or 0))
        node = Pick(v, position, [node])
    for v in reversed(rows):
        node = For(v, [node])
    b.body.append(node)
    return out


# ---- scattering ----------------------------------------------------------------------------------
def _reduction(op: str, name: str) -> str:
    require(name in _UPDATES, f"{op}: reduction must be one of {', '.join(_UPDATES)}, not {name!r}")
    return _UPDATES[name]


def _infer_scatter_elements(a: ScatterElementsAttrs, types: Sequence[TensorType]) -> TensorType:
    x, indices, updates = types
    _require_indices("scatter_elements", indices)
    one_dtype("scatter_elements", [x, updates])
    check_mode("scatter_elements", a.accumulate, x.dtype)
    require_steps("scatter_elements", a.accumulate)
    axis_of("scatter_elements", a.axis, x.rank)
    _reduction("scatter_elements", a.reduction)
    text = f"scatter_elements: indices {indices} do not fit data {x} and updates {updates}"
    require(x.rank == indices.rank == updates.rank, text)
    require_equal(zip(indices.shape, updates.shape, strict=True), text)
    for k, (n, most) in enumerate(zip(indices.shape, x.shape, strict=True)):
        if k != a.axis % x.rank and isinstance(n, int) and isinstance(most, int):
            require(n <= most, f"{text}: axis {k} is shorter in the data")
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
    s = _Scattered(b, "scatter_elements", a, x, indices.shape[axis])
    # Lines along the axis are independent of each other.
    order = list(range(len(x.shape)))
    if axis == 0 and len(order) > 2:
        order[:2] = [1, 0]
    shape = [n if k == axis else _least(n, x.shape[k]) for k, n in enumerate(indices.shape)]
    loops = [s.loop(f"i{k}", n) for k, n in enumerate(shape)]
    at = s.picked(axis, indices[tuple(loops)])
    place = (*loops[:axis], at.var, *loops[axis + 1 :])
    nest: list[Var | Pick] = [*(loops[k] for k in order), at]
    return s.finish(nest, place, updates[tuple(loops)])


def _least(n: Index, most: Index) -> Index:
    """How many of `n` indices along an axis lie beside data."""
    known = n == most or (n.constant() is not None and most.constant() is not None)
    return n if known else imin(n, most)


def _infer_scatter_nd(a: ScatterNDAttrs, types: Sequence[TensorType]) -> TensorType:
    x, indices, updates = types
    _require_indices("scatter_nd", indices)
    one_dtype("scatter_nd", [x, updates])
    check_mode("scatter_nd", a.accumulate, x.dtype)
    require_steps("scatter_nd", a.accumulate)
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
    s = _Scattered(b, "scatter_nd", a, x, Index.of(product(indices.shape[:-1])))
    rows = [s.loop(f"r{k}", n) for k, n in enumerate(indices.shape[:-1])]
    inner = [s.loop(f"i{k}", n) for k, n in enumerate(x.shape[depth:])]
    at = [s.picked(k, indices[(*rows, k)]) for k in range(depth)]
    place = (*(p.var for p in at), *inner)
    # What lies in one place of all slices is independent of the other places.
    apart = inner[:1] if len(inner) > 1 else []
    nest: list[Var | Pick] = [*apart, *rows, *at, *inner[len(apart) :]]
    return s.finish(nest, place, updates[(*rows, *inner)])


_Scatter = ScatterElementsAttrs | ScatterNDAttrs


def _started(
    ar: Arithmetic, a: _Scatter, x: Array, updates: Array
) -> tuple[Accumulation, Array, Array]:
    """How updates are added, and data and updates as they are added."""
    s = accumulation(_mode(a), ar)
    if a.reduction != "add":
        return s, x.copy(), updates
    both = s.operand(np.concatenate([x.reshape(-1), updates.reshape(-1)]), ar.dtype)
    return s, s.begin(both[: x.size].reshape(x.shape)), both[x.size :].reshape(updates.shape)


def _mode(a: _Scatter) -> str:
    return a.accumulate if a.reduction == "add" else "sequential"


def _combined(ar: Arithmetic, s: Accumulation, reduction: str, old: Any, new: Any) -> Any:
    if reduction == "none":
        return new
    step = {"add": s.add, "mul": ar.mul, "max": ar.maximum, "min": ar.minimum}[reduction]
    kind = object if type(old) in (int, float) else None  # Python's own numbers stay such
    return step(np.asarray(old, kind), np.asarray(new, kind))[()]


class _Scattered:
    """The loop nests of a scattering: `x` is copied, then the updates are stored in their order,
    as in the reference. `count`: the most updates of one element."""

    def __init__(self, b: PrimBuilder, name: str, a: _Scatter, x: Buffer, count: Index):
        step = _UPDATES[a.reduction]
        self.step = _TRUTHS.get(step, "") if x.dtype == BOOL else step
        self.b, self.name, self.x, self.exact = b, name, x, _mode(a) == "exact"
        self.stage = b.fresh(f"{name}_update")
        how = staged(_mode(a))
        self.parts = None if how is None else ScatteredSum(b, name, x, how)
        if self.parts is None:
            self.sums = sums(_mode(a), x.dtype, count + 1, products=False)
            self.out = b.compute(name, x.shape, self.sums.held, self._start)

    def _start(self, *i: Any) -> Expr:
        first = self.x[i].astype(self.sums.held)
        # An exact sum that is zero is +0, that of a single -0 too; a held float keeps the sign.
        return first + const(0, self.sums.held) if self.exact else first

    def loop(self, name: str, extent: IntLike) -> Var:
        """The variable of a loop over updates."""
        return Var(f"{self.stage}.{name}", extent)

    def picked(self, axis: int, index: Expr) -> Pick:
        """The position that an index, which may count from the end, says along an axis."""
        size = self.x.shape[axis]
        at = _wrapped(index.astype(INT64), index_value(size))
        return Pick(Var(f"{self.stage}.at{axis}", size), at, [])

    def finish(self, nest: Sequence[Var | Pick], place: Sequence[Var], update: Expr) -> Buffer:
        """The result, of which `update` is for the element at `place`, in the loops and picked
        positions `nest`, the first of them outermost."""
        if self.parts is not None:
            self.b.body += _within(nest, self.parts.updated(place, update))
            return self.parts.finish()
        new = self.sums.factor(update)
        if self.step:
            old = self.out[tuple(place)]
            add = self.step == "Add"
            new = self.sums.added(old, new) if add else binary(self.step, old, new)
        self.b.body += _within(
            nest, [Store(self.stage, self.out, tuple(map(Index.of, place)), new)]
        )
        return finished(self.b, self.sums, f"{self.name}_round", self.out, None)


def _within(nest: Sequence[Var | Pick], body: list[Stmt]) -> list[Stmt]:
    for x in reversed(nest):
        body = [For(x, body) if isinstance(x, Var) else Pick(x.var, x.at, body)]
    return body


_ADDED = Summation((0, 2), holds=lambda a: a.reduction == "add")
GATHER_ELEMENTS, GATHER_ND, SCATTER_ELEMENTS, SCATTER_ND = register_ops(
    OpDef(
        "gather_elements", _infer_gather_elements, _gather_elements, _lower_gather_elements,
        GatherElementsAttrs, (2, 2), onnx=onnx_node("GatherElements", "axis"),
        gradient=rules.gather_elements,
        doc="elements at the positions given along an axis",
    ),
    OpDef(
        "gather_nd", _infer_gather_nd, _gather_nd, _lower_gather_nd, GatherNDAttrs, (2, 2),
        Fusion.ANCHOR, onnx=onnx_node("GatherND", "batch_dims"),
        gradient=rules.gather_nd,
        doc="slices at the positions that the last axis of the indices gives",
    ),
    OpDef(
        "scatter_elements", _infer_scatter_elements, _scatter_elements, _lower_scatter_elements,
        ScatterElementsAttrs, (3, 3), terms=lambda a, types: types[1].shape[a.axis] + 1,
        summation=_ADDED, onnx=onnx_node("ScatterElements", "axis", "reduction"),
        gradient=scattering.scatter_elements,
        doc="data with updates at positions given along an axis",
    ),
    OpDef(
        "scatter_nd", _infer_scatter_nd, _scatter_nd, _lower_scatter_nd, ScatterNDAttrs, (3, 3),
        terms=lambda a, types: product(types[1].shape[:-1]) + 1,
        summation=_ADDED, onnx=onnx_node("ScatterND", "reduction"),
        gradient=scattering.scatter_nd,
        doc="data with updates of the slices at the positions given",
    ),
)  # fmt: skip
