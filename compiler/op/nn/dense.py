"""nn.dense (weights with units first) and nn.matmul (numpy's batched matrix product)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from compiler.arithmetic.arrays import Arithmetic
from compiler.op.accumulate import Sums, accumulation, check_mode, finished, staged, sums
from compiler.op.common import known_shape, need_constant, read, require, require_rank, type_of
from compiler.op.contraction import check_bias, check_bits, low_bits, result_dtype
from compiler.op.facts import Contraction, Summation, Zeros, onnx_node
from compiler.op.gradients import contractions as rules
from compiler.op.opdef import Fusion, OpDef, Quantized, register_ops
from compiler.op.staged_sums import staged_sum
from compiler.op.stored import Stored, zero_points
from compiler.op.sum_bounds import Known, SumBounds, constant, counted, of_products, of_weights
from compiler.symbolic import Dim, IntLike, product
from compiler.tensor.builder import PrimBuilder
from compiler.tensor.expr import Buffer, Expr, const
from compiler.types.dtypes import Array, DType
from compiler.types.tensor_types import TensorType, broadcast, require_equal, shape_text


@dataclass(frozen=True)
class DenseAttrs:
    """Attributes of nn.dense.

    Attributes:
        out_dtype: dtype of products, accumulator and result; empty: that of the operands.
        input_zero_point: integer that stands for zero in integer data.
        accumulate: how sums are formed (see `compiler.op.accumulate`).
        input_bits: low bits of uint8 data that are multiplied; 0: all.
    """

    out_dtype: str = ""
    input_zero_point: int = 0
    accumulate: str = "sequential"
    input_bits: int = 0


@dataclass(frozen=True)
class MatmulAttrs:
    """Attributes of nn.matmul: `out_dtype` and `accumulate` as in nn.dense.

    Attributes:
        input_zero_point, weight_zero_point: integers that stand for zero in the first and the
            second operand.
    """

    out_dtype: str = ""
    input_zero_point: int = 0
    weight_zero_point: int = 0
    accumulate: str = "sequential"


def _sum_of_products(
    b: PrimBuilder, name: str, t: TensorType, held: Sums, inner: IntLike, factors: Any
) -> Buffer:
    """The stage "mac": loops over t's shape (the last is called oc), reduction k."""
    out = b.buffer(name, t.shape, held.held)
    loops: dict[str, Any] = {f"i{k}": n for k, n in enumerate(out.shape[:-1])}
    if out.shape:
        loops["oc"] = out.shape[-1]

    def body(*v: Any) -> tuple[tuple[Any, ...], Expr]:
        x, w = factors(v[:-1], v[-1])
        return v[:-1], held.factor(x) * held.factor(w)

    b.stage(
        out,
        loops,
        body,
        reduce={"k": inner},
        update=held.update,
        init=lambda *_: const(0, held.held),
        name="mac",
    )
    return out


def _above(x: Expr, zero_point: int) -> Expr:
    return x - zero_point if zero_point else x


# ---- dense ---------------------------------------------------------------------------------------
def _infer_dense(a: DenseAttrs, types: Sequence[TensorType]) -> TensorType:
    x, w = types[:2]
    require_rank("nn.dense", "weight", w, 2)
    text = (
        f"nn.dense: data {shape_text(x.shape)} does not fit weight {shape_text(w.shape)} "
        "(units, inputs)"
    )
    require(x.rank >= 1, text)
    require_equal([(x.shape[-1], w.shape[1])], text)
    units = need_constant("nn.dense", "the number of units", w.shape[0])
    dtype = result_dtype("nn.dense", x.dtype, w.dtype, a.out_dtype, a.input_zero_point)
    check_bias("nn.dense", types, units, dtype)
    check_bits("nn.dense", x.dtype, a.input_bits, a.input_zero_point)
    check_mode("nn.dense", a.accumulate, dtype, x.dtype)
    return TensorType((*x.shape[:-1], units), dtype)


