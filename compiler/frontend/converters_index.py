"""Converters of operators that search, count or address elements."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from compiler.frontend.choices import axes_of, each_value, same_rank
from compiler.frontend.element_types import element_dtype
from compiler.frontend.indices import check_positions
from compiler.frontend.node import Node, converts
from compiler.frontend.run_time import (
    Integer,
    checked,
    found,
    found_or_0,
    integers,
    is_natural,
    number,
    positions,
    steps,
    whole_number,
)
from compiler.frontend.values import Imported, constant_of, scalar, symbolic
from compiler.ir.expr import Atom, Constant, Var, tensor_type
from compiler.symbolic import Dim, Index, ceil_div, imax
from compiler.types.dtypes import BOOL, INT64


@converts("Size")
def size(n: Node) -> Imported:
    """Number of elements of the input's type."""
    out = Index.of(1)
    for d in n.type(0).shape:
        out = out * d
    return symbolic(out, INT64)


@converts("Range")
def range_(n: Node) -> Imported:
    """Numbers from start by delta up to limit."""
    if any(n.constant(i) is None for i in range(3)):
        return _computed_range(n)
    ends = [n.known(i, what) for i, what in enumerate(("start", "limit", "delta"))]
    start, limit, delta = (e.reshape(()) for e in ends)
    steps = (limit.astype(np.float64) - start) / delta
    if not np.isfinite(steps).all():
        raise n.unsupported(f"start={start}, limit={limit}, delta={delta}")
    count = max(int(np.ceil(steps)), 0)
    n.reserve(count)
    values = start + np.arange(count, dtype=start.dtype) * delta
    return constant_of(np.asarray(values, start.dtype).reshape(-1), n.type(0).dtype)


def _computed_range(n: Node) -> Imported:
    """Of ends that are symbolic, or found at run time."""
    numbers = [n.value(i) for i in range(3)]
    is_float = any(isinstance(v, Var) and tensor_type(v).dtype.is_float for v in numbers)
    at = positions(n, _real_steps(n) if is_float else _whole_steps(n, *_ends(n)))
    start, _, delta = (n.step("reshape", n.atom(i), newshape=()) for i in range(3))
    if (dtype := n.type(0).dtype) != INT64:
        at = n.step("cast", at, dtype=str(dtype))
    return n.call("add", n.step("multiply", at, delta), start)


def _ends(n: Node) -> list[Integer]:
    """Start, limit and delta."""
    return [integers(n, i)[0] for i in range(3)]


def _real_steps(n: Node) -> Dim:
    """How many floats a Range has."""
    sizes = [x for i in range(3) if (x := whole_number(n, i)) is not None]
    if len(sizes) == 3:
        return _whole_steps(n, *sizes)
    flat = (n.step("reshape", n.atom(i), newshape=()) for i in range(3))
    start, limit, delta = (n.step("cast", v, dtype="float64") for v in flat)
    ratio = n.step("divide", n.step("subtract", limit, start), delta)
    none = scalar(0, tensor_type(ratio))
    count = n.step("cast", n.step("maximum", n.step("ceil", ratio), none), dtype="int64")
    return found(n, n.step("where", n.step("equal", delta, none), number(n, -1), count))


def _whole_steps(n: Node, start: Integer, limit: Integer, delta: Integer) -> Dim:
    """How many integers a Range has; where delta turns out to be 0, a size of -1 is refused."""
    if not isinstance(delta, int):
        zero, by = number(n, 0), number(n, delta)
        span = n.step("subtract", number(n, limit), number(n, start))
        back = n.step("subtract", zero, span)
        span = n.step("where", n.step("less", by, zero), back, span)
        count = steps(n, span, n.step("maximum", n.step("abs", by), number(n, 1)))
        return found(n, n.step("where", n.step("equal", by, zero), number(n, -1), count))
    if delta == 0:
        raise n.unsupported("delta=0")
    first, last = (start, limit) if delta > 0 else (limit, start)
    if first == 0 and isinstance(last, int | Index) and is_natural(last):
        return ceil_div(last, abs(delta))
    ends = [Index.of(x) for x in (first, last) if isinstance(x, int | Index)]
    if len(ends) == 2 and all(map(n.graph.is_given, ends)):
        return ceil_div(imax(ends[1] - ends[0], 0), abs(delta))
    if first == 0 and abs(delta) == 1 and not isinstance(last, int | Index):
        return found_or_0(n, last)
    span = n.step("subtract", number(n, last), number(n, first))
    return found(n, steps(n, span, number(n, abs(delta))))


