"""`cvt`: conversions between types.

Floats become integers within their range; NaN becomes 0, or the smallest integer (unsigned: the
power of two that it is) where the source is float64 or the result has 64 bits, as the PTX ISA says.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from compiler.runtime.machines.ptx.decode import Decoder, Handler, dtype_of, opcode
from compiler.runtime.machines.ptx.floats import (
    bfloat,
    decoder,
    encoder,
    flushed,
    rounded,
    to_bfloat,
)
from compiler.runtime.machines.ptx.program import SIZES, Instruction
from compiler.runtime.machines.ptx.wave import Wave

Array = npt.NDArray[Any]
Convert = Callable[[Array], Array]

_FLOATS = ("f16", "bf16", "f32", "f64")
_TO_INTEGER = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}
_TO_FLOAT = ("rn", "rz", "rm", "rp")
_BYTES = ("e4m3x2", "e5m2x2")


@opcode("cvt")
def _cvt(d: Decoder, ins: Instruction) -> Handler:
    parts = list(ins.parts[1:])
    if parts[0] == "pack":
        return _pack(d, ins)
    target, source = parts[-2:]
    mods = parts[:-2]
    if target in _BYTES or source in _BYTES:
        return _bytes(d, ins, target, source, mods)
    if target in ("f16x2", "bf16x2") and source == "f32":
        return _two(d, ins, target, mods)
    d.kind(target)
    d.kind(source)
    if target == "tf32":
        return _tf32(d, ins, mods)
    f = conversion(d, target, source, mods)
    to, a = ins.operands
    write, ra = d.write(to, target), d.read(a, source)
    return lambda st: write(st, f(ra(st)))


def conversion(d: Decoder, target: str, source: str, mods: list[str]) -> Convert:
    """What converts values of one type to those of another."""
    to_float, of_float = target in _FLOATS, source in _FLOATS
    d.only(mods, (*_TO_INTEGER, *_TO_FLOAT, "ftz", "sat", "relu"))
    ftz, sat, relu = "ftz" in mods, "sat" in mods, "relu" in mods
    mode = next((m for m in mods if m in _TO_FLOAT), None)
    whole = next((m for m in mods if m in _TO_INTEGER), None)
    if to_float and of_float:
        return _between_floats(d, target, source, mode, whole, ftz, sat, relu)
    if to_float:
        if mode is None:
            d.unknown("a rounding is needed")
        return _from_integers(target, source, mode, sat)
    if of_float:
        if whole is None:
            d.unknown("a rounding is needed")
        return _to_integers(target, source, whole, ftz)
    return _between_integers(d, target, source, sat)


def _between_integers(d: Decoder, target: str, source: str, sat: bool) -> Convert:
    if "pred" in (target, source):
        d.unknown("type .pred")
    dtype = dtype_of(target)
    if not sat:
        return lambda a: a.astype(dtype)
    low, high = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
    own = np.iinfo(dtype_of(source))
    low, high = max(low, int(own.min)), min(high, int(own.max))
    return lambda a: np.clip(a, a.dtype.type(low), a.dtype.type(high)).astype(dtype)


def _from_integers(target: str, source: str, mode: str, sat: bool) -> Convert:
    encode = encoder(target, mode)

    def convert(a: Array) -> Array:
        if mode == "rn" and target in ("f32", "f64"):
            out = a.astype(dtype_of(target))
        else:
            out = _exact_or_odd(a)
            if target in ("f32", "f64"):
                out = rounded(out, target, mode) if target == "f32" else _whole64(a, mode)
        if sat:
            out = np.clip(out, 0.0, 1.0)
        return encode(out) if target != "f64" else out

    return convert


def _exact_or_odd(a: Array) -> Array:
    """Integers as float64, rounded to odd where they do not fit."""
    near = a.astype(np.float64)
    if a.dtype.itemsize < 8:
        return near
    return np.array([_odd(int(v)) for v in a], np.float64)


def _odd(v: int) -> float:
    extra = max(abs(v).bit_length() - 53, 0)
    top = abs(v) >> extra
    if top << extra != abs(v):
        top |= 1
    return float(top << extra) * (-1 if v < 0 else 1)


def _whole64(a: Array, mode: str) -> Array:
    """Integers as float64 with a rounding that is not to nearest."""
    out = []
    for v in map(int, a):
        near = float(v)
        step = (int(near) > v) - (int(near) < v)  # 1: too large
        if step > 0 and (mode == "rm" or (mode == "rz" and v > 0)):
            near = float(np.nextafter(near, -np.inf))
        elif step < 0 and (mode == "rp" or (mode == "rz" and v < 0)):
            near = float(np.nextafter(near, np.inf))
        out.append(near)
    return np.array(out, np.float64)


def _to_integers(target: str, source: str, whole: str, ftz: bool) -> Convert:
    dtype, f = dtype_of(target), _TO_INTEGER[whole]
    info = np.iinfo(dtype)
    low, high = float(info.min), float(info.max)
    wide = SIZES[target] == 8
    nan = 0
    if source == "f64" or wide:
        nan = int(info.min) if target[0] == "s" else 1 << (8 * SIZES[target] - 1)
    decode = decoder(source, ftz)

    def convert(a: Array) -> Array:
        x = f(decode(a).astype(np.float64))
        inside = (x > low) & (x < high)  # 2**63 - 1 is no float64: the next one is outside
        out = np.where(inside, x, 0.0).astype(dtype)
        out = np.where(x <= low, dtype(info.min), np.where(x >= high, dtype(info.max), out))
        return np.where(np.isnan(x), dtype(nan), out)

    return convert


def _between_floats(
    d: Decoder, target: str, source: str, mode: str | None, whole: str | None,
    ftz: bool, sat: bool, relu: bool,
) -> Convert:  # fmt: skip
    narrower = SIZES[target] < SIZES[source] or (
        SIZES[target] == SIZES[source] and target != source
    )
    if (narrower and mode is None) or (mode is not None and target == "f64"):
        d.unknown("the rounding")
    decode, encode = decoder(source, ftz), encoder(target, mode or "rn")

    def convert(a: Array) -> Array:
        x = decode(a)
        if whole is not None:
            x = np.copysign(_TO_INTEGER[whole](x), x)
        if target == "f32" and x.dtype == np.float64:
            x = x.astype(np.float32) if mode == "rn" else rounded(x, "f32", mode or "rn")
        elif target == "f64":
            x = x.astype(np.float64)
        if sat:
            x = np.where(np.isnan(x), 0.0, np.clip(x, 0.0, 1.0)).astype(x.dtype)
        if relu:
            x = np.where(x <= 0, 0.0, x).astype(x.dtype)
        out = encode(x) if target != "f64" else x
        return flushed(out) if ftz and target == "f32" else out

    return convert


def _tf32(d: Decoder, ins: Instruction, mods: list[str]) -> Handler:
    d.only(mods, ("rna", "rn", "rz", "relu", "satfinite"))
    mode = next((m for m in mods if m in ("rna", "rn", "rz")), None)
    if mode is None or ins.parts[-1] != "f32" or "satfinite" in mods:
        d.unknown("the rounding")
    to, a = ins.operands
    write, ra = d.write(to, "b32"), d.read(a, "f32")

    def run(st: Wave) -> None:
        x = ra(st)
        out = rounded(x, "tf32", mode)
        if "relu" in mods:
            out = np.where(out <= 0, 0.0, out)
        write(st, encoder("f32")(out).view(np.uint32))

    return run


def _two(d: Decoder, ins: Instruction, target: str, mods: list[str]) -> Handler:
    """Two float32 numbers become halves of one register, the first its upper one."""
    d.only(mods, ("rn", "rz", "relu"))
    base = target.removesuffix("x2")
    mode = "rz" if "rz" in mods else "rn"
    f = _between_floats(d, base, "f32", mode, None, False, False, "relu" in mods)
    to, a, b = ins.operands
    write, ra, rb = d.write(to, "b32"), d.read(a, "f32"), d.read(b, "f32")

    def run(st: Wave) -> None:
        high, low = (f(st.wide(r(st))).view(np.uint16).astype(np.uint32) for r in (ra, rb))
        write(st, high << np.uint32(16) | low)

    return run


def _bytes(d: Decoder, ins: Instruction, target: str, source: str, mods: list[str]) -> Handler:
    """Pairs of 8-bit floats: from two float32 numbers or from halves, or to halves."""
    import ml_dtypes

    kinds = {"e4m3x2": ml_dtypes.float8_e4m3fn, "e5m2x2": ml_dtypes.float8_e5m2}
    d.only(mods, ("rn", "satfinite", "relu"))
    if source in kinds:
        if target != "f16x2" or "rn" not in mods or "satfinite" in mods:
            d.unknown()
        to, a = ins.operands
        write, ra, of = d.write(to, "b32"), d.read(a, "b16"), kinds[source]

        def widen(st: Wave) -> None:
            values = np.ascontiguousarray(st.wide(ra(st))).view(of).astype(np.float32)
            if "relu" in mods:
                values = np.where(values <= 0, np.float32(0), values)
            write(st, encoder("f16x2")(values.reshape(-1, 2)))

        return widen
    if "rn" not in mods or "satfinite" not in mods or source not in ("f32", "f16x2"):
        d.unknown()
    to, *operands = ins.operands
    write = d.write(to, "b16")
    readers = [d.read(x, source) for x in operands]
    dtype = kinds[target]
    largest = float(ml_dtypes.finfo(dtype).max)
    half = decoder("f16x2")

    def narrow(st: Wave) -> None:
        if source == "f32":  # the first operand is the upper byte
            values = np.stack([st.wide(r(st)) for r in reversed(readers)], 1)
        else:
            values = half(st.wide(readers[0](st)))
        nan = np.isnan(values)
        values = np.clip(np.where(nan, np.float32(0), values), -largest, largest)
        if "relu" in mods:
            values = np.maximum(values, np.float32(0))
        out = np.where(nan, 0x7F, values.astype(dtype).view(np.uint8)).astype(np.uint8)
        write(st, np.ascontiguousarray(out).view(np.uint16).reshape(-1))

    return narrow


def _pack(d: Decoder, ins: Instruction) -> Handler:
    """`cvt.pack.sat.s8.s32.b32 d, a, b, c`: d = c's low half above a and b, clipped to bytes (b the
    lowest); of 16 bits, without c: a above b."""
    _, _, sat, target, source, *rest = ins.parts
    if sat != "sat" or source != "s32" or target not in ("s8", "u8", "s16", "u16"):
        d.unknown()
    bits, dtype = 8 * SIZES[target], dtype_of(target)
    info = np.iinfo(dtype)
    to, a, b, *c = ins.operands
    if (bits == 8) != (rest == ["b32"]) or len(c) != len(rest):
        d.unknown()
    write, ra, rb = d.write(to, "b32"), d.read(a, "s32"), d.read(b, "s32")
    rc = d.read(c[0], "b32") if c else None
    mask = np.uint32((1 << bits) - 1)

    def run(st: Wave) -> None:
        high, low = (
            np.clip(r(st), int(info.min), int(info.max)).view(np.uint32) & mask for r in (ra, rb)
        )
        out = high << np.uint32(bits) | low
        write(st, out if rc is None else rc(st) << np.uint32(16) | out)

    return run


__all__ = ["bfloat", "conversion", "to_bfloat"]
