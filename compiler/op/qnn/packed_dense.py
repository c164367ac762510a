"""qnn.packed_dense: floats times weights of 2, 4 or 8 bits, which stay packed: those of 2 or 4 bits
in words of 32 bits, those of 8 as bytes.

A code stands for the integer that it is in two's complement, or for an entry of a table (a
codebook, such as NF4). Every group of consecutive inputs of a unit has a scale:

    acc = +0; for groups g ascending: part = +0; for k in g ascending: part = fma(x_k, w_k, part);
              acc = acc + part * s_g

where the product with a scale is rounded, and then the sum, as in qnn.grouped_dense.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from compiler.arithmetic.arrays import Arithmetic
from compiler.arithmetic.fused_multiply_add import multiply_add32
from compiler.op.common import need_constant, require, require_rank
from compiler.op.gradient import INTEGERS
from compiler.op.opdef import Fusion, OpDef, register_op
from compiler.op.qnn.grouped import scaled_groups
from compiler.op.stored import Stored
from compiler.symbolic import Index, IntLike
from compiler.tensor.builder import PrimBuilder
from compiler.tensor.expr import Buffer, Expr, Gather, call, cast, const, index_value
from compiler.types.dtypes import FLOAT32, INT8, INT32, INT64, UINT8, Array, DType
from compiler.types.tensor_types import TensorType, require_equal, shape_text

OP = "qnn.packed_dense"
WORD = 32
"""Bits of a word, the lowest of which are its first code."""
MANTISSA = 23
"""Bits behind the point of a float32 number."""
WIDTHS = (2, 4, 8)


@dataclass(frozen=True)
class PackedDenseAttrs:
    """Attributes of qnn.packed_dense.

    Attributes:
        bits: of a code, one of WIDTHS.
        table: what codes stand for, 2**bits float32 numbers; empty: integers in two's complement.
    """

    bits: int
    table: tuple[float, ...] = ()


def word_type(bits: int) -> DType:
    """What holds codes of so many bits."""
    return INT8 if bits == INT8.bits else INT32


def packed_words(codes: Array, bits: int) -> Array:
    """Codes [..., n] of `bits` bits each, as integers of any dtype, in int32 words [..., n * bits /
    32], n * bits a multiple of 32; of 8 bits, in int8 [..., n]."""
    if bits == INT8.bits:
        return codes.astype(np.uint8).view(np.int8)
    each = WORD // bits
    parts = codes.astype(np.int64).reshape(*codes.shape[:-1], -1, each) & ((1 << bits) - 1)
    words = np.zeros(parts.shape[:-1], np.uint32)
    for k in range(each):
        words |= parts[..., k].astype(np.uint32) << np.uint32(bits * k)
    return words.view(np.int32)


def unpacked_values(a: PackedDenseAttrs, words: Array) -> Array:
    """The float32 numbers [..., n] that the codes in words, see `packed_words`, stand for."""
    held = word_type(a.bits)
    at = np.arange(0, held.bits, a.bits, dtype=np.uint32)
    whole = words.view(f"uint{held.bits}").astype(np.uint32)
    codes = (whole[..., None] >> at) & np.uint32((1 << a.bits) - 1)
    codes = codes.reshape(*words.shape[:-1], -1).astype(np.int64)
    if a.table:
        return np.asarray(np.asarray(a.table, np.float32)[codes])
    half = 1 << (a.bits - 1)
    return np.asarray((codes ^ half) - half, np.float32)


def _infer(a: PackedDenseAttrs, types: Sequence[TensorType]) -> TensorType:
    x, words, scales = types
    require(x.dtype == FLOAT32, f"{OP}: data must be float32, not {x.dtype}")
    require(scales.dtype == FLOAT32, f"{OP}: scales must be float32, not {scales.dtype}")
    require(a.bits in WIDTHS, f"{OP}: codes have 2, 4 or 8 bits, not {a.bits}")
    held = word_type(a.bits)
    require(words.dtype == held, f"{OP}: words must be {held}, not {words.dtype}")
    entries = len(a.table)
    require(entries in (0, 1 << a.bits), f"{OP}: {entries} entries do not fit {a.bits} bits")
    require_rank(OP, "words", words, 3)
    units, groups, length = (
        need_constant(OP, what, n)
        for what, n in zip(("units", "groups", "words of a group"), words.shape, strict=True)
    )
    text = f"{OP}: data {shape_text(x.shape)} does not fit words {shape_text(words.shape)}"
    require(x.rank >= 1, text)
    require_equal([(x.shape[-1], groups * length * (held.bits // a.bits))], text)
    require(
        scales.shape == (units, groups),
        f"{OP}: scales must be {(units, groups)}, not {shape_text(scales.shape)}",
    )
    return TensorType((*x.shape[:-1], units), FLOAT32)


def _reference(ar: Arithmetic, a: PackedDenseAttrs, x: Array, words: Array, scales: Array) -> Array:
    values = unpacked_values(a, words)
    units, groups, group = values.shape
    data = x.reshape(*x.shape[:-1], groups, group)
    acc = np.zeros((*x.shape[:-1], units), np.float32)
    with np.errstate(all="ignore"):
        for g in range(groups):
            part = np.zeros_like(acc)
            for k in range(group):
                part = multiply_add32(data[..., g, k, None], values[:, g, k], part)
            acc = acc + part * scales[:, g]
    return np.asarray(acc, np.float32)


def _lower(b: PrimBuilder, a: PackedDenseAttrs, x: Buffer, words: Buffer, scales: Buffer) -> Buffer:
    lead, (units, groups, length) = x.shape[:-1], words.shape
    each = words.dtype.bits // a.bits
    entries = np.asarray(a.table, np.float32)
    shape = (Index.of(entries.size),)
    table = Buffer("codebook", shape, FLOAT32, "constant", data=entries)

    def value(word: Expr, j: IntLike) -> Expr:
        if words.dtype == INT8:
            byte = cast(cast(word, UINT8), INT64)
            return Gather(table, byte) if a.table else cast(word, FLOAT32)
        if a.table:
            place = cast(index_value(Index.of(j) * a.bits), INT32)
            return Gather(table, cast((word >> place) & ((1 << a.bits) - 1), INT64))
        # The code becomes the lowest bits of 2**e + half + code, which is exact: a mask and one
        # subtraction, and one shift for several codes.
        inside = MANTISSA // a.bits
        place = cast(index_value((Index.of(j) % inside) * a.bits), INT32)
        word >>= cast(index_value((Index.of(j) // inside) * (inside * a.bits)), INT32)
        mask, half = (const(n, INT32) << place for n in ((1 << a.bits) - 1, 1 << (a.bits - 1)))
        zero = (const(127 + MANTISSA, INT32) - place << MANTISSA) | half
        return call("bits", (word & mask) ^ zero, dtype=FLOAT32) - call("bits", zero, dtype=FLOAT32)

    def term(*v: IntLike) -> Expr:
        *i, n, g, w, j = v
        at = (Index.of(g) * length + w) * each + j
        return x[(*i, at)] * value(words[n, g, w], j)

    zero = const(0.0)
    sizes = (*lead, units, groups)
    sums = b.reduce("sums", sizes, FLOAT32, {"w": length, "j": each}, term, zero, "Fma")
    return scaled_groups(b, sums, scales)


def _stored(a: PackedDenseAttrs, types: Sequence[TensorType]) -> Stored:
    return Stored(len(a.table) * FLOAT32.bits)


PACKED_DENSE = register_op(
    OpDef(
        OP, _infer, _reference, _lower, PackedDenseAttrs, (3, 3), Fusion.ANCHOR, in_float32=True,
        stored=_stored,
        gradient=INTEGERS,
        doc="float32 data [..., K], packed weights int32 (of 8 bits int8) [N, groups, words], "
        "scales [N, groups] -> float32 [..., N]",
    )
)  # fmt: skip


__all__ = ["PACKED_DENSE", "PackedDenseAttrs", "packed_words", "unpacked_values", "word_type"]