@converts("ArgMax", "ArgMin")
def arg(n: Node) -> Imported:
    """Position of the extreme along one axis."""
    axis, keep = n.axis(0, n.type(0).rank), bool(n.attr("keepdims", 1))
    last = bool(n.attr("select_last_index", 0))
    return n.call(n.op.lower(), n.atom(0), axis=axis, keepdims=keep, last=last)


@converts("TopK")
def topk(n: Node) -> Sequence[Imported]:
    """Values and positions; what is not sorted may come in any order, so it is sorted too."""
    x, rank = n.atom(0), n.type(0).rank
    axis, largest = n.axis(-1, rank), bool(n.attr("largest", 1))
    k = int(n.need("k")) if n.opset < 10 else _count_of(n, n.type(0).shape[axis])
    if k == 0:
        shape = [0 if i == axis else d for i, d in enumerate(n.type(0).shape)]
        return [n.empty(shape, dtype) for dtype in (n.type(0).dtype, INT64)]
    both = n.step("topk", x, k=k, axis=axis, largest=largest)
    return [n.field(both, i) if name else both for i, name in enumerate(n.outputs)]


def _count_of(n: Node, size: Dim) -> Dim:
    """Input 1, at most `size`."""
    (given,) = integers(n, 1)
    k = given if isinstance(given, int | Index) else found(n, given)
    low = (Index.of(size) - k).range()[0]
    if isinstance(k, Index) and (low is None or low < 0):
        fits = n.step("less_equal", number(n, k), number(n, size))
        checked(n, n.step("cast", fits, dtype="int64"), 1, "k_is_possible")
    return k


@converts("CumSum", "CumProd")
@each_value(1, axes_of(same_rank))
def cumulative(n: Node) -> Imported:
    """Running sum or product along an axis that is known."""
    axis = n.front(int(n.known(1, "axis").reshape(())), n.type(0).rank)
    exclusive, reverse = bool(n.attr("exclusive", 0)), bool(n.attr("reverse", 0))
    return n.call(n.op.lower(), n.atom(0), axis=axis, exclusive=exclusive, reverse=reverse)


@converts("GatherElements")
def gather_elements(n: Node) -> Imported:
    """Elements at positions along an axis."""
    axis = n.axis(0, n.type(0).rank)
    check_positions(n, 1, [n.type(0).shape[axis]])
    return n.call("gather_elements", n.atom(0), n.atom(1), axis=axis)


@converts("GatherND")
def gather_nd(n: Node) -> Imported:
    """Slices at positions."""
    shared = n.attr("batch_dims", 0)
    _check_columns(n, shared)
    return n.call("gather_nd", n.atom(0), n.atom(1), batch_dims=shared)


def _check_columns(n: Node, shared: int) -> None:
    """Each column of the indices is along an axis of the data, after those that they share."""
    depth = n.type(1).shape[-1] if n.type(1).rank else 0
    if isinstance(depth, int) and 0 <= shared <= shared + depth <= n.type(0).rank:
        check_positions(n, 1, n.type(0).shape[shared : shared + depth])


@converts("ScatterElements", "Scatter")
def scatter_elements(n: Node) -> Imported:
    """Updates at positions along an axis."""
    reduction = n.attr("reduction", "none")
    axis = n.axis(0, n.type(0).rank)
    check_positions(n, 1, [n.type(0).shape[axis]])
    return n.call(
        "scatter_elements", n.atom(0), n.atom(1), n.atom(2), axis=axis, reduction=reduction
    )


@converts("ScatterND")
def scatter_nd(n: Node) -> Imported:
    """Updates of slices at positions."""
    reduction = n.attr("reduction", "none")
    _check_columns(n, 0)
    return n.call("scatter_nd", n.atom(0), n.atom(1), n.atom(2), reduction=reduction)


@converts("Einsum")
def einsum(n: Node) -> Imported:
    """A sum of products."""
    return n.call("einsum", *n.atoms(), equation=n.need("equation"))


@converts("Trilu")
def trilu(n: Node) -> Imported:
    """One triangle of the last two axes; zeros in the other."""
    t = n.type(0)
    rows, columns = t.shape[-2:]
    if (
        not isinstance(rows, int)
        or not isinstance(columns, int)
        or (n.has(1) and n.constant(1) is None)
    ):
        return _computed_trilu(n, rows, columns)
    k = int(n.known(1, "k").reshape(())) if n.has(1) else 0
    n.reserve(rows, columns)
    upper = np.arange(columns)[None, :] - np.arange(rows)[:, None] >= k
    keep = upper if n.attr("upper", 1) else ~upper | np.eye(rows, columns, k, dtype=bool)
    zero = scalar(0, t)
    return n.call("where", Constant(keep, BOOL), n.atom(0), zero)