def _dense(ar: Arithmetic, a: DenseAttrs, x: Array, w: Array, *bias: Array) -> Array:
    """acc = +0; for k ascending: acc = acc + x[..., k] * w[:, k]; then the bias."""
    s = accumulation(a.accumulate, ar.of(DType.parse(a.out_dtype)) if a.out_dtype else ar)
    x = low_bits(x, a.input_bits)
    xs, ws = s.operand(x, ar.dtype, a.input_zero_point), s.operand(w, ar.dtype)
    acc = np.broadcast_to(s.start(), (*x.shape[:-1], w.shape[0]))
    for k in range(w.shape[1]):
        acc = s.step(acc, xs[..., k, None], ws[:, k])
    return s.result(acc, *bias)


def _lower_dense(b: PrimBuilder, a: DenseAttrs, x: Buffer, w: Buffer, *bias: Buffer) -> Buffer:
    t = _infer_dense(a, [type_of(v) for v in (x, w, *bias)])

    def factors(i: Any, k: Any) -> tuple[Expr, Expr]:
        given = low_bits(x[(*i[:-1], k)], a.input_bits)
        data = _above(given.astype(t.dtype), a.input_zero_point)
        return data, w[i[-1], k].astype(t.dtype)

    last = (lambda *i: bias[0][i[-1]]) if bias else None
    if (how := staged(a.accumulate)) is not None:
        turned = b.compute("dense_weight", w.shape[::-1], w.dtype, lambda k, n: w[n, k])

        def value(*i: Any) -> Expr:
            given = low_bits(x[(*i[:-2], i[-1])], a.input_bits)
            return given.astype(t.dtype) * turned[i[-1], i[-2]].astype(t.dtype)

        return staged_sum(b, "dense", t.shape, w.shape[1:], value, how, t.dtype, last)
    held = sums(a.accumulate, t.dtype, w.shape[1] + 1)
    out = _sum_of_products(b, "dense", t, held, w.shape[1], factors)
    return finished(b, held, "dense_bias", out, last)


# ---- matmul --------------------------------------------------------------------------------------
def _matmul_parts(
    x: Sequence[Dim], w: Sequence[Dim]
) -> tuple[tuple[Dim, ...], tuple[Dim, ...], tuple[Dim, ...]]:
    """(batch, rows, columns) dimensions of the product; rows or columns are () for vectors."""
    text = f"nn.matmul: shapes {shape_text(x)} and {shape_text(w)} do not fit"
    require(len(x) > 0 and len(w) > 0, text)
    require_equal([(x[-1], w[-2 if len(w) > 1 else 0])], text)
    return broadcast(x[:-2], w[:-2]), tuple(x[-2:-1]), tuple(w[-1:] if len(w) > 1 else ())


def _infer_matmul(a: MatmulAttrs, types: Sequence[TensorType]) -> TensorType:
    x, w = types
    batch, rows, columns = _matmul_parts(x.shape, w.shape)
    zeros = a.input_zero_point or a.weight_zero_point
    dtype = result_dtype("nn.matmul", x.dtype, w.dtype, a.out_dtype, zeros)
    check_mode("nn.matmul", a.accumulate, dtype, x.dtype)
    return TensorType((*batch, *rows, *columns), dtype)


def _matmul(ar: Arithmetic, a: MatmulAttrs, x: Array, w: Array) -> Array:
    """acc = +0; for k ascending: acc = acc + x[..., :, k] * w[..., k, :]."""
    s = accumulation(a.accumulate, ar.of(DType.parse(a.out_dtype)) if a.out_dtype else ar)
    batch, rows, columns = _matmul_parts(x.shape, w.shape)
    xs = s.operand(x, ar.dtype, a.input_zero_point)
    ws = s.operand(w, ar.dtype, a.weight_zero_point)
    xs = xs if rows else xs[None]
    ws = ws if columns else ws[:, None]
    acc = np.broadcast_to(s.start(), known_shape((*batch, xs.shape[-2], ws.shape[-1])))
    for k in range(x.shape[-1]):
        acc = s.step(acc, xs[..., k, None], ws[..., k, None, :])
    return s.result(acc).reshape(known_shape((*batch, *rows, *columns)))


