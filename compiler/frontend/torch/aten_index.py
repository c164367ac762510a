"""Converters of operators that read and write at positions."""

from __future__ import annotations

import numpy as np

from compiler.frontend.node import Results
from compiler.frontend.torch.aten_elementwise import as_bool
from compiler.frontend.torch.node import Ref, TorchNode, aten
from compiler.frontend.values import constant_of
from compiler.ir.expr import Atom, Constant, tensor_type
from compiler.symbolic import Dim
from compiler.types.dtypes import BOOL, INT64
from compiler.types.tensor_types import broadcast

_REDUCTIONS = {"sum": "add", "add": "add", "prod": "mul", "multiply": "mul", "amax": "max",
               "amin": "min"}  # fmt: skip


@aten("index_select")
def index_select(n: TorchNode) -> Results:
    """Positions of one axis."""
    return n.spelled("Gather", n.x(), n.x("index"), axis=n.number("dim"))


@aten("index", "_unsafe_index")
def index(n: TorchNode) -> Results:
    """Elements at positions along several axes; what the positions' own axes are comes first, or,
    where the axes are next to each other, in their place."""
    x = n.x()
    axes, at = _positions(n, tensor_type(x).rank)
    if len(axes) == 1 and tensor_type(at[0]).dtype != BOOL:
        return n.spelled("Gather", x, at[0], axis=axes[0])
    if any(tensor_type(a).dtype == BOOL for a in at):
        return _where_true(n, x, axes, at)
    rank, shared = tensor_type(x).rank, _shape_of(at)
    front = n.step("transpose", x, axes=_in_front(axes, rank)) if axes[0] or _gap(axes) else x
    y = n.made(n.spelled_step("GatherND", front, _columns(n, at, shared)))
    if _gap(axes) or axes[0] == 0:
        return y
    before, count = axes[0], len(shared)  # axes before the indexed ones go back to the front
    order = [
        *range(count, count + before),
        *range(count),
        *range(count + before, tensor_type(y).rank),
    ]
    return n.call("transpose", y, axes=tuple(order))


def _where_true(n: TorchNode, x: Atom, axes: list[int], at: list[Atom]) -> Results:
    """Elements at which one mask, of the first axes, is true: as many as there are."""
    if len(at) != 1 or axes != [0]:
        raise n.unsupported("a mask beside other positions")
    places = n.made(n.spelled_step("NonZero", at[0]))
    return n.spelled("GatherND", x, n.step("transpose", places, axes=(1, 0)))


@aten("nonzero")
def nonzero(n: TorchNode) -> Results:
    """Positions of what is not 0, a row each."""
    places = n.made(n.spelled_step("NonZero", as_bool(n, "self")))
    return n.call("transpose", places, axes=(1, 0))


def _positions(n: TorchNode, rank: int) -> tuple[list[int], list[Atom]]:
    """The axes that `indices` names, and the positions, int64 or bool."""
    axes, at = [], []
    for k, given in enumerate(n.arg("indices")):
        if given is not None:
            v = n.made(n.imported(given))
            axes.append(k)
            at.append(
                v if tensor_type(v).dtype in (INT64, BOOL) else n.step("cast", v, dtype="int64")
            )
    if not axes:
        raise n.unsupported("no positions")
    return axes, at


def _shape_of(at: list[Atom]) -> tuple[Dim, ...]:
    """The shape that positions have together."""
    shape: tuple[Dim, ...] = ()
    for a in at:
        shape = broadcast(shape, tensor_type(a).shape)
    return shape


def _gap(axes: list[int]) -> bool:
    return axes != list(range(axes[0], axes[0] + len(axes)))


def _in_front(axes: list[int], rank: int) -> tuple[int, ...]:
    return (*axes, *(k for k in range(rank) if k not in axes))


def _columns(n: TorchNode, at: list[Atom], shape: tuple[Dim, ...]) -> Atom:
    """Positions along each axis as columns: [..., axes]."""
    columns = []
    for a in at:
        wide = a if tensor_type(a).shape == shape else n.step("broadcast_to", a, shape=shape)
        columns.append(n.step("expand_dims", wide, axes=(len(shape),)))
    return n.step("concatenate", *columns, axis=len(shape)) if len(columns) > 1 else columns[0]


