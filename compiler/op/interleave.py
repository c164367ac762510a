"""interleave: images put between each other, row by row and column by column."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from compiler.arithmetic.arrays import Arithmetic
from compiler.op.common import one_dtype, require, type_of
from compiler.op.gradient import LOWERED
from compiler.op.opdef import Fusion, OpDef, Quantized, register_op
from compiler.symbolic import Dim, Index, IntLike, dim
from compiler.tensor.builder import PrimBuilder
from compiler.tensor.expr import Buffer, Expr
from compiler.types.dtypes import Array
from compiler.types.tensor_types import TensorType, require_equal, shape_text


@dataclass(frozen=True)
class InterleaveAttrs:
    """Attributes of interleave.

    Attributes:
        steps: (rows, columns): operand r * columns + c holds rows r, r + rows ... of the result,
            and of these columns c, c + columns ...
    """

    steps: tuple[int, int]


def _infer(a: InterleaveAttrs, types: Sequence[TensorType]) -> TensorType:
    dtype, first = one_dtype("interleave", types), types[0]
    down, across = a.steps
    fits = min(a.steps) >= 1 and len(types) == down * across
    require(fits, f"interleave: {len(types)} operands are not {down} by {across}")
    require(first.rank in (4, 5), f"interleave: {shape_text(first.shape)} is no NCHW or NCHW[x]c")
    for k, t in enumerate(types):
        text = f"interleave: shapes {shape_text(first.shape)} and {shape_text(t.shape)} do not fit"
        require(t.rank == first.rank, text)
        row, column = types[k // across * across].shape[2], types[k % across].shape[3]
        want = (*first.shape[:2], row, column, *first.shape[4:])
        require_equal(list(zip(t.shape, want, strict=True)), text)
    height = _together("rows", [types[r * across].shape[2] for r in range(down)])
    width = _together("columns", [t.shape[3] for t in types[:across]])
    return TensorType((*first.shape[:2], height, width, *first.shape[4:]), dtype)


def _together(what: str, sizes: Sequence[Dim]) -> Dim:
    """How many there are of all; of none is there more than one more than of a later one."""
    more = [dim(n - sizes[-1]) for n in sizes]
    fits = set(more) <= {0, 1} and more == sorted(more, key=str, reverse=True)
    require(fits, f"interleave: {what} {', '.join(map(str, sizes))} do not take turns")
    return dim(sum(sizes[1:], start=Index.of(sizes[0])))


def _reference(_: Arithmetic, a: InterleaveAttrs, *xs: Array) -> Array:
    down, across = a.steps
    height = sum(x.shape[2] for x in xs[::across])
    width = sum(x.shape[3] for x in xs[:across])
    out = np.empty((*xs[0].shape[:2], height, width, *xs[0].shape[4:]), xs[0].dtype)
    for k, x in enumerate(xs):
        out[:, :, k // across :: down, k % across :: across] = x
    return out


def _lower(b: PrimBuilder, a: InterleaveAttrs, *xs: Buffer) -> Buffer:
    t = _infer(a, [type_of(x) for x in xs])
    down, across = a.steps
    out = b.buffer("interleave", t.shape, t.dtype)
    for k, x in enumerate(xs):

        def body(
            n: Index, c: Index, y: Index, z: Index, *lane: Index, k: int = k, x: Buffer = x
        ) -> tuple[tuple[IntLike, ...], Expr]:
            to = (n, c, y * down + k // across, z * across + k % across, *lane)
            return to, x[(n, c, y, z, *lane)]

        names = ("n", "c", "y", "x", "b")[: t.rank]
        b.stage(out, dict(zip(names, x.shape, strict=True)), body, name="between")
    return out


INTERLEAVE = register_op(
    OpDef(
        "interleave",
        _infer,
        _reference,
        _lower,
        InterleaveAttrs,
        (1, None),
        Fusion.OPAQUE,
        Quantized.SAME,
        blocked=True,
        gradient=LOWERED,
        doc="images between each other: rows and columns of the result are of each in turn",
    )
)
