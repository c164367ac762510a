"""Converters of Unique and Det, written out in ordinary operators."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from compiler.frontend.converters_data_dependent import field, found_positions
from compiler.frontend.node import Node, converts
from compiler.frontend.values import Imported, scalar
from compiler.ir.expr import Atom, Constant, tensor_type
from compiler.types.dtypes import BOOL, INT64
from compiler.types.tensor_types import TensorType

MOST_COLUMNS = 64
"""Wider rows are refused: every column is sorted by once."""
MOST_ROWS = 32
"""Larger matrices are refused: every step of their elimination is written out."""
_INT = TensorType((), INT64)


def _integers(values: Any) -> Constant:
    return Constant.of(np.asarray(values), INT64)


@converts("Unique")
def unique(n: Node) -> Sequence[Imported]:
    """What differs along an axis (or of all elements in a row), sorted or in the order of first
    occurrence; where it first occurs, which of it every element is, and how often it occurs.
    """
    x, t, axis = n.atom(0), n.type(0), n.attr("axis")
    if not all(isinstance(d, int) for d in t.shape) or t.size == 0:
        raise n.unsupported(f"data {t}; use shapes=...")
    if axis is None:
        x, axis = n.step("reshape", x, newshape=(-1,)), 0
    axis = n.front(axis, tensor_type(x).rank)
    rest = [k for k in range(tensor_type(x).rank) if k != axis]
    shape = tensor_type(x).static_shape
    size, columns = shape[axis], math.prod(shape[k] for k in rest)
    if columns > MOST_COLUMNS:
        raise n.unsupported(f"rows of {columns} elements; at most {MOST_COLUMNS} are sorted")
    turned = n.step("transpose", x, axes=(axis, *rest)) if axis else x
    rows = n.step("reshape", turned, newshape=(size, columns))
    if tensor_type(rows).dtype == BOOL:
        rows = n.step("cast", rows, dtype="uint8")
    n.reserve(size, 8)
    order, begins = _sorted(n, rows, size, columns)
    group = _numbered(n, begins)  # of every row in sorted order
    place = n.step("scatter_elements", _integers([0] * size), order, group)  # of every row
    first = n.step(
        "scatter_elements", _integers([size] * size), group, order, reduction="min"
    )  # of every group
    if not n.attr("sorted", 1):
        leads = n.step("equal", n.step("take", first, place, axis=0), _integers(range(size)))
        at = found_positions(n, leads)
        kinds = n.step("take", place, at, axis=0)
        which = n.step("take", _numbered(n, leads), n.step("take", first, place, axis=0), axis=0)
    else:
        kinds = n.step("take", group, found_positions(n, begins), axis=0)
        at, which = n.step("take", first, kinds, axis=0), place
    results: list[Imported] = [n.result(0, "take", x, at, axis=axis)]
    results += [n.result(1, "reshape", at, newshape=(-1,)) if n.wants(1) else at]
    results += [n.result(2, "reshape", which, newshape=(-1,)) if n.wants(2) else which]
    if n.wants(3):
        ones = _integers([1] * size)
        counts = n.step("scatter_elements", _integers([0] * size), place, ones, reduction="add")
        results.append(n.result(3, "take", counts, kinds, axis=0))
    return results


def _sorted(n: Node, rows: Atom, size: int, columns: int) -> tuple[Atom, Atom]:
    """The order that sorts rows, equal ones by position; and whether a row differs from the one
    before it there."""
    order: Atom = _integers(range(size))
    for c in reversed(range(columns)):  # each sort keeps the order of those before it
        column = n.step("take", rows, _integers(c), axis=1)
        key = n.step("take", column, order, axis=0)
        by = field(n, n.step("topk", key, k=size, axis=0, largest=False), 1)
        order = n.step("take", order, by, axis=0)
    ranked = n.step("take", rows, order, axis=0)
    before = n.step("take", ranked, _integers([0, *range(size - 1)]), axis=0)
    differs = n.step("cast", n.step("not_equal", ranked, before), dtype="int64")
    any_differs = n.step("max", differs, axis=(1,))
    leads = Constant(np.arange(size) == 0, BOOL)
    return order, n.step("logical_or", n.step("cast", any_differs, dtype="bool"), leads)


def _numbered(n: Node, begins: Atom) -> Atom:
    """How many elements of a bool vector hold before each, and it, less one."""
    counts = n.step("cumsum", n.step("cast", begins, dtype="int64"), axis=0)
    return n.step("subtract", counts, scalar(1, _INT))


@converts("Det")
def determinant(n: Node) -> Imported:
    """Of square matrices: the product of the pivots of Gaussian elimination, of which each is the
    largest element of its column, with the sign of the exchanges of rows."""
    t = n.type(0)
    size = t.shape[-1] if t.rank >= 2 else None
    if not isinstance(size, int) or t.shape[-2] != size or not 1 <= size <= MOST_ROWS:
        raise n.unsupported(f"data {t}; square matrices of up to {MOST_ROWS} rows are supported")
    a = n.step("reshape", n.atom(0), newshape=(-1, size, size))
    zero, one, product = scalar(0, t), scalar(1, t), None
    for left in range(size, 0, -1):
        column = n.step("take", a, _integers(0), axis=2)
        best = n.step("argmax", n.step("abs", column), axis=1, keepdims=True)
        chosen = n.step("equal", best, _integers([list(range(left))]))
        chosen = n.step("expand_dims", chosen, axes=(2,))
        pivots = n.step("sum", n.step("where", chosen, a, zero), axis=(1,), keepdims=True)
        top = n.step("take", n.step("squeeze", pivots, axis=(1,)), _integers([0]), axis=1)
        sign = n.step("equal", best, scalar(0, _INT))
        signed = n.step("where", sign, top, n.step("negative", top))
        product = signed if product is None else n.step("multiply", product, signed)
        if left == 1:
            break
        head = n.step("strided_slice", a, begin=(0,), end=(1,), axes=(1,))
        rest = n.step("where", chosen, head, a)
        rest = n.step("strided_slice", rest, begin=(1,), end=(left,), axes=(1,))
        divisor = n.step("where", n.step("equal", top, zero), one, top)
        lead = n.step("strided_slice", rest, begin=(0,), end=(1,), axes=(2,))
        factor = n.step("divide", lead, n.step("expand_dims", divisor, axes=(2,)))
        below, right = (
            n.step("strided_slice", v, begin=(1,), end=(left,), axes=(2,)) for v in (rest, pivots)
        )
        a = n.step("subtract", below, n.step("multiply", factor, right))
    assert product is not None
    return n.call("reshape", product, newshape=t.shape[:-2])