@aten("index_put", "_unsafe_index_put", "index_put_")
def index_put(n: TorchNode) -> Results:
    """Values at positions; or, of one mask, one value where it is true."""
    x = n.x()
    t = tensor_type(x)
    axes, at = _positions(n, t.rank)
    values = n.converted(n.x("values"), t.dtype)
    if any(tensor_type(a).dtype == BOOL for a in at):
        if len(at) != 1 or axes != [0] or tensor_type(values).size != 1 or n.arg("accumulate"):
            raise n.unsupported("a mask and several values")
        mask = at[0]
        more = t.rank - tensor_type(mask).rank
        if more:
            shape = (*tensor_type(mask).shape, *(1 for _ in range(more)))
            mask = n.step("reshape", mask, newshape=shape)
        return n.call("where", mask, n.step("reshape", values, newshape=()), x)
    order = _in_front(axes, t.rank)
    moved = order != tuple(range(t.rank))
    front = n.step("transpose", x, axes=order) if moved else x
    shared = _shape_of(at)
    rest = tensor_type(front).shape[len(axes) :]
    if moved and not _gap(axes) and tensor_type(values).rank > len(rest):
        raise n.unsupported("values of several axes at positions that are not the first")
    values = n.step("broadcast_to", values, shape=(*shared, *rest))
    reduction = "add" if n.arg("accumulate") else "none"
    columns = _columns(n, at, shared)
    if not moved:
        return n.spelled("ScatterND", front, columns, values, reduction=reduction)
    y = n.made(n.spelled_step("ScatterND", front, columns, values, reduction=reduction))
    return n.call("transpose", y, axes=tuple(int(k) for k in np.argsort(order)))


@aten("gather")
def gather(n: TorchNode) -> Results:
    """Elements along an axis at positions, which may be of fewer rows than the data."""
    x, at = n.x(), n.x("index")
    axis = n.front(n.number("dim"), max(tensor_type(x).rank, 1))
    return n.spelled("GatherElements", _cut(n, x, at, axis), at, axis=axis)


def _cut(n: TorchNode, x: Atom, at: Atom, axis: int) -> Atom:
    """`x` as far as the positions reach along other axes."""
    sizes = zip(tensor_type(x).shape, tensor_type(at).shape, strict=True)
    axes = [k for k, (a, b) in enumerate(sizes) if a != b and k != axis]
    if not axes:
        return x
    ends = tuple(tensor_type(at).shape[k] for k in axes)
    return n.step("strided_slice", x, begin=(0,) * len(axes), end=ends, axes=tuple(axes))


@aten("scatter", "scatter_add", "scatter_reduce")
def scatter(n: TorchNode) -> Results:
    """Updates along an axis at positions; a number updates all of them."""
    x, at = n.x(), n.x("index")
    t = tensor_type(x)
    axis = n.front(n.number("dim"), max(t.rank, 1))
    if n.arg("src") is not None:
        updates = _cut(n, n.converted(n.x("src"), t.dtype), at, -1)
        at_sizes = tensor_type(at).shape
        if tensor_type(updates).shape != at_sizes:
            raise n.unsupported(f"updates {tensor_type(updates)} at positions {tensor_type(at)}")
    else:
        value = constant_of(n.number("value"), t.dtype)
        updates = n.step("broadcast_to", value, shape=tensor_type(at).shape)
    how = n.arg("reduce") if n.op != "aten.scatter_add" else "sum"
    if how is not None and (how not in _REDUCTIONS or n.args.get("include_self") is False):
        raise n.unsupported(f"reduce={how!r}, include_self={n.args.get('include_self')}")
    reduction = "none" if how is None else _REDUCTIONS[how]
    return n.spelled("ScatterElements", x, at, updates, axis=axis, reduction=reduction)


@aten("slice_scatter")
def slice_scatter(n: TorchNode) -> Results:
    """`src` in the place of a slice of known ends."""
    x, src = n.x(), n.x("src")
    t = tensor_type(x)
    axis = n.front(n.number("dim"), t.rank)
    size = t.shape[axis]
    given = [n.arg("start") or 0, size if n.arg("end") is None else n.arg("end")]
    if not isinstance(size, int) or any(isinstance(g, Ref) for g in given):
        if tensor_type(src).shape == t.shape:
            return src
        raise n.unsupported(f"the symbolic size {size}")
    start, end, step = slice(given[0], given[1], n.number("step")).indices(size)
    if step == 1:
        ends = [(0, start), (end, size)]
        before, after = (
            [n.step("strided_slice", x, begin=(a,), end=(b,), axes=(axis,))] if b > a else []
            for a, b in ends
        )
        parts = [*before, src, *after]
        return n.call("concatenate", *parts, axis=axis) if len(parts) > 1 else src
    order = _in_front([axis], t.rank)
    data, rows = (n.step("transpose", v, axes=order) for v in (x, src))
    at = Constant.of(np.arange(start, end, step)[:, None], INT64)
    y = n.made(n.spelled_step("ScatterND", data, at, rows))
    return n.call("transpose", y, axes=tuple(int(k) for k in np.argsort(order)))


@aten("select_scatter")
def select_scatter(n: TorchNode) -> Results:
    """`src` in the place of one position of an axis."""
    x, t = n.x(), tensor_type(n.x())
    axis, at, size = n.front(n.number("dim"), t.rank), n.number("index"), None
    size = t.shape[axis]
    if not isinstance(size, int):
        raise n.unsupported(f"the symbolic size {size}")
    shape = tuple(size if k == axis else 1 for k in range(t.rank))
    here = Constant.of((np.arange(size) == at % size).reshape(shape), BOOL)
    src = n.step("expand_dims", n.converted(n.x("src"), t.dtype), axes=(axis,))
    return n.call("where", here, src, x)
