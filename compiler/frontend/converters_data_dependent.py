"""Converters of operators whose results are as long as the data says: NonZero, Compress,
NonMaxSuppression. What is found is counted, and its number is a dimension that is found."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from compiler.frontend.node import Node, converts
from compiler.frontend.run_time import found, number, one_integer
from compiler.frontend.values import Imported, scalar
from compiler.ir.expr import Atom, TupleGetItem, tensor_type
from compiler.symbolic import Dim, Index, dim, product
from compiler.types.dtypes import FLOAT32, INT64
from compiler.types.tensor_types import TensorType

_FLOAT = TensorType((), FLOAT32)


def found_positions(n: Node, mask: Atom) -> Atom:
    """Positions of what holds in a bool vector, ascending: int64 [count]."""
    ones = n.step("cast", mask, dtype="int64")
    count = found(n, n.step("sum", ones, axis=(0,), keepdims=False))
    if count == 0:
        return n.empty((0,), INT64)
    return field(n, n.step("topk", ones, k=count, axis=0, largest=True), 1)


def field(n: Node, value: Atom, k: int) -> Atom:
    """Field `k` of a tuple."""
    return n.graph.bind(TupleGetItem(value, k), n.graph.intermediate("field"), n.origin)


@converts("NonZero")
def non_zero(n: Node) -> Imported:
    """Coordinates of the elements that are not zero, one column for each."""
    t = n.type(0)
    if t.rank == 0:
        raise n.unsupported(f"data {t}")
    if 0 in t.shape:
        return n.empty((t.rank, 0), INT64)
    flat = n.step("reshape", n.atom(0), newshape=(-1,))
    at = found_positions(n, n.step("cast", flat, dtype="bool"))
    if t.rank == 1:
        return n.call("expand_dims", at, axes=(0,))
    rows = [n.step("expand_dims", row, axes=(0,)) for row in _coordinates(n, at, t.shape)]
    return n.call("concatenate", *rows, axis=0)


def _coordinates(n: Node, at: Atom, shape: Sequence[Dim]) -> list[Atom]:
    """The coordinates of row-major positions."""
    out = []
    for k, size in enumerate(shape):
        inner = number(n, dim(product(shape[k + 1 :])))
        out.append(n.step("mod", n.step("divide", at, inner), number(n, size)))
    return out


@converts("Compress")
def compress(n: Node) -> Imported:
    """The parts along an axis (or of all elements in a row) for which a condition holds."""
    x, axis = n.atom(0), n.attr("axis")
    if axis is None:
        x, axis = n.step("reshape", x, newshape=(-1,)), 0
    axis = n.front(axis, tensor_type(x).rank)
    condition, size = n.type(1).shape, tensor_type(x).shape[axis]
    room = Index.of(size) - condition[0] if len(condition) == 1 else Index.of(-1)
    if (room.range()[0] or 0) < 0 or room.range()[0] is None:
        raise n.unsupported(f"a condition {n.type(1)} on axis {axis} of {n.type(0)}")
    return n.call("take", x, found_positions(n, n.atom(1)), axis=axis)


# ---- non-maximum suppression ---------------------------------------------------------------------
@converts("NonMaxSuppression")
def non_max_suppression(n: Node) -> Imported:
    """Boxes by descending score, without those that overlap one that was chosen before: a row
    (image, class, box) for each."""
    images, count, _ = n.type(0).shape
    classes = n.type(1).shape[1]
    known = n.constant(2) if n.has(2) else np.zeros(1)
    if known is not None and known.reshape(-1)[0] < 1:
        return n.empty((0, 3), INT64)
    most, limit = one_integer(n, 2), _one(n, 3) if n.has(3) else scalar(0, _FLOAT)
    least = _one(n, 4) if n.has(4) else scalar(-np.inf, _FLOAT)
    scores = n.step("maximum", n.atom(1), scalar(float(np.finfo(np.float32).min), _FLOAT))
    corners = n.step(
        "concatenate", *(n.step("expand_dims", c, axes=(1,)) for c in _corners(n)), axis=1
    )
    best = n.step("non_max_suppression", corners, scores, number(n, most), limit, least)
    chosen = n.step("reshape", best, newshape=(-1,))
    at = found_positions(n, n.step("greater_equal", chosen, number(n, 0)))
    image, kind, _ = _coordinates(n, at, (images, classes, count))
    parts = [image, kind, n.step("take", chosen, at, axis=0)]
    return n.call("concatenate", *(n.step("expand_dims", c, axes=(1,)) for c in parts), axis=1)


def _one(n: Node, i: int) -> Atom:
    """Input `i`, a number, as a scalar."""
    return n.step("reshape", n.atom(i), newshape=()) if n.type(i).rank else n.atom(i)


def _corners(n: Node) -> list[Atom]:
    """The boxes as four columns [images, boxes]: low and high end of one axis, then of the
    other."""
    a, b, c, d = (n.step("take", n.atom(0), number(n, k), axis=2) for k in range(4))
    if n.expect("center_point_box", 0, 0, 1):
        half = scalar(0.5, _FLOAT)
        c, d = (n.step("multiply", v, half) for v in (c, d))
        return [n.step(op, v, w) for v, w in ((a, c), (b, d)) for op in ("subtract", "add")]
    return [n.step(op, v, w) for v, w in ((a, c), (b, d)) for op in ("minimum", "maximum")]
