"""qnn.grouped_dense: integers times integer weights that have a scale for every few inputs.

Sums of integers are formed for each group, in int32, and added up in float32:

    acc = +0; for groups g ascending: acc = acc + float32(sum over k in g of (x_k - z) * w_k) * s_g

where the product with a scale is rounded, and then the sum (two roundings, no fused multiply-add).
The scale of the data is a factor of all of it, and is left to the caller, as a bias is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from compiler.arithmetic.arrays import Arithmetic
from compiler.op.common import need_constant, read, require, require_rank, type_of
from compiler.op.gradient import INTEGERS
from compiler.op.opdef import Fusion, OpDef, register_op
from compiler.op.stored import Stored, zero_points
from compiler.op.sum_bounds import Known, SumBounds, constant, of_weights
from compiler.symbolic import Index, IntLike, ceil_div, imin, product
from compiler.tensor.builder import PrimBuilder
from compiler.tensor.expr import Expr, cast, const, index_value, select
from compiler.tensor.stmt import Buffer
from compiler.types.dtypes import FLOAT32, INT8, INT32, UINT8, Array
from compiler.types.tensor_types import TensorType, require_equal, shape_text


@dataclass(frozen=True)
class GroupedDenseAttrs:
    """Attributes of qnn.grouped_dense.

    Attributes:
        group: inputs that share a scale; the last group of a row may have fewer.
        input_zero_point: the integer that stands for 0 in the data, where no operand gives one for
            each row.
        weight_zero_point: the integer that stands for 0 in the weights; uint8 weights are in order
            for dot products of bytes.
    """

    group: int
    input_zero_point: int = 0
    weight_zero_point: int = 0


OP = "qnn.grouped_dense"


def _infer(a: GroupedDenseAttrs, types: Sequence[TensorType]) -> TensorType:
    x, w, scales, *zero = types
    require(x.dtype in (INT8, UINT8), f"{OP}: data must be int8 or uint8, not {x.dtype}")
    require(w.dtype in (INT8, UINT8), f"{OP}: weights must be int8 or uint8, not {w.dtype}")
    require(scales.dtype == FLOAT32, f"{OP}: scales must be float32, not {scales.dtype}")
    require_rank(OP, "weight", w, 2)
    text = f"{OP}: data {shape_text(x.shape)} does not fit weight {shape_text(w.shape)}"
    require(x.rank >= 1, text)
    require_equal([(x.shape[-1], w.shape[1])], text)
    units = need_constant(OP, "the number of units", w.shape[0])
    inputs = need_constant(OP, "the number of inputs", w.shape[1])
    require(a.group >= 1, f"{OP}: a group of {a.group} inputs is none")
    require(
        scales.shape == (units, -(-inputs // a.group)),
        f"{OP}: scales must be {(units, -(-inputs // a.group))}, not {shape_text(scales.shape)}",
    )
    low, high = (-128, 127) if w.dtype == INT8 else (0, 255)
    largest = max(abs(low - a.weight_zero_point), abs(high - a.weight_zero_point))
    require(
        min(a.group, inputs) * 255 * largest < 2**31,
        f"{OP}: sums of {min(a.group, inputs)} products could overflow an int32 accumulator",
    )
    for z in zero:
        require(
            z.dtype == INT32 and z.shape == (*x.shape[:-1], 1),
            f"{OP}: zero points must be int32, one for each row, not {z}",
        )
    return TensorType((*x.shape[:-1], units), FLOAT32)


def _reference(
    ar: Arithmetic, a: GroupedDenseAttrs, x: Array, w: Array, scales: Array, *zero: Array
) -> Array:
    data = x.astype(np.int32) - (zero[0] if zero else np.int32(a.input_zero_point))
    acc = np.zeros((*x.shape[:-1], len(w)), np.float32)
    for g in range(scales.shape[1]):
        part = slice(g * a.group, (g + 1) * a.group)
        sums = data[..., part] @ (w[:, part].astype(np.int32) - a.weight_zero_point).T
        acc = acc + sums.astype(np.float32) * scales[:, g]
    return np.asarray(acc, np.float32)


def _lower(
    b: PrimBuilder, a: GroupedDenseAttrs, x: Buffer, w: Buffer, scales: Buffer, *zero: Buffer
) -> Buffer:
    lead, inputs, units = x.shape[:-1], w.shape[1], w.shape[0]
    groups = ceil_div(inputs, a.group)
    whole = (type_of(w).static_shape[1] % a.group) == 0

    # Bytes as they are, and the zero point taken off the start: what dot products take.
    of_bytes = bool(a.weight_zero_point) and whole and not zero and not a.input_zero_point
    if of_bytes:

        def number(*v: IntLike) -> Expr:
            *i, g, k = v
            return cast(x[(*i, Index.of(g) * a.group + k)], INT32)

        totals = b.reduce("totals", (*lead, groups), INT32, {"k": a.group}, number, const(0, INT32))

    def product_at(*v: IntLike) -> Expr:
        *i, n, g, k = v
        at = Index.of(g) * a.group + k
        kept = at if whole else imin(at, inputs - 1)
        if of_bytes:
            return cast(w[n, at], INT32) * cast(x[(*i, at)], INT32)
        shift = read(zero[0], (*i, 0)) if zero else const(a.input_zero_point, INT32)
        weight = cast(w[n, kept], INT32) - const(a.weight_zero_point, INT32)
        value = (cast(x[(*i, kept)], INT32) - shift) * weight
        if whole:
            return value
        return select(index_value(at) < index_value(inputs), value, const(0, INT32))

    size = imin(Index.of(a.group), inputs)

    def start(*v: IntLike) -> Expr:
        if not of_bytes:
            return const(0, INT32)
        return totals[(*v[:-2], v[-1])] * const(-a.weight_zero_point, INT32)

    shape = (*lead, units, groups)
    sums = b.reduce("sums", shape, INT32, {"k": size}, product_at, start)
    return scaled_groups(b, sums, scales)


def scaled_groups(b: PrimBuilder, sums: Buffer, scales: Buffer) -> Buffer:
    """Stages that multiply the sums of groups [..., N, groups] by scales [N, groups], and add them
    up in float32: [..., N]."""
    parts = b.compute(
        "parts", sums.shape, FLOAT32, lambda *i: cast(sums[i], FLOAT32) * scales[i[-2], i[-1]]
    )
    axes = {"g": sums.shape[-1]}
    return b.reduce("grouped", sums.shape[:-1], FLOAT32, axes, lambda *v: parts[v], const(0.0))


def _macs(_: Any, types: Sequence[TensorType], result: TensorType) -> Any:
    return product([*result.shape, types[1].shape[1]])


def _integer_sums(a: GroupedDenseAttrs, known: Sequence[Known]) -> SumBounds:
    """Of each unit and group: what is added up behind these is float32."""
    data, weights, _, *zero = known
    w = constant("weights", weights).astype(np.int64) - a.weight_zero_point
    units, inputs = w.shape
    groups = -(-inputs // a.group)
    w = np.pad(w, ((0, 0), (0, groups * a.group - inputs)))
    z = a.input_zero_point
    if zero:  # of each row: any of the data's integers
        data, z = replace(data, low=data.low - data.high, high=data.high - data.low), 0
    return of_weights(data, z, w.reshape(units * groups, a.group, 1), None)


def _stored(a: GroupedDenseAttrs, types: Sequence[TensorType]) -> Stored:
    zeros = a.input_zero_point, a.weight_zero_point
    return Stored(zero_points(*((z, t.dtype) for z, t in zip(zeros, types, strict=False))))


GROUPED_DENSE = register_op(
    OpDef(
        OP, _infer, _reference, _lower, GroupedDenseAttrs, (3, 4), Fusion.ANCHOR, macs=_macs,
        in_float32=True, stored=_stored, integer_sums=_integer_sums,
        gradient=INTEGERS,
        doc="integer data [..., K], weight int8 [N, K], scales [N, groups], perhaps int32 zero "
        "points [..., 1] -> float32 [..., N]",
    )
)  # fmt: skip
