"""nn.max_pool2d_backward: what flows back through nn.max_pool2d, to the first of the largest
elements under each window."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from compiler.arithmetic.arrays import Arithmetic
from compiler.op.accumulate import accumulation, check_mode, finished, staged, sums
from compiler.op.common import require
from compiler.op.facts import Summation
from compiler.op.nn.pool import MAX_POOL2D, MaxPool2dAttrs, pool_windows
from compiler.op.opdef import Fusion, OpDef, register_op
from compiler.op.staged_sums import staged_sum
from compiler.op.window import Axis, Reading, Window
from compiler.symbolic import Index, IntLike, ceil_div, imax, imin, product
from compiler.tensor.builder import PrimBuilder
from compiler.tensor.expr import Buffer, Expr, binary, const, index_value, select
from compiler.types.dtypes import INT64, Array
from compiler.types.tensor_types import TensorType


@dataclass(frozen=True)
class MaxPool2dBackwardAttrs(MaxPool2dAttrs):
    """Attributes of nn.max_pool2d, whose backward it is; `accumulate`: how sums are formed
    (`compiler.op.accumulate`)."""

    accumulate: str = "sequential"


def _infer(a: MaxPool2dBackwardAttrs, types: Sequence[TensorType]) -> TensorType:
    x, dy = types
    require(x.rank == 4, f"nn.max_pool2d_backward: data must have rank 4, not {x}")
    want = MAX_POOL2D.infer(a, [x])
    require(dy == want, f"nn.max_pool2d_backward: what flows back must be {want}, not {dy}")
    check_mode("nn.max_pool2d_backward", a.accumulate, x.dtype)
    return x


def _reference(ar: Arithmetic, a: MaxPool2dBackwardAttrs, x: Array, dy: Array) -> Array:
    """acc = +0; for kh, kw ascending: acc = acc + what flows back into the window whose tap
    (kh, kw) an element is, if it is the first of the largest in that, else acc + 0. A NaN is the
    largest."""
    s = accumulation(a.accumulate, ar)
    wy, wx = pool_windows(a)
    height, width = dy.shape[2:]
    y = MAX_POOL2D.reference(ar, a, x)
    free = np.ones(dy.shape, bool)
    acc = np.broadcast_to(s.start(), x.shape)
    for kh, kw in np.ndindex(*a.pool_size):
        ys, rows = wy.valid(x.shape[2], height, kh)
        xs, columns = wx.valid(x.shape[3], width, kw)
        data = x[:, :, rows, columns]
        top = ar.compare("EQ", data, y[:, :, ys, xs]) | ar.compare("NE", data, data)
        terms = np.broadcast_to(ar.const(0), x.shape).astype(dy.dtype)
        taken = free[:, :, ys, xs] & top
        terms[:, :, rows, columns] = np.where(taken, dy[:, :, ys, xs], ar.const(0))
        free[:, :, ys, xs] &= ~top
        acc = s.add(acc, s.operand(terms, ar.dtype))
    return s.result(acc)


def _true(index: Index) -> Expr:
    """Whether an index, 0 or 1, is 1."""
    return binary("NE", index_value(index), 0)


def _within(i: Index, size: IntLike) -> Index:
    """1 if 0 <= i < size, else 0."""
    return imin(imax(i + 1, 0), 1) - imin(imax(i + 1 - size, 0), 1)


def _first(b: PrimBuilder, a: MaxPool2dBackwardAttrs, x: Buffer, dy: Buffer) -> Buffer:
    """int64: the number, row-major, of the tap under which the first of the largest lies."""
    top = MAX_POOL2D.lower(b, a, x)
    taps = product(a.pool_size)
    axes = [Axis(w, n, Reading.SELECTED) for w, n in zip(pool_windows(a), x.shape[2:], strict=True)]

    def number(n: Index, c: Index, y: Index, z: Index, kh: Index, kw: Index) -> Expr:
        at = [axis.at(*tap) for axis, tap in zip(axes, ((y, kh), (z, kw)), strict=True)]
        inside = [_true(_within(i, axis.size)) for i, axis in zip(at, axes, strict=True)]
        clamped = [imin(imax(i, 0), axis.size - 1) for i, axis in zip(at, axes, strict=True)]
        value = x[(n, c, *clamped)]
        largest = value.equal(top[n, c, y, z])
        if x.dtype.is_float or x.dtype.is_custom:
            largest = largest | binary("NE", value, value)
        here = inside[0] & inside[1] & largest
        return select(here, index_value(kh * a.pool_size[1] + kw), index_value(taps))

    over = dict(zip(("kh", "kw"), a.pool_size, strict=True))
    return b.reduce("max_tap", dy.shape, INT64, over, number, index_value(taps), "Min")


def _window_of(w: Window, i: IntLike, k: IntLike, count: IntLike) -> tuple[Index, Expr]:
    """The window of which element `i` is tap `k`, kept inside; and whether there is one."""
    # Moved by whole strides, so that what is divided is not negative.
    ahead = ceil_div(Index.of((w.kernel - 1) * w.dilation), w.stride)
    moved = Index.of(i) + w.before - Index.of(k) * w.dilation + ahead * w.stride
    y = moved // w.stride - ahead
    there = _true(_within(y, count)) & binary("EQ", index_value(moved % w.stride), 0)
    return imin(imax(y, 0), Index.of(count) - 1), there


def _lower(b: PrimBuilder, a: MaxPool2dBackwardAttrs, x: Buffer, dy: Buffer) -> Buffer:
    first = _first(b, a, x, dy)
    wy, wx = pool_windows(a)

    def term(*v: Any) -> Expr:
        n, c, i, j, kh, kw = v
        y, rows = _window_of(wy, i, kh, dy.shape[2])
        z, columns = _window_of(wx, j, kw, dy.shape[3])
        chosen = first[n, c, y, z].equal(index_value(kh * a.pool_size[1] + kw))
        return select(rows & columns & chosen, dy[n, c, y, z], const(0, dy.dtype))

    name = "max_pool_backward"
    if (how := staged(a.accumulate)) is not None:
        return staged_sum(b, name, x.shape, a.pool_size, term, how, x.dtype)
    held = sums(a.accumulate, x.dtype, product(a.pool_size), products=False)
    over = dict(zip(("kh", "kw"), a.pool_size, strict=True))
    start = const(0, held.held)
    out = b.reduce(
        name, x.shape, held.held, over, lambda *v: held.factor(term(*v)), start, held.update
    )
    return finished(b, held, f"{name}_round", out, None)


MAX_POOL2D_BACKWARD = register_op(
    OpDef(
        "nn.max_pool2d_backward",
        _infer,
        _reference,
        _lower,
        MaxPool2dBackwardAttrs,
        (2, 2),
        Fusion.ANCHOR,
        terms=lambda a, types: product(a.pool_size),
        numbered=True,
        summation=Summation((1,)),
        gradient="only the first derivatives of pooling have a rule",
        doc="data of nn.max_pool2d and what flows back into its result -> what flows back into the "
        "data: to the first of the largest elements under each window",
    )
)