def _lower_matmul(b: PrimBuilder, a: MatmulAttrs, x: Buffer, w: Buffer) -> Buffer:
    t = _infer_matmul(a, [type_of(x), type_of(w)])
    batch, rows, columns = _matmul_parts(type_of(x).shape, type_of(w).shape)

    def factors(i: Any, k: Any) -> tuple[Expr, Expr]:
        lead, row, column = (
            i[: len(batch)],
            i[len(batch) :][: len(rows)],
            i[len(i) - len(columns) :],
        )
        left = [*lead, *row, k] if len(x.shape) > 1 else [k]
        right = [*lead, k, *column] if len(w.shape) > 1 else [k]
        data, weight = read(x, left).astype(t.dtype), read(w, right).astype(t.dtype)
        return _above(data, a.input_zero_point), _above(weight, a.weight_zero_point)

    if (how := staged(a.accumulate)) is not None:

        def value(*i: Any) -> Expr:
            left, right = factors(i[:-1], i[-1])
            return left * right

        return staged_sum(b, "matmul", t.shape, x.shape[-1:], value, how, t.dtype)
    held = sums(a.accumulate, t.dtype, x.shape[-1])
    out = _sum_of_products(b, "matmul", t, held, x.shape[-1], factors)
    return finished(b, held, "matmul_round", out, None)


def _dense_macs(_: DenseAttrs, types: Sequence[TensorType], result: TensorType) -> Any:
    return product([*result.shape, types[1].shape[1]])


def _matmul_macs(_: MatmulAttrs, types: Sequence[TensorType], result: TensorType) -> Any:
    return product([*result.shape, types[0].shape[-1]])


def _dense_sums(a: DenseAttrs, known: Sequence[Known]) -> SumBounds:
    data, weights, *bias = known
    last = constant("bias", bias[0]) if bias else None
    data = data.low_bits(a.input_bits)
    return of_weights(data, a.input_zero_point, constant("weights", weights)[..., None], last)


def _matmul_sums(a: MatmulAttrs, known: Sequence[Known]) -> SumBounds:
    x, w = known
    zeros = a.input_zero_point, a.weight_zero_point
    for data, weights, z, above in ((x, w, *zeros), (w, x, *zeros[::-1])):
        if weights.data is not None and weights.data.ndim > 1:
            q = weights.data.astype(np.int64) - above
            rows = np.moveaxis(q, -2, -1) if weights is w else q
            return of_weights(data, z, rows.reshape(-1, rows.shape[-1], 1), None)
    terms = counted("a row has elements", x.type.shape[-1])
    return of_products(x.above(zeros[0]), w.above(zeros[1]), terms)


def _stored(a: DenseAttrs | MatmulAttrs, types: Sequence[TensorType]) -> Stored:
    zeros = a.input_zero_point, getattr(a, "weight_zero_point", 0)
    return Stored(zero_points(*((z, t.dtype) for z, t in zip(zeros, types, strict=False))))


DENSE, MATMUL = register_ops(
    OpDef(
        "nn.dense",
        _infer_dense,
        _dense,
        _lower_dense,
        DenseAttrs,
        (2, 3),
        Fusion.ANCHOR,
        Quantized.WEIGHTED,
        _dense_macs,
        lambda a, types: types[1].shape[1] + 1,
        numbered=True,
        stored=_stored,
        contraction=Contraction(data=-1, weights=-1, units=0, channels=-1),
        zeros=Zeros(("input_zero_point",), holds=lambda a: not a.input_bits),
        integer_sums=_dense_sums,
        summation=Summation((0, 1), products=True, itself=False),
        gradient=rules.dense,
        doc="data [..., K], weight [N, K], optional bias [N] -> [..., N]",
    ),
    OpDef(
        "nn.matmul",
        _infer_matmul,
        _matmul,
        _lower_matmul,
        MatmulAttrs,
        (2, 2),
        Fusion.ANCHOR,
        Quantized.INTEGER,
        _matmul_macs,
        lambda a, types: types[0].shape[-1],
        numbered=True,
        stored=_stored,
        contraction=Contraction(data=-1, weights=-2, units=-1, channels=-1),
        zeros=Zeros(("input_zero_point", "weight_zero_point")),
        integer_sums=_matmul_sums,
        summation=Summation((0, 1), products=True, itself=False),
        onnx=onnx_node("MatMul"),
        gradient=rules.matmul,
        doc="numpy's matmul: [..., M, K] times [..., K, N], batch dimensions broadcast",
    ),
)