def _computed_trilu(n: Node, rows: Dim, columns: Dim) -> Imported:
    """Of a size or a diagonal that is symbolic, or found at run time."""
    (k,) = integers(n, 1) if n.has(1) else (0,)
    row = n.step("expand_dims", positions(n, rows), axes=(1,))
    away = n.step("subtract", n.step("expand_dims", positions(n, columns), axes=(0,)), row)
    keep = n.step("greater_equal" if n.attr("upper", 1) else "less_equal", away, number(n, k))
    return n.call("where", keep, n.atom(0), scalar(0, n.type(0)))


@converts("EyeLike")
def eye_like(n: Node) -> Imported:
    """Ones on a diagonal of a matrix as large as the input."""
    t = n.type(0)
    rows, columns = t.static_shape
    n.reserve(rows, columns)
    dtype = element_dtype(n.attr("dtype"), n.where) if n.attr("dtype") else t.dtype
    return constant_of(np.eye(rows, columns, n.attr("k", 0)), dtype)


@converts("OneHot")
def one_hot(n: Node) -> Imported:
    """`on` where the new axis counts the index, else `off`; indices may count from the end."""
    indices, rank = n.atom(0), n.type(0).rank
    (given,) = integers(n, 1)
    depth = number(n, given)
    count = given if isinstance(given, int | Index) else found(n, given)
    axis = n.front(n.attr("axis", -1), rank + 1)
    if n.type(0).dtype != INT64:
        indices = n.step("cast", indices, dtype="int64")
    wrapped = n.step("mod", indices, depth)
    inside = n.step(
        "logical_and",
        n.step("less", indices, depth),
        n.step("greater_equal", indices, n.step("subtract", number(n, 0), depth)),
    )
    at = n.step("where", inside, wrapped, Constant.of(np.int64(-1), INT64))
    hit = _counts(n, n.step("expand_dims", at, axes=(axis,)), count, axis, rank + 1)
    values = n.atom(2)
    off, on = (n.step("take", values, Constant.of(np.int64(k), INT64), axis=0) for k in (0, 1))
    return n.call("where", hit, on, off)


def _counts(n: Node, at: Atom, depth: Dim, axis: int, rank: int) -> Atom:
    """Whether `at` is the position along `axis`."""
    shape = tuple(depth if k == axis else 1 for k in range(rank))
    return n.step("equal", at, n.step("reshape", positions(n, depth), newshape=shape))


@converts("Hardmax")
def hardmax(n: Node) -> Imported:
    """1 at the first largest element along an axis, else 0."""
    x, t = n.atom(0), n.type(0)
    axis = n.axis(-1 if n.opset >= 13 else 1, t.rank)
    shape = t.shape
    if n.opset < 13 and axis != t.rank - 1:
        x, axis = n.step("flatten", x, axis=axis), 1
    inner = tensor_type(x)
    first = n.step("argmax", x, axis=axis, keepdims=True)
    hit = _counts(n, first, inner.shape[axis], axis, inner.rank)
    if inner.shape == shape:
        return n.call("cast", hit, dtype=str(t.dtype))
    return n.call("reshape", n.step("cast", hit, dtype=str(t.dtype)), newshape=shape)


@converts("TensorScatter")
def tensor_scatter(n: Node) -> Imported:
    """A cache with updates along an axis, from a position on that each member of the batch has; in
    circular mode they go on at the beginning."""
    t, new = n.type(0), n.type(1)
    axis, size = n.axis(-2, t.rank), t.shape[n.axis(-2, t.rank)]
    mode = n.expect("mode", "linear", "linear", "circular")
    if axis == 0:
        raise n.unsupported("axis=0, which is that of the batch")
    order = (0, axis, *(k for k in range(1, t.rank) if k != axis))
    cache, rows = (n.step("transpose", n.atom(i), axes=order) for i in (0, 1))
    away = n.step("reshape", positions(n, size), newshape=(1, size))
    if n.has(2):
        first = n.step("expand_dims", n.step("cast", n.atom(2), dtype="int64"), axes=(1,))
        away = n.step("subtract", away, first)
    away = n.step("broadcast_to", away, shape=(t.shape[0], size))
    if mode == "circular":
        away = n.step("mod", away, number(n, size))
    inside = n.step("greater_equal", away, number(n, 0))
    inside = n.step("logical_and", inside, n.step("less", away, number(n, new.shape[axis])))
    at = n.step("expand_dims", n.step("maximum", away, number(n, 0)), axes=(2,))
    moved = n.step("gather_nd", rows, at, batch_dims=1)
    wide = n.step("reshape", inside, newshape=(t.shape[0], size, *(1 for _ in order[2:])))
    mixed = n.step("where", wide, moved, cache)
    return n.call("transpose", mixed, axes=tuple(order.index(k) for k in range(t.rank)))
