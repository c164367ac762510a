"""Converters of operators whose results are as long as the data says: NonZero, Compress,
NonMaxSuppression. What is found is counted, and a loop stacks that many rows."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from compiler.dtypes import FLOAT32, INT64
from compiler.frontend.branches import counted, repeated
from compiler.frontend.node import Node, converts
from compiler.frontend.values import Imported, constant_of, scalar
from compiler.ir.expr import Atom, Constant, TupleGetItem, tensor_type
from compiler.ir.types import TensorType

_FLOAT = TensorType((), FLOAT32)
_INT = TensorType((), INT64)


def found_positions(n: Node, mask: Atom) -> Atom:
    """Positions of what holds in a bool vector of known length, ascending: int64 [count]."""
    (size,) = tensor_type(mask).static_shape
    ones = n.step("cast", mask, dtype="int64")
    order = field(n, n.step("topk", ones, k=size, axis=0, largest=True), 1)
    count = n.step("sum", ones, axis=(0,), keepdims=False)
    return counted(n, count, lambda k: n.step("take", order, k, axis=0))


def field(n: Node, value: Atom, k: int) -> Atom:
    """Field `k` of a tuple."""
    return n.graph.bind(TupleGetItem(value, k), n.graph.intermediate("field"), n.origin)


@converts("NonZero")
def non_zero(n: Node) -> Imported:
    """Coordinates of the elements that are not zero, one column for each."""
    t = n.type(0)
    shape = t.static_shape
    if t.rank == 0 or 0 in shape:
        raise n.unsupported(f"data {t}")
    flat = n.step("reshape", n.atom(0), newshape=(-1,))
    found = found_positions(n, n.step("cast", flat, dtype="bool"))
    rows = []
    for k, size in enumerate(shape):
        inner = math.prod(shape[k + 1 :])
        row = n.step("mod", n.step("divide", found, scalar(inner, _INT)), scalar(size, _INT))
        rows.append(n.step("expand_dims", row, axes=(0,)))
    return n.call("concatenate", *rows, axis=0) if len(rows) > 1 else rows[0]


@converts("Compress")
def compress(n: Node) -> Imported:
    """The parts along an axis (or of all elements in a row) for which a condition holds."""
    x, axis = n.atom(0), n.attr("axis")
    if axis is None:
        x, axis = n.step("reshape", x, newshape=(-1,)), 0
    axis = n.front(axis, tensor_type(x).rank)
    condition = n.type(1).static_shape
    size = tensor_type(x).shape[axis]
    if len(condition) != 1 or not isinstance(size, int) or condition[0] > size:
        raise n.unsupported(f"a condition {n.type(1)} on axis {axis} of {n.type(0)}")
    return n.call("take", x, found_positions(n, n.atom(1)), axis=axis)


# ---- non-maximum suppression ---------------------------------------------------------------------
@converts("NonMaxSuppression")
def non_max_suppression(n: Node) -> Imported:
    """Boxes by descending score, without those that overlap one that was chosen before.

    All classes of all images are done at once, one candidate of each at a time. The result has a
    row (image, class, box) for each that is chosen.
    """
    images, count, _ = n.type(0).static_shape
    classes = n.type(1).static_shape[1]
    most = int(n.known(2, "max_output_boxes_per_class").reshape(-1)[0]) if n.has(2) else 0
    most = min(most, count)
    if most < 1:
        return n.empty((0, 3), INT64)
    n.reserve(images, classes, most, 4)
    best = n.step("topk", n.atom(1), k=count, axis=2, largest=True)
    scores, order = (field(n, best, k) for k in (0, 1))
    flat = n.step("reshape", order, newshape=(images, classes * count, 1))
    boxes = n.step("gather_nd", _corners(n), flat, batch_dims=1)
    boxes = n.step("reshape", boxes, newshape=(images, classes, count, 4))
    limit = _one(n, 3) if n.has(3) else scalar(0, _FLOAT)
    least = _one(n, 4) if n.has(4) else None
    places = Constant.of(np.arange(most).reshape(1, 1, most), INT64)

    def choose(k: Atom, state: Sequence[Atom]) -> list[Imported]:
        chosen, held, counts = state
        box = n.step("expand_dims", n.step("take", boxes, k, axis=2), axes=(2,))
        at, score = (
            n.step("expand_dims", n.step("take", v, k, axis=2), axes=(2,)) for v in (order, scores)
        )
        taken = n.step("less", places, counts)
        hits = n.step("logical_and", taken, n.step("greater", _overlap(n, box, held), limit))
        hit = n.step("max", n.step("cast", hits, dtype="int64"), axis=(2,), keepdims=True)
        room = n.step("less", counts, scalar(most, _INT))
        good = n.step("logical_and", room, n.step("equal", hit, scalar(0, _INT)))
        if least is not None:
            good = n.step("logical_and", good, n.step("greater", score, least))
        write = n.step("logical_and", good, n.step("equal", places, counts))
        wide = n.step("expand_dims", write, axes=(3,))
        return [
            n.step("where", write, at, chosen),
            n.step("where", wide, box, held),
            n.step("add", counts, n.step("cast", good, dtype="int64")),
        ]

    start = [
        constant_of(np.zeros((images, classes, most)), INT64),
        constant_of(np.zeros((images, classes, most, 4)), FLOAT32),
        constant_of(np.zeros((images, classes, 1)), INT64),
    ]
    chosen, _, counts = repeated(n, count, start, choose)
    taken = n.step("reshape", n.step("less", places, counts), newshape=(-1,))
    found = found_positions(n, taken)
    image = n.step("divide", found, scalar(classes * most, _INT))
    kind = n.step("mod", n.step("divide", found, scalar(most, _INT)), scalar(classes, _INT))
    box = n.step("take", n.step("reshape", chosen, newshape=(-1,)), found, axis=0)
    columns = [n.step("expand_dims", c, axes=(1,)) for c in (image, kind, box)]
    return n.call("concatenate", *columns, axis=1)


def _one(n: Node, i: int) -> Atom:
    """Input `i`, a number, as a scalar."""
    return n.step("reshape", n.atom(i), newshape=()) if n.type(i).rank else n.atom(i)


def _column(n: Node, x: Atom, k: int) -> Atom:
    """[..., 1]: column `k` of the last axis."""
    axis = tensor_type(x).rank - 1
    return n.step("strided_slice", x, begin=(k,), end=(k + 1,), axes=(axis,))


def _corners(n: Node) -> Atom:
    """The boxes as [..., 4]: low and high end of one axis, then of the other."""
    a, b, c, d = (_column(n, n.atom(0), k) for k in range(4))
    if n.expect("center_point_box", 0, 0, 1):
        half = scalar(0.5, _FLOAT)
        c, d = (n.step("multiply", v, half) for v in (c, d))
        ends = [n.step(op, v, w) for v, w in ((a, c), (b, d)) for op in ("subtract", "add")]
    else:
        ends = [n.step(op, v, w) for v, w in ((a, c), (b, d)) for op in ("minimum", "maximum")]
    return n.step("concatenate", *ends, axis=2)


def _overlap(n: Node, a: Atom, b: Atom) -> Atom:
    """Intersection over union of boxes [..., 1, 4] and [..., m, 4]: [..., m]."""
    sides, shared = [], []
    for low in (0, 2):
        ends = [(_column(n, v, low), _column(n, v, low + 1)) for v in (a, b)]
        sides.append([n.step("subtract", high, start) for start, high in ends])
        inner = n.step(
            "subtract", n.step("minimum", ends[0][1], ends[1][1]),
            n.step("maximum", ends[0][0], ends[1][0]),
        )  # fmt: skip
        shared.append(n.step("maximum", inner, scalar(0, _FLOAT)))
    both = n.step("multiply", *shared)
    areas = [n.step("multiply", sides[0][k], sides[1][k]) for k in (0, 1)]
    union = n.step("subtract", n.step("add", *areas), both)
    return n.step("squeeze", n.step("divide", both, union), axis=(3,))
