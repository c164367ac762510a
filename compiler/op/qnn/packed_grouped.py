"""qnn.packed_grouped_dense: int8 data times weights of 2 or 4 bits, which stay packed in bytes and
become bytes in registers, as dot products of bytes take them. What it computes is qnn.grouped_dense
of the unpacked weights.

A code is the integer that it stands for plus half of the range, so that it is none below 0. Four
neighbouring bytes hold 4 * (8 / bits) neighbouring inputs: the lowest bits of them the first four,
the next bits the next four, and so on. One mask, and a shift before it, makes the weights of four
neighbouring inputs four neighbouring bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from compiler.arithmetic.arrays import Arithmetic
from compiler.op.common import need_constant, require, require_rank
from compiler.op.gradient import INTEGERS
from compiler.op.opdef import Fusion, OpDef, register_op
from compiler.op.qnn.grouped import scaled_groups
from compiler.symbolic import Index, IntLike, product
from compiler.tensor.builder import PrimBuilder
from compiler.tensor.expr import Buffer, Expr, cast, const, index_value
from compiler.types.dtypes import FLOAT32, INT8, INT32, UINT8, Array
from compiler.types.tensor_types import TensorType, require_equal, shape_text

OP = "qnn.packed_grouped_dense"
WIDTHS = (2, 4)
STEPS = 4
"""Neighbouring bytes that a dot product adds up."""


@dataclass(frozen=True)
class PackedGroupedDenseAttrs:
    """Attributes of qnn.packed_grouped_dense.

    Attributes:
        bits: of a code, one of WIDTHS.
    """

    bits: int


def packed_bytes(integers: Array, bits: int) -> Array:
    """Integers [..., n] of -2**(bits-1) to 2**(bits-1)-1 as codes in uint8 [..., n * bits / 8]; n
    must be a multiple of 4 * 8 / bits."""
    each = 8 // bits
    codes = (integers.astype(np.int16) + (1 << (bits - 1))).astype(np.uint8)
    parts = codes.reshape(*codes.shape[:-1], -1, each, STEPS)
    places = (bits * np.arange(each, dtype=np.uint8))[:, None]
    held = np.bitwise_or.reduce(parts << places, axis=-2)
    return np.asarray(held.reshape(*codes.shape[:-1], -1), np.uint8)


def unpacked_bytes(held: Array, bits: int) -> Array:
    """The integers [..., n], int8, that codes in uint8 [..., n * bits / 8] stand for."""
    each, half = 8 // bits, 1 << (bits - 1)
    places = (bits * np.arange(each, dtype=np.uint8))[:, None]
    parts = held.reshape(*held.shape[:-1], -1, 1, STEPS) >> places & (2 * half - 1)
    return np.asarray(parts.reshape(*held.shape[:-1], -1).astype(np.int8) - np.int8(half))


def _infer(a: PackedGroupedDenseAttrs, types: Sequence[TensorType]) -> TensorType:
    x, held, scales = types
    require(x.dtype == INT8, f"{OP}: data must be int8, not {x.dtype}")
    require(held.dtype == UINT8, f"{OP}: packed weights must be uint8, not {held.dtype}")
    require(scales.dtype == FLOAT32, f"{OP}: scales must be float32, not {scales.dtype}")
    require(a.bits in WIDTHS, f"{OP}: codes have 2 or 4 bits, not {a.bits}")
    require_rank(OP, "packed weights", held, 3)
    units, groups, length = (
        need_constant(OP, what, n)
        for what, n in zip(("units", "groups", "bytes of a group"), held.shape, strict=True)
    )
    require(length % STEPS == 0, f"{OP}: a group has {length} bytes, no multiple of {STEPS}")
    text = f"{OP}: data {shape_text(x.shape)} does not fit weights {shape_text(held.shape)}"
    require(x.rank >= 1, text)
    group = length * (8 // a.bits)
    require_equal([(x.shape[-1], groups * group)], text)
    require(
        scales.shape == (units, groups),
        f"{OP}: scales must be {(units, groups)}, not {shape_text(scales.shape)}",
    )
    most = 128 * ((1 << a.bits) - 1)
    require(
        group * most < 2**31,
        f"{OP}: sums of {group} products could overflow an int32 accumulator",
    )
    return TensorType((*x.shape[:-1], units), FLOAT32)


def _reference(
    ar: Arithmetic, a: PackedGroupedDenseAttrs, x: Array, held: Array, scales: Array
) -> Array:
    weights = unpacked_bytes(held, a.bits).astype(np.int32)
    units, groups, group = weights.shape
    data = x.astype(np.int32)
    acc = np.zeros((*x.shape[:-1], units), np.float32)
    for g in range(groups):
        sums = data[..., g * group : (g + 1) * group] @ weights[:, g].T
        acc = acc + sums.astype(np.float32) * scales[:, g]
    return np.asarray(acc, np.float32)


def _lower(
    b: PrimBuilder, a: PackedGroupedDenseAttrs, x: Buffer, held: Buffer, scales: Buffer
) -> Buffer:
    lead, (units, groups, length) = x.shape[:-1], held.shape
    each, half = 8 // a.bits, 1 << (a.bits - 1)
    group = length * each

    def number(*v: IntLike) -> Expr:
        *i, g, k = v
        return cast(x[(*i, Index.of(g) * group + k)], INT32)

    totals = b.reduce("totals", (*lead, groups), INT32, {"k": group}, number, const(0, INT32))

    def term(*v: IntLike) -> Expr:
        *i, n, g, w, part, k = v
        at = ((Index.of(g) * length + Index.of(w) * STEPS) * each) + Index.of(part) * STEPS + k
        byte = held[n, g, Index.of(w) * STEPS + k]
        code = (byte >> cast(index_value(Index.of(part) * a.bits), UINT8)) & (2 * half - 1)
        return cast(code, INT32) * cast(x[(*i, at)], INT32)

    def start(*v: IntLike) -> Expr:
        return totals[(*v[:-2], v[-1])] * const(-half, INT32)

    axes: Mapping[str, IntLike] = {"w": length // STEPS, "part": each, "k": STEPS}
    sums = b.reduce("sums", (*lead, units, groups), INT32, axes, term, start)
    return scaled_groups(b, sums, scales)


def _macs(_: Any, types: Sequence[TensorType], result: TensorType) -> Any:
    return product([*result.shape, types[0].shape[-1]])


PACKED_GROUPED_DENSE = register_op(
    OpDef(
        OP, _infer, _reference, _lower, PackedGroupedDenseAttrs, (3, 3), Fusion.ANCHOR, macs=_macs,
        in_float32=True,
        gradient=INTEGERS,
        doc="int8 data [..., K], packed weights uint8 [N, groups, bytes], scales [N, groups] -> "
        "float32 [..., N]",
    )
)  # fmt: skip


__all__ = ["PACKED_GROUPED_DENSE", "PackedGroupedDenseAttrs", "packed_bytes", "unpacked_bytes"]
