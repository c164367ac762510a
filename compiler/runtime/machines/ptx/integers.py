"""Integer instructions. Integers wrap, unless `.sat` says otherwise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from compiler.runtime.machines.ptx import floats
from compiler.runtime.machines.ptx.decode import Decoder, Handler, dtype_of, opcode
from compiler.runtime.machines.ptx.program import SIZES, Instruction
from compiler.runtime.machines.ptx.wave import Wave

Array = npt.NDArray[Any]


def unary(d: Decoder, ins: Instruction, kind: str, f: Callable[[Array], Array]) -> Handler:
    """d = f(a), all of one type."""
    to, a = ins.operands
    write, ra = d.write(to, kind), d.read(a, kind)
    return lambda st: write(st, f(ra(st)))


def binary(d: Decoder, ins: Instruction, kind: str, f: Callable[[Array, Array], Array]) -> Handler:
    """d = f(a, b), all of one type."""
    to, a, b = ins.operands
    write, ra, rb = d.write(to, kind), d.read(a, kind), d.read(b, kind)
    return lambda st: write(st, f(ra(st), rb(st)))


def ternary(
    d: Decoder, ins: Instruction, kinds: str, f: Callable[[Array, Array, Array], Array]
) -> Handler:
    """d = f(a, b, c); `kinds`: of d, a, b, c."""
    to, a, b, c = ins.operands
    k = kinds.split()
    write, ra, rb, rc = d.write(to, k[0]), d.read(a, k[1]), d.read(b, k[2]), d.read(c, k[3])
    return lambda st: write(st, f(ra(st), rb(st), rc(st)))


def is_integer(kind: str) -> bool:
    """Whether values of a type are integers or bits."""
    return kind[0] in "usb" and kind not in ("bf16", "bf16x2")


@opcode("add", "sub")
def _add(d: Decoder, ins: Instruction) -> Handler:
    name, *mods, kind = ins.parts
    if not is_integer(kind):
        return floats.arithmetic(d, ins)
    f = np.add if name == "add" else np.subtract
    if kind in ("u16x2", "s16x2"):
        return _lanes16(d, ins, f)
    if mods == ["sat"] and kind == "s32":

        def clipped(a: Array, b: Array) -> Array:
            wide = f(a.astype(np.int64), b.astype(np.int64))
            return np.clip(wide, -(2**31), 2**31 - 1).astype(np.int32)

        return binary(d, ins, kind, clipped)
    if mods == ["cc"]:
        return _carrying(d, ins, kind, carry_in=False, carry_out=True)
    d.only(mods, ())
    return binary(d, ins, d.kind(kind), f)


@opcode("addc", "subc")
def _addc(d: Decoder, ins: Instruction) -> Handler:
    _, *mods, kind = ins.parts
    d.only(mods, ("cc",))
    return _carrying(d, ins, kind, carry_in=True, carry_out=bool(mods))


def _carrying(d: Decoder, ins: Instruction, kind: str, carry_in: bool, carry_out: bool) -> Handler:
    """Additions of words of longer integers. Of differences, the carry is the borrow."""
    kind = f"u{8 * SIZES[d.kind(kind)]}"
    to, a, b = ins.operands
    write, ra, rb = d.write(to, kind), d.read(a, kind), d.read(b, kind)
    minus, dtype = ins.opcode.startswith("sub"), dtype_of(kind)

    def run(st: Wave) -> None:
        x, y = st.wide(ra(st)), st.wide(rb(st))
        c = st.carry[st.act].astype(dtype) if carry_in else np.zeros(st.count, dtype)
        if minus:
            out = x - y - c
            over = (x < y) | ((x == y) & (c != 0))
        else:
            first = x + y
            out = first + c
            over = (first < x) | (out < first)
        write(st, out)
        if carry_out:
            st.carry[st.act] = over

    return run


def _lanes16(d: Decoder, ins: Instruction, f: Any) -> Handler:
    """The same of two halves."""
    signed = ins.parts[-1][0] == "s"
    dtype = np.int16 if signed else np.uint16

    def run(*parts: Array) -> Array:
        out = f(*(p.view(dtype).reshape(-1, 2) for p in parts))
        return np.ascontiguousarray(out).view(np.uint32).reshape(-1)

    return (unary if len(ins.operands) == 2 else binary)(d, ins, "b32", run)


def _high(a: Array, b: Array) -> Array:
    """The upper half of products."""
    bits = 8 * a.dtype.itemsize
    if bits < 64:
        wide = a.astype(f"{a.dtype.kind}{bits // 4}") * b
        return (wide >> bits).astype(a.dtype)
    x, y, low = a.view(np.uint64), b.view(np.uint64), np.uint64(0xFFFFFFFF)
    half = np.uint64(32)
    xl, xh, yl, yh = x & low, x >> half, y & low, y >> half
    middle = xh * yl + ((xl * yl) >> half)
    other = (middle & low) + xl * yh
    high = xh * yh + (middle >> half) + (other >> half)
    if a.dtype.kind == "i":
        high = high - np.where(a < 0, y, 0) - np.where(b < 0, x, 0)
    out: Array = high.view(a.dtype)
    return out


def _product(mode: str) -> Callable[[Array, Array], Array]:
    def wide(a: Array, b: Array) -> Array:
        dtype = np.dtype(f"{a.dtype.kind}{2 * a.dtype.itemsize}")
        return np.asarray(a.astype(dtype) * b.astype(dtype))

    ways: dict[str, Any] = {"lo": np.multiply, "hi": _high, "wide": wide}
    way: Callable[[Array, Array], Array] = ways[mode]
    return way


@opcode("mul")
def _mul(d: Decoder, ins: Instruction) -> Handler:
    _, *mods, kind = ins.parts
    if not is_integer(kind):
        return floats.arithmetic(d, ins)
    if len(mods) != 1 or mods[0] not in ("lo", "hi", "wide"):
        d.unknown()
    f, to, (_, a, b) = _product(mods[0]), kind, ins.operands
    if mods[0] == "wide":
        to = f"{kind[0]}{16 * SIZES[d.kind(kind)]}"
    write, ra, rb = d.write(ins.operands[0], d.kind(to)), d.read(a, kind), d.read(b, kind)
    return lambda st: write(st, f(ra(st), rb(st)))


@opcode("mul24", "mad24")
def _mul24(d: Decoder, ins: Instruction) -> Handler:
    name, mode, kind = ins.parts
    signed = kind == "s32"
    if mode not in ("lo", "hi") or kind not in ("s32", "u32"):
        d.unknown()

    def product(a: Array, b: Array) -> Array:
        x, y = ((v.astype(np.int64) << 40).view(np.int64 if signed else np.uint64) >> 40
                for v in (a, b))  # fmt: skip
        return ((x * y) >> (0 if mode == "lo" else 16)).astype(a.dtype)

    if name == "mul24":
        return binary(d, ins, kind, product)
    return ternary(d, ins, f"{kind} " * 4, lambda a, b, c: product(a, b) + c)


@opcode("mad", "madc")
def _mad(d: Decoder, ins: Instruction) -> Handler:
    name, *mods, kind = ins.parts
    if not is_integer(kind):
        return floats.fused(d, ins)
    if not mods or mods[0] not in ("lo", "hi", "wide"):
        d.unknown()
    f, to = _product(mods[0]), kind
    if mods[0] == "wide":
        to = d.kind(f"{kind[0]}{16 * SIZES[d.kind(kind)]}")
    if name == "madc" or "cc" in mods:
        d.only(mods[1:], ("cc",))
        bits = f"u{8 * SIZES[to]}"
        target, a, b, c = ins.operands
        write, ra, rb = d.write(target, bits), d.read(a, kind), d.read(b, kind)
        rc, carry_in, carry_out = d.read(c, bits), name == "madc", "cc" in mods

        def run(st: Wave) -> None:
            x = st.wide(f(ra(st), rb(st)).view(dtype_of(bits)))
            first = x + rc(st)
            out = first + st.carry[st.act].astype(x.dtype) if carry_in else first
            write(st, out)
            if carry_out:
                st.carry[st.act] = (first < x) | (out < first)

        return run
    if mods[1:] == ["sat"] and mods[0] == "hi" and kind == "s32":
        return ternary(
            d, ins, "s32 s32 s32 s32",
            lambda a, b, c: np.clip(_high(a, b).astype(np.int64) + c, -(2**31), 2**31 - 1),
        )  # fmt: skip
    d.only(mods[1:], ())
    return ternary(d, ins, f"{to} {kind} {kind} {to}", lambda a, b, c: f(a, b) + c)


@opcode("div", "rem")
def _div(d: Decoder, ins: Instruction) -> Handler:
    name, *mods, kind = ins.parts
    if not is_integer(kind):
        return floats.arithmetic(d, ins)
    d.only(mods, ())

    def divide(a: Array, b: Array) -> Array:
        a, b = np.broadcast_arrays(a, b)
        q = a // b
        rest = a - q * b
        # numpy rounds down, PTX towards zero. Of no divisor, GPUs give all ones (it is undefined).
        q = q + ((rest != 0) & ((a < 0) != (b < 0)))
        if name == "div":
            return np.where(b == 0, ~np.zeros_like(a), q).astype(a.dtype)
        return np.where(b == 0, a, a - q.astype(a.dtype) * b).astype(a.dtype)

    return binary(d, ins, d.kind(kind), divide)


@opcode("abs", "neg")
def _abs(d: Decoder, ins: Instruction) -> Handler:
    name, *mods, kind = ins.parts
    if not is_integer(kind):
        return floats.signs(d, ins)
    d.only(mods, ())
    return unary(d, ins, d.kind(kind), np.abs if name == "abs" else np.negative)


@opcode("min", "max")
def _min(d: Decoder, ins: Instruction) -> Handler:
    name, *mods, kind = ins.parts
    if not is_integer(kind):
        return floats.extremes(d, ins)
    f = np.minimum if name == "min" else np.maximum
    relu = "relu" in mods
    d.only(mods, ("relu",) if kind in ("s32", "s16x2") else ())
    if kind in ("u16x2", "s16x2"):
        return _lanes16(d, ins, (lambda a, b: np.maximum(f(a, b), 0)) if relu else f)
    if relu:
        return binary(d, ins, kind, lambda a, b: np.maximum(f(a, b), 0))
    return binary(d, ins, d.kind(kind), f)


@opcode("sad")
def _sad(d: Decoder, ins: Instruction) -> Handler:
    _, kind = ins.parts

    def sad(a: Array, b: Array, c: Array) -> Array:
        return c + np.where(a < b, b - a, a - b)

    return ternary(d, ins, f"{d.kind(kind)} " * 4, sad)


@opcode("dp4a", "dp2a")
def _dot(d: Decoder, ins: Instruction) -> Handler:
    """Products of four bytes of `a` with those of `b`, or of two halves of `a` with two bytes."""
    name, *mode, ka, kb = ins.parts
    if {ka, kb} - {"s32", "u32"} or (name == "dp4a") != (not mode):
        d.unknown()
    to = "u32" if ka == kb == "u32" else "s32"

    def split(a: Array, kind: str, size: int) -> Array:
        parts = np.ascontiguousarray(a).view(f"{'i' if kind == 's32' else 'u'}{size}")
        return parts.reshape(len(a), -1).astype(np.int64)

    def dot(a: Array, b: Array, c: Array) -> Array:
        x, y = split(a, ka, 1 if name == "dp4a" else 2), split(b, kb, 1)
        if mode:
            y = y[:, :2] if mode[0] == "lo" else y[:, 2:]
        return np.asarray(c + (x * y).sum(1), c.dtype)

    return ternary(d, ins, f"{to} {ka} {kb} {to}", dot)
