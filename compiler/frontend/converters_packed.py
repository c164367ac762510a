"""Converters of onnxruntime's operators on weights of packed integers, in blocks with scales."""

from __future__ import annotations

import numpy as np

from compiler.frontend.converters_microsoft import microsoft
from compiler.frontend.converters_quantized import cast_to
from compiler.frontend.element_types import NARROW
from compiler.frontend.indices import check_positions
from compiler.frontend.node import Node
from compiler.frontend.values import Imported, constant_of, scalar
from compiler.ir.expr import Atom, Constant, tensor_type
from compiler.types.dtypes import FLOAT32, INT16, UINT8, Array


@microsoft("MatMulNBits", 3, 6)
def matmul_nbits(n: Node) -> Imported:
    """A product with a matrix whose known weights are packed integers of 2, 4 or 8 bits in blocks.

    Block b of column k of the matrix has its own scale and zero point (half the range by default);
    with `g_idx`, row r of every column has those of block g_idx[r]. The weights are made floats
    during import, and products are of floats, as in onnxruntime unless `accuracy_level` asks for
    less.
    """
    width = n.expect("bits", 4, 2, 4, 8)
    rows, columns, block = (int(n.need(k)) for k in ("K", "N", "block_size"))
    count = -(-rows // block) if block > 0 else 0
    if min(rows, columns, count) < 1:
        raise n.unsupported(f"K={rows}, N={columns}, block_size={block}")
    n.reserve(columns, count * block)
    packed = n.known(1, "weights").reshape(columns, count, -1)
    q = _unpacked(packed, width)[..., :block].reshape(columns, count * block)[:, :rows]
    of = _blocks(n, rows, block, count)
    scale = n.known(2, "scales").reshape(columns, count).astype(np.float32)[:, of]
    zero: Array | float = float(1 << (width - 1))
    if n.has(3):
        zero = n.known(3, "zero points")
        if zero.dtype == np.uint8:
            zero = _unpacked(zero.reshape(columns, -1), width)[:, :count]
        zero = zero.reshape(columns, count).astype(np.float32)[:, of]
    weights = (q.astype(np.float32) - zero) * scale
    t = n.type(0)
    if t.shape[-1] != rows:
        raise n.unsupported(f"data {t} and K={rows}")
    bias = [n.atom(5)] if n.has(5) else []
    y = n.step("nn.dense", n.atom(0), constant_of(np.ascontiguousarray(weights), t.dtype), *bias)
    return n.call("reshape", y, newshape=(*t.shape[:-1], columns))


def _blocks(n: Node, rows: int, block: int, count: int) -> Array:
    """The block of each row."""
    if not n.has(4):
        return np.arange(rows) // block
    given = n.known(4, "g_idx").reshape(-1)[:rows].astype(np.int64)
    if len(given) < rows or given.min() < 0 or given.max() >= count:
        raise n.unsupported(f"g_idx of {len(given)} numbers up to {given.max(initial=0)}; {rows} "
                            f"numbers below {count} are needed")  # fmt: skip
    return given


def _unpacked(packed: Array, width: int) -> Array:
    """Integers of `width` bits, the lowest bits of each byte first, along the last axis."""
    shifts = np.arange(0, 8, width, dtype=np.uint8)
    apart = (packed.astype(np.uint8)[..., None] >> shifts) & ((1 << width) - 1)
    return np.asarray(apart.reshape(*packed.shape[:-1], -1))


@microsoft("GatherBlockQuantized", 3, 4)
def gather_block_quantized(n: Node) -> Imported:
    """Rows of a known table of integers, which become floats when they are looked up: the table
    stays bytes. Blocks are along the last axis."""
    t = n.type(0)
    block, axis = int(n.attr("block_size", 128)), n.axis(1, t.rank, "quantize_axis")
    if n.axis(0, t.rank, "gather_axis") or axis != t.rank - 1 or t.rank < 2:
        given = ", ".join(f"{k}={n.attrs[k]}" for k in _AXES if k in n.attrs)
        raise n.unsupported(f"{given} of {t}; supported: the first and the last axis")
    table, zero = _codes(n, 0), 0.0
    if n.element(0) not in NARROW and t.dtype == UINT8:
        zero = float(1 << (int(n.attr("bits", 4)) - 1))
    size, scales = table.shape[-1], n.known(2, "scales")
    count = -(-size // block) if block > 0 else 0
    if not count or scales.shape != (*table.shape[:-1], count) or size % block:
        raise n.unsupported(f"block_size={block} and scales {n.type(2)} for rows of {size}")
    check_positions(n, 1, [table.shape[0]])
    q = _blocked(n, n.step("take", Constant.of(table), n.atom(1), axis=0), count, block)
    s = n.step("take", n.atom(2), n.atom(1), axis=0)
    s = n.step("expand_dims", cast_to(n, s, FLOAT32), axes=(tensor_type(s).rank,))
    if n.has(3):
        z = n.step("take", Constant.of(_codes(n, 3)[..., :count]), n.atom(1), axis=0)
        z = n.step("expand_dims", z, axes=(tensor_type(z).rank,))
        q = n.step("subtract", *(n.step("cast", v, dtype=str(INT16)) for v in (q, z)))
        real = cast_to(n, q, FLOAT32)
    else:
        real = cast_to(n, q, FLOAT32)
        real = n.step("subtract", real, scalar(zero, tensor_type(real))) if zero else real
    real = cast_to(n, n.step("multiply", real, s), n.type(2).dtype)
    shape = tensor_type(real).shape
    return n.call("reshape", real, newshape=(*shape[:-2], size))


_AXES = ("gather_axis", "quantize_axis")


def _codes(n: Node, i: int) -> Array:
    """A known table of integers, a byte each."""
    data, bits = n.known(i, "a table"), n.expect("bits", 4, 2, 4, 8)
    packed = n.element(i) not in NARROW and data.dtype == np.uint8 and bits < 8
    return _unpacked(data, bits) if packed else data


def _blocked(n: Node, x: Atom, count: int, block: int) -> Atom:
    return n.step("reshape", x, newshape=(*tensor_type(x).shape[:-1], count, block))
