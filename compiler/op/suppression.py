"""Non-maximum suppression: of boxes that overlap, the best."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from compiler.arithmetic.arrays import Arithmetic
from compiler.op.common import one_dtype, require
from compiler.op.gradient import flat
from compiler.op.opdef import NoAttrs, OpDef, register_op
from compiler.op.sorting import order_of, sorted_positions
from compiler.symbolic import IntLike, Var, ceil_div
from compiler.tensor.builder import PrimBuilder
from compiler.tensor.expr import Buffer, Expr, Gather, Load, const, index_value, maximum, minimum
from compiler.tensor.stmt import For, Stmt, Store, When
from compiler.types.dtypes import BOOL, INT64, Array
from compiler.types.tensor_types import TensorType, require_equal

_LANES = 8
"""Boxes that are compared at once, where the dtype is a machine's own."""


def _infer(_: NoAttrs, types: Sequence[TensorType]) -> TensorType:
    corners, scores, most, limit, least = types
    one_dtype("non_max_suppression", [corners, scores, limit, least])
    text = f"non_max_suppression: corners {corners} and scores {scores} do not fit"
    require(corners.dtype.is_float or corners.dtype.is_custom, f"{text}: they must be floats")
    require(corners.rank == scores.rank == 3 and corners.shape[1] == 4, text)
    pairs = [(corners.shape[k], scores.shape[k]) for k in (0, 2)]
    require_equal(pairs, text)
    require(most == TensorType((), INT64), f"non_max_suppression: the most are {most}, not int64[]")
    require(limit.rank == least.rank == 0, f"non_max_suppression: {limit}, {least} are no scalars")
    return TensorType(scores.shape, INT64)


# ---- meaning -------------------------------------------------------------------------------------
def _reference(
    ar: Arithmetic, _: NoAttrs, corners: Array, scores: Array, most: Array, limit: Array,
    least: Array,
) -> Array:  # fmt: skip
    chosen = np.full(scores.shape, -1, np.int64)
    order = order_of(ar, scores, 2, True)
    for image, kind in np.ndindex(*scores.shape[:2]):
        sides, left = corners[image], ar.compare("GT", scores[image, kind], least)
        count, area = 0, _area(ar, sides)
        for t, at in enumerate(order[image, kind]):
            if not left[at] or count >= most:
                continue
            chosen[image, kind, t] = at
            count += 1
            overlap = _overlap(ar, sides[:, at : at + 1], area[at : at + 1], sides, area)
            left = left & ~ar.compare("GT", overlap, limit)
    return chosen


def _area(ar: Arithmetic, box: Array) -> Array:
    return ar.mul(ar.sub(box[1], box[0]), ar.sub(box[3], box[2]))


def _overlap(ar: Arithmetic, a: Array, a_area: Array, b: Array, b_area: Array) -> Array:
    """Intersection over union."""
    shared = []
    for k in (0, 2):
        inner = ar.sub(ar.minimum(a[k + 1], b[k + 1]), ar.maximum(a[k], b[k]))
        shared.append(ar.maximum(inner, ar.const(0)))
    both = ar.mul(*shared)
    return ar.div(both, ar.sub(ar.add(a_area, b_area), both))


# ---- loops ---------------------------------------------------------------------------------------
def _lower(
    b: PrimBuilder, _: NoAttrs, corners: Buffer, scores: Buffer, most: Buffer, limit: Buffer,
    least: Buffer,
) -> Buffer:  # fmt: skip
    """As the reference: a pass over the boxes in order of score, in which each that is still left
    takes away what overlaps it."""
    dtype, (images, classes, n) = corners.dtype, scores.shape
    order = sorted_positions(b, scores, 2, True)
    lanes = _LANES if dtype.is_float else 1
    blocks = ceil_div(n, lanes)
    chosen = b.buffer("chosen", scores.shape, INT64)
    # The corners and the area of every box, and of the one that was chosen; boxes that are left.
    boxes = b.buffer("boxes", (5, blocks * lanes), dtype)
    box = b.buffer("box", (5,), dtype)
    left = b.buffer("left", (blocks * lanes,), BOOL)
    count = b.buffer("count", (1,), INT64)[0]
    stage = b.fresh("suppress")

    def loop(v: Var, *body: Stmt, kind: str = "serial") -> Stmt:
        return For(v, list(body), kind)

    def var(name: str, extent: IntLike) -> Var:
        return Var(f"{stage}.{name}", extent)

    image, kind, j, k, t = (
        var(*x) for x in (("image", images), ("class", classes), ("j", n), ("k", n), ("t", n))
    )
    block, lane = var("block", blocks), var("lane", lanes)
    at = order[image, kind, t]
    here = block * lanes + lane
    mine = [box[c] for c in range(5)]
    every = [boxes[c, here] for c in range(5)]
    sides = [corners[image, c, j] for c in range(4)]

    def put(to: Load, value: Expr) -> Stmt:
        return Store(stage, to.buffer, to.idx, value)

    near = _overlap_of(mine, every) > limit[()]
    take = [
        put(chosen[image, kind, t], at),
        put(count, count + 1),
        *(put(box[c], Gather(boxes, index_value(boxes.shape[1] * c) + at)) for c in range(5)),
        loop(
            block,
            loop(
                lane,
                put(left[here], left[here] & near.equal(const(0, BOOL))),
                kind="vector" if lanes > 1 else "serial",
            ),
        ),
    ]
    b.body.append(
        loop(
            image,
            loop(
                j,
                *(put(boxes[c, j], sides[c]) for c in range(4)),
                put(boxes[4, j], (sides[1] - sides[0]) * (sides[3] - sides[2])),
            ),
            loop(
                kind,
                put(count, const(0, INT64)),
                loop(k, put(left[k], scores[image, kind, k] > least[()])),
                loop(
                    t,
                    put(chosen[image, kind, t], const(-1, INT64)),
                    When(Gather(left, at) & (count < most[()]), take),
                ),
            ),
        )
    )
    return chosen


def _overlap_of(a: Sequence[Expr], b: Sequence[Expr]) -> Expr:
    """Intersection over union of boxes with their areas."""
    shared = []
    for k in (0, 2):
        inner = minimum(a[k + 1], b[k + 1]) - maximum(a[k], b[k])
        shared.append(maximum(inner, 0))
    both = shared[0] * shared[1]
    return both / (a[4] + b[4] - both)


register_op(
    OpDef("non_max_suppression", _infer, _reference, _lower, arity=(5, 5),
          gradient=flat,
          doc="by descending score, each box of [images, 4, boxes] (low and high end of one axis, "
          "then of the other) that overlaps none before it by more than a limit; -1 for others")
)  # fmt: skip
