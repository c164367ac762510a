"""nn.max_pool2d_positions: where the largest elements lie that nn.max_pool2d gives."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from compiler.arithmetic.arrays import Arithmetic
from compiler.op.common import require
from compiler.op.gradient import flat
from compiler.op.nn.pool import MAX_POOL2D, MaxPool2dAttrs, pool_windows
from compiler.op.opdef import Fusion, OpDef, register_op
from compiler.op.window import Axis, Reading
from compiler.symbolic import Index, imax, imin
from compiler.tensor.builder import PrimBuilder
from compiler.tensor.expr import Buffer, Expr, binary, index_value, select
from compiler.types.dtypes import INT64, Array
from compiler.types.tensor_types import TensorType


def _infer(a: MaxPool2dAttrs, types: Sequence[TensorType]) -> TensorType:
    (x,) = types
    require(x.rank == 4, f"nn.max_pool2d_positions: data must have rank 4, not {x}")
    pooled = MAX_POOL2D.infer(a, types)
    assert isinstance(pooled, TensorType)
    return pooled.with_dtype(INT64)


def _reference(ar: Arithmetic, a: MaxPool2dAttrs, x: Array) -> Array:
    """row * width + column of the first element, row-major, that is the largest under a window. A
    NaN is the largest."""
    height, width = x.shape[2:]
    top = MAX_POOL2D.reference(ar, a, x)
    across = pool_windows(a)
    found = np.full(top.shape, height * width, np.int64)
    places = np.arange(height * width).reshape(height, width)
    for kh, kw in np.ndindex(*a.pool_size):
        ys, rows = across[0].valid(height, top.shape[2], kh)
        xs, columns = across[1].valid(width, top.shape[3], kw)
        data = x[:, :, rows, columns]
        largest = ar.compare("EQ", data, top[:, :, ys, xs]) | ar.compare("NE", data, data)
        here = np.where(largest, places[rows, columns], height * width)
        found[:, :, ys, xs] = np.minimum(found[:, :, ys, xs], here)
    return found


def _within(i: Index, size: Index) -> Expr:
    """Whether 0 <= i < size."""
    inside = imin(imax(i + 1, 0), 1) - imin(imax(i + 1 - size, 0), 1)
    return binary("NE", index_value(inside), 0)


def _lower(b: PrimBuilder, a: MaxPool2dAttrs, x: Buffer) -> Buffer:
    top = MAX_POOL2D.lower(b, a, x)
    height, width = x.shape[2:]
    rows, columns = (
        Axis(w, n, Reading.SELECTED) for w, n in zip(pool_windows(a), x.shape[2:], strict=True)
    )

    def place(n: Index, c: Index, y: Index, z: Index, kh: Index, kw: Index) -> Expr:
        row, column = rows.at(y, kh), columns.at(z, kw)
        value = x[n, c, imin(imax(row, 0), height - 1), imin(imax(column, 0), width - 1)]
        largest = value.equal(top[n, c, y, z])
        if x.dtype.is_float or x.dtype.is_custom:
            largest = largest | binary("NE", value, value)
        here = _within(row, height) & _within(column, width) & largest
        return select(here, index_value(row * width + column), index_value(height * width))

    over = dict(zip(("kh", "kw"), a.pool_size, strict=True))
    start = index_value(height * width)
    return b.reduce("max_pool_positions", top.shape, INT64, over, place, start, "Min")


MAX_POOL2D_POSITIONS = register_op(
    OpDef(
        "nn.max_pool2d_positions",
        _infer,
        _reference,
        _lower,
        MaxPool2dAttrs,
        fusion=Fusion.OPAQUE,
        gradient=flat,
        doc="position in its plane, row-major, of the largest element under a sliding window",
    )
)
