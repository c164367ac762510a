"""Logical instructions, shifts, fields and bytes of words."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from compiler.runtime.machines.ptx.decode import Decoder, Handler, dtype_of, opcode
from compiler.runtime.machines.ptx.integers import binary, ternary, unary
from compiler.runtime.machines.ptx.program import SIZES, Immediate, Instruction
from compiler.runtime.machines.ptx.wave import Wave

Array = npt.NDArray[Any]


@opcode("and", "or", "xor")
def _logical(d: Decoder, ins: Instruction) -> Handler:
    f = {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}[ins.parts[0]]
    _, kind = ins.parts
    return binary(d, ins, d.kind(kind), f)


@opcode("not", "cnot")
def _not(d: Decoder, ins: Instruction) -> Handler:
    name, kind = ins.parts
    if name == "not":
        return unary(d, ins, d.kind(kind), np.invert)
    return unary(d, ins, d.kind(kind), lambda a: (a == 0).astype(a.dtype))


@opcode("lop3")
def _lop3(d: Decoder, ins: Instruction) -> Handler:
    if ins.parts[1:] != ("b32",) or not isinstance(ins.operands[4], Immediate):
        d.unknown()
    table = int(ins.operands[4].value)
    to, a, b, c, _ = ins.operands
    write, ra, rb, rc = d.write(to, "b32"), *(d.read(x, "b32") for x in (a, b, c))

    def run(st: Wave) -> None:
        x, y, z = ra(st), rb(st), rc(st)
        out = np.zeros(1, np.uint32)
        for k in range(8):
            if table >> k & 1:
                out = out | (x if k & 4 else ~x) & (y if k & 2 else ~y) & (z if k & 1 else ~z)
        write(st, out)

    return run


@opcode("shl", "shr")
def _shift(d: Decoder, ins: Instruction) -> Handler:
    name, kind = ins.parts
    bits = 8 * SIZES[d.kind(kind)]
    to, a, b = ins.operands
    write, ra, rb = d.write(to, kind), d.read(a, kind), d.read(b, "u32")
    dtype = dtype_of(kind)

    def run(st: Wave) -> None:
        x, n = ra(st), rb(st)
        if name == "shr" and kind[0] == "s":
            out = x >> np.minimum(n, bits - 1).astype(dtype)
        else:
            m = np.minimum(n, bits - 1).astype(dtype)
            out = np.where(n < bits, x << m if name == "shl" else x >> m, dtype(0))
        write(st, out)

    return run


@opcode("shf")
def _funnel(d: Decoder, ins: Instruction) -> Handler:
    """Shifts of two words side by side: `a` is the low one."""
    _, way, mode, kind = ins.parts
    if kind != "b32" or way not in "lr" or mode not in ("wrap", "clamp"):
        d.unknown()

    def shifted(a: Array, b: Array, c: Array) -> Array:
        n = (c & 31 if mode == "wrap" else np.minimum(c, 32)).astype(np.uint64)
        pair = b.astype(np.uint64) << np.uint64(32) | a
        if way == "l":
            return ((pair << n) >> np.uint64(32)).astype(np.uint32)
        return (pair >> n).astype(np.uint32)

    return ternary(d, ins, "b32 b32 b32 u32", shifted)


@opcode("bfe")
def _extract(d: Decoder, ins: Instruction) -> Handler:
    _, kind = ins.parts
    bits, signed = 8 * SIZES[d.kind(kind)], kind[0] == "s"

    def field(a: Array, b: Array, c: Array) -> Array:
        """Shifted up until the field's upper end is the word's, then down."""
        start, length = (b & 255).astype(np.int64), (c & 255).astype(np.int64)
        wide = a.astype(np.int64).view(np.uint64) if signed else a.astype(np.uint64)
        if signed:  # what is above the word is its sign
            word = wide.view(np.int64)
            low = np.where(start < 63, word >> np.minimum(start, 63), word >> 63)
            room = np.clip(64 - length, 0, 63)
            out = (low << room) >> room
        else:
            low = np.where(start < bits, wide >> np.minimum(start, 63).astype(np.uint64), 0)
            mask = np.where(
                length < 64, (np.uint64(1) << np.minimum(length, 63).astype(np.uint64)) - 1,
                np.uint64(2**64 - 1),
            )  # fmt: skip
            out = (low & mask).view(np.int64)
        return np.where(length == 0, 0, out).astype(a.dtype)

    return ternary(d, ins, f"{kind} {kind} u32 u32", field)


@opcode("bfi")
def _insert(d: Decoder, ins: Instruction) -> Handler:
    _, kind = ins.parts
    bits = 8 * SIZES[d.kind(kind)]
    to, a, b, c, n = ins.operands
    write, ra, rb = d.write(to, kind), d.read(a, kind), d.read(b, kind)
    rc, rn, dtype = d.read(c, "u32"), d.read(n, "u32"), dtype_of(kind)

    def run(st: Wave) -> None:
        start, length = rc(st) & 255, rn(st) & 255
        ones = np.where(
            length < bits,
            (dtype(1) << np.minimum(length, bits - 1).astype(dtype)) - dtype(1), ~dtype(0),
        )  # fmt: skip
        by = np.minimum(start, bits - 1).astype(dtype)
        mask = np.where(start < bits, ones << by, dtype(0)).astype(dtype)
        write(st, (rb(st) & ~mask) | ((ra(st) << by) & mask))

    return run


def _bit_length(a: Array) -> Array:
    """Position of the highest one bit plus 1, of unsigned integers."""
    out: Array = np.zeros(a.shape, np.uint32)
    left = a.astype(np.uint64)
    for n in (32, 16, 8, 4, 2, 1):
        big = left >> np.uint64(n) != 0
        out += (big * n).astype(np.uint32)
        left = np.where(big, left >> np.uint64(n), left)
    out += (left != 0).astype(np.uint32)
    return out


@opcode("clz", "popc", "bfind")
def _count(d: Decoder, ins: Instruction) -> Handler:
    name, *mods, kind = ins.parts
    d.only(mods, ("shiftamt",) if name == "bfind" else ())
    bits = 8 * SIZES[d.kind(kind)]
    to, a = ins.operands
    write, ra = d.write(to, "u32"), d.read(a, kind)

    def run(st: Wave) -> None:
        x = ra(st)
        if name == "popc":
            each = np.ascontiguousarray(x).view(np.uint8).reshape(-1, bits // 8)
            out = np.unpackbits(each, axis=1).sum(1, dtype=np.uint32)
        elif name == "clz":
            out = np.uint32(bits) - _bit_length(x)
        else:
            if x.dtype.kind == "i":
                x = np.where(x < 0, ~x, x).view(f"u{bits // 8}")
            out = _bit_length(x) - np.uint32(1)
            if mods:
                out = np.where(out == 2**32 - 1, out, np.uint32(bits - 1) - out)
        write(st, out)

    return run


@opcode("brev")
def _reverse(d: Decoder, ins: Instruction) -> Handler:
    _, kind = ins.parts
    size = SIZES[d.kind(kind)]

    def turned(a: Array) -> Array:
        a = np.ascontiguousarray(a)
        bits = np.unpackbits(a.view(np.uint8).reshape(-1, size), axis=1, bitorder="little")
        out = np.packbits(bits[:, ::-1], axis=1, bitorder="little")
        return np.ascontiguousarray(out).view(a.dtype).reshape(-1)

    return unary(d, ins, kind, turned)


@opcode("prmt")
def _permute(d: Decoder, ins: Instruction) -> Handler:
    _, kind, *mode = ins.parts
    if kind != "b32" or len(mode) > 1:
        d.unknown()
    how = mode[0] if mode else ""
    modes = {
        "f4e": [[0, 1, 2, 3], [1, 2, 3, 4], [2, 3, 4, 5], [3, 4, 5, 6]],
        "b4e": [[0, 7, 6, 5], [1, 0, 7, 6], [2, 1, 0, 7], [3, 2, 1, 0]],
        "rc8": [[0] * 4, [1] * 4, [2] * 4, [3] * 4],
        "ecl": [[0, 1, 2, 3], [1, 1, 2, 3], [2, 2, 2, 3], [3, 3, 3, 3]],
        "ecr": [[0, 0, 0, 0], [0, 1, 1, 1], [0, 1, 2, 2], [0, 1, 2, 3]],
        "rc16": [[0, 1, 0, 1], [2, 3, 2, 3], [0, 1, 0, 1], [2, 3, 2, 3]],
    }
    if how and how not in modes:
        d.unknown(f"modifier .{how}")

    def permuted(a: Array, b: Array, c: Array) -> Array:
        a, b, c = np.broadcast_arrays(a, b, c)
        pool = np.stack([a, b], 1).astype(np.uint32).view(np.uint8).reshape(-1, 8)
        if how:
            pick = np.array(modes[how])[(c & 3).astype(np.int64)]
            sign = np.zeros(pick.shape, np.bool_)
        else:
            fields = (c[:, None] >> np.array([0, 4, 8, 12], np.uint32)).astype(np.int64)
            pick, sign = fields & 7, (fields & 8) != 0
        found = np.take_along_axis(pool, pick, 1)
        found = np.where(sign, np.where(found & 128, 255, 0), found).astype(np.uint8)
        return np.ascontiguousarray(found).view(np.uint32).reshape(-1)

    return ternary(d, ins, "b32 b32 b32 b32", permuted)


@opcode("bmsk")
def _mask(d: Decoder, ins: Instruction) -> Handler:
    _, mode, kind = ins.parts
    if kind != "b32" or mode not in ("clamp", "wrap"):
        d.unknown()

    def mask(a: Array, b: Array) -> Array:
        start, n = a.astype(np.uint64), b.astype(np.uint64)
        if mode == "wrap":
            start, n = start & np.uint64(31), n & np.uint64(31)
        start, n = np.minimum(start, 32), np.minimum(n, 32)
        ones = (np.uint64(1) << n) - np.uint64(1)
        return (ones << start).astype(np.uint32)

    return binary(d, ins, "b32", mask)
