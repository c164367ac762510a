"""Instructions on floating-point numbers.

Sums, products, quotients, roots and fused multiply-adds are rounded once (IEEE 754), to nearest or
as the instruction says. Those with `.approx`, and functions such as `ex2`, give here what correctly
rounded results would be (of float64 functions, rounded to float32): a GPU's may be a few units in
the last place off. NaN results of float32, float16 and bfloat16 are the one that GPUs give.
"""

from __future__ import annotations

import ctypes
import ctypes.util
from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from compiler.arithmetic.fused_multiply_add import (
    add_to_odd,
    multiply_add,
    multiply_add32,
    product_error,
    to_odd,
)
from compiler.runtime.machines.ptx.decode import Decoder, Handler, dtype_of, opcode
from compiler.runtime.machines.ptx.program import SIZES, Instruction

Array = npt.NDArray[Any]

_NAN = {"f32": 0x7FFFFFFF, "f16": 0x7FFF, "bf16": 0x7FFF}
_TINY = np.float32(2.0**-126)
FORMATS = {"f16": (11, -24, 65504.0), "bf16": (8, -133, 3.3895313892515355e38),
           "f32": (24, -149, 3.4028234663852886e38), "f64": (53, -1074, 1.7976931348623157e308),
           "tf32": (11, -136, 3.4011621342146535e38)}  # fmt: skip
"""Bits of the significand, exponent of the smallest number, largest number."""
ROUNDINGS = ("rn", "rz", "rm", "rp")


def flushed(a: Array) -> Array:
    """float32 numbers, of which subnormal ones become zeros."""
    small = np.abs(a) < _TINY
    return np.where(small, np.copysign(np.float32(0), a), a) if small.any() else a


def bfloat(a: Array) -> Array:
    """float32 numbers, from the bits of bfloat16 ones."""
    return (a.astype(np.uint32) << np.uint32(16)).view(np.float32)


def to_bfloat(a: Array) -> Array:
    """Bits of bfloat16 numbers, from float32 ones: to nearest, ties to even."""
    bits = np.ascontiguousarray(a, np.float32).view(np.uint32)
    out = (bits + (0x7FFF + (bits >> 16 & 1))) >> 16
    return np.where(np.isnan(a), 0x7FFF, out).astype(np.uint16)


def half(a: Array) -> Array:
    """float16 numbers, to nearest, from float32 or float64 ones, NaN as GPUs have it."""
    out = np.asarray(a.astype(np.float16))
    return _with_nan(out, "f16")


def _with_nan(a: Array, kind: str) -> Array:
    """The same with the NaN that GPUs give."""
    bad = a != a
    if kind in _NAN and bad.any():
        a = np.array(a)
        a.view(f"u{SIZES[kind]}")[bad] = _NAN[kind]
    return a


def decoder(kind: str, ftz: bool = False) -> Callable[[Array], Array]:
    """What makes float32 or float64 numbers of a type's values; of two, shape (n, 2)."""
    base = kind.removesuffix("x2")
    if base not in ("f16", "bf16", "f32", "f64"):
        raise ValueError(kind)

    def decode(a: Array) -> Array:
        if kind.endswith("x2"):
            a = np.ascontiguousarray(a).view(np.float16 if base == "f16" else np.uint16)
            a = a.reshape(-1, 2)
        if base == "bf16":
            a = bfloat(a)
        elif base == "f16":
            a = a.astype(np.float32)
        return flushed(a) if ftz and base != "f64" else a

    return decode


def encoder(kind: str, mode: str = "rn") -> Callable[[Array], Array]:
    """What rounds float32 or float64 numbers to a type, whose values it gives."""
    base = kind.removesuffix("x2")

    def encode(a: Array) -> Array:
        if base in ("f16", "bf16") and (a.dtype == np.float64 or mode != "rn"):
            a = rounded(a, base, mode)
        if base == "f16":
            a = half(a)
        elif base == "bf16":
            a = to_bfloat(a.astype(np.float32))
        elif base == "f32":
            a = _with_nan(a.astype(np.float32), "f32")
        return np.ascontiguousarray(a).view(np.uint32).reshape(-1) if kind.endswith("x2") else a

    return encode


def rounded(a: Array, kind: str, mode: str) -> Array:
    """float64 numbers, rounded to a format: "rn" to nearest (ties to even), "rna" to nearest (ties
    away from zero), "rz" towards zero, "rm" down, "rp" up. Exact, of numbers rounded to odd too."""
    digits, lowest, largest = FORMATS[kind]
    x = a.astype(np.float64)
    _, exponent = np.frexp(x)
    unit = np.maximum(exponent - digits, lowest)
    scaled = np.ldexp(x, -unit)
    if mode == "rna":
        whole = np.copysign(np.floor(np.abs(scaled) + 0.5), scaled)
    else:
        whole = {"rn": np.rint, "rz": np.trunc, "rm": np.floor, "rp": np.ceil}[mode](scaled)
    out = np.ldexp(whole, unit)
    over = np.isfinite(x) & (np.abs(out) > largest)
    if over.any():
        up = np.inf if mode in ("rn", "rna", "rp") else largest
        down = -np.inf if mode in ("rn", "rna", "rm") else -largest
        out = np.where(over, np.where(x > 0, up, down), out)
    out = np.where(out == 0, np.copysign(0.0, x), out)
    return np.where(np.isfinite(x), out, x)


# Sums, products, quotients, roots


def _directed64(name: str, near: Array, x: Array, y: Array, mode: str) -> Array:
    """A float64 result that is not rounded to nearest, from the one that is: by fractions, since
    few kernels have such instructions."""
    out = np.array(near)
    for k in np.flatnonzero(np.isfinite(x) & np.isfinite(y) & ~((name == "div") & (y == 0))):
        a, b = Fraction(float(x[k])), Fraction(float(y[k]))
        exact = {"add": a + b, "sub": a - b, "mul": a * b}[name] if name != "div" else a / b
        n = float(near[k])
        if exact == 0:
            if name in ("add", "sub") and mode == "rm":
                other = y[k] if name == "add" else -y[k]
                both = a == 0 and not np.signbit(x[k]) and not np.signbit(other)
                out[k] = 0.0 if both else -0.0
        elif (n == np.inf or (n != -np.inf and Fraction(n) > exact)) and (
            mode == "rm" or (mode == "rz" and exact > 0)
        ):
            out[k] = np.nextafter(n, -np.inf)
        elif (n == -np.inf or (n != np.inf and Fraction(n) < exact)) and (
            mode == "rp" or (mode == "rz" and exact < 0)
        ):
            out[k] = np.nextafter(n, np.inf)
    return out


def _binary(name: str, a: Array, b: Array, mode: str) -> Array:
    """A result of float32 or float64 numbers, rounded once."""
    plain = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide}[name]
    if mode == "rn":
        return np.asarray(plain(a, b))
    x, y = np.broadcast_arrays(a.astype(np.float64), b.astype(np.float64))
    if a.dtype == np.float32:
        if name in ("add", "sub"):
            exact = add_to_odd(x, y if name == "add" else -y)
        elif name == "mul":
            exact = x * y
        else:
            exact = _quotient_to_odd(x, y)
        near = plain(x, y)
        exact = np.where(np.isfinite(near), exact, near)
        out = rounded(exact, "f32", mode)
        if name in ("add", "sub"):  # exact zeros of opposite terms are -0 if rounded down
            zero = (exact == 0) & ~((x == 0) & (y == 0))
            out = np.where(zero, -0.0 if mode == "rm" else 0.0, out)
            both = (x == 0) & (y == 0)
            other = y if name == "add" else -y
            mixed = both & (np.signbit(x) != np.signbit(other))
            out = np.where(mixed, -0.0 if mode == "rm" else 0.0, out)
        return out.astype(np.float32)
    return _directed64(name, np.asarray(plain(x, y)), x, y, mode)


def _quotient_to_odd(x: Array, y: Array) -> Array:
    """x / y rounded to odd, of float32 numbers held as float64."""
    q = x / y
    rest = (x - q * y) - product_error(q, y, q * y)
    rest = np.where(np.isfinite(rest) & (y != 0), rest, 0.0) * np.sign(y)
    even = (q.view(np.int64) & 1) == 0
    toward = np.where(rest > 0, np.inf, -np.inf)
    return np.where((rest != 0) & even, np.nextafter(q, toward), q)


def _root_to_odd(x: Array) -> Array:
    """The square root rounded to odd."""
    q = np.sqrt(x)
    square = q * q
    rest = (x - square) - product_error(q, q, square)
    even = (q.view(np.int64) & 1) == 0
    move = np.isfinite(q) & (rest != 0) & even & (q > 0)
    return np.where(move, np.nextafter(q, np.where(rest > 0, np.inf, -np.inf)), q)


@lru_cache(maxsize=1)
def _fma64() -> Any:
    """C's `fma`."""
    f = ctypes.CDLL(ctypes.util.find_library("m")).fma
    f.restype, f.argtypes = ctypes.c_double, [ctypes.c_double] * 3
    return f


def fma64(a: Array, b: Array, c: Array) -> Array:
    """a * b + c of float64, rounded once; by C's `fma` where parts of the product may leave the
    range in which the quick way is exact."""
    a, b, c = np.broadcast_arrays(a, b, c)
    out = np.array(multiply_add(a, b, c))
    product = np.abs(a * b)
    risky = (product < 1e-250) | ~(product < 1e290) | (np.abs(a) > 1e290) | (np.abs(b) > 1e290)
    risky |= (np.abs(c) > 1e290) | ((np.abs(out) < 1e-290) & (out != 0))
    f = _fma64()
    for k in np.flatnonzero(risky):
        out[k] = f(float(a[k]), float(b[k]), float(c[k]))
    return out


def _fma(a: Array, b: Array, c: Array, kind: str, mode: str) -> Array:
    """A fused multiply-add of decoded numbers: float32, or float64 rounded to the type."""
    base = kind.removesuffix("x2")
    if base == "f64":
        if mode != "rn":
            raise ValueError(mode)
        return fma64(a, b, c)
    if base == "f32" and mode == "rn":
        return multiply_add32(a, b, c)
    a, b, c = np.broadcast_arrays(a, b, c)
    x, y, z = (v.astype(np.float64) for v in (a, b, c))
    plain = x * y + z
    exact = np.where(np.isfinite(plain), to_odd(x, y, z), plain)
    out = rounded(exact, base, mode)
    if mode == "rm":  # what cancels is -0
        out = np.where((exact == 0) & (np.signbit(x * y) != np.signbit(z)), -0.0, out)
    return out


def _modes(d: Decoder, ins: Instruction, known: tuple[str, ...]) -> tuple[str, str, set[str]]:
    """Type, rounding and the other modifiers."""
    _, *mods, kind = ins.parts
    d.only(mods, known)
    mode = next((m for m in mods if m in ROUNDINGS), "rn")
    d.kind(kind)
    if kind.removesuffix("x2") not in ("f16", "bf16", "f32", "f64"):
        d.unknown(f"type .{kind}")
    if kind != "f32" and kind != "f64" and mode != "rn":
        d.unknown(f"modifier .{mode}")
    return kind, mode, set(mods)


def _done(out: Array, kind: str, ftz: bool, sat: bool, mode: str = "rn") -> Array:
    """A result of decoded numbers as the type's values."""
    if sat:
        out = np.where(np.isnan(out), 0.0, np.clip(out, 0.0, 1.0)).astype(out.dtype)
    if ftz and kind == "f32":
        out = flushed(out)
    return encoder(kind)(out)


def arithmetic(d: Decoder, ins: Instruction) -> Handler:
    """`add`, `sub`, `mul`, `div`."""
    name = ins.parts[0]
    known = (*ROUNDINGS, "ftz", "sat", *(("approx", "full") if name == "div" else ()))
    kind, mode, mods = _modes(d, ins, known)
    ftz, sat = "ftz" in mods, "sat" in mods
    to, a, b = ins.operands
    write, ra, rb = d.write(to, kind), d.read(a, kind), d.read(b, kind)
    if kind in ("f32", "f64") and mode == "rn" and not ftz and not sat:
        plain = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide}[name]
        return lambda st: write(st, _with_nan(plain(ra(st), rb(st)), kind))
    decode = decoder(kind, ftz)
    return lambda st: write(
        st, _done(_binary(name, decode(ra(st)), decode(rb(st)), mode), kind, ftz, sat)
    )


@opcode("fma")
def fused(d: Decoder, ins: Instruction) -> Handler:
    """`fma`, and `mad` of floats, which is the same."""
    kind, mode, mods = _modes(d, ins, (*ROUNDINGS, "ftz", "sat", "relu"))
    ftz, sat, relu = "ftz" in mods, "sat" in mods, "relu" in mods
    if kind == "f64" and mode != "rn":
        d.unknown(f"modifier .{mode}")
    to, *operands = ins.operands
    write, (ra, rb, rc) = d.write(to, kind), [d.read(x, kind) for x in operands]
    decode = decoder(kind, ftz)

    def run(st: Any) -> None:
        out = _fma(decode(ra(st)), decode(rb(st)), decode(rc(st)), kind, mode)
        if kind == "f32":
            out = out.astype(np.float32)
        if relu:
            out = np.where(out <= 0, 0.0, out)
        write(st, _done(out, kind, ftz, sat))

    return run


def signs(d: Decoder, ins: Instruction) -> Handler:
    """`abs` and `neg`: of bits, so that NaN keep theirs."""
    kind, _, mods = _modes(d, ins, ("ftz",))
    to, a = ins.operands
    bits = f"b{8 * SIZES[kind]}"
    write, ra = d.write(to, bits), d.read(a, bits)
    top = 1 << (8 * SIZES[kind] - 1) | (1 << 15 if kind.endswith("x2") else 0)
    sign = dtype_of(bits)(top)
    ftz = "ftz" in mods and kind == "f32"

    def run(st: Any) -> None:
        x = ra(st)
        out = x & ~sign if ins.parts[0] == "abs" else x ^ sign
        write(st, flushed(out.view(np.float32)).view(np.uint32) if ftz else out)

    return run


def extremes(d: Decoder, ins: Instruction) -> Handler:
    """`min` and `max`: of a number and NaN the number, unless `.NaN` says otherwise; -0 < +0."""
    kind, _, mods = _modes(d, ins, ("ftz", "NaN", "xorsign", "abs"))
    least = ins.parts[0] == "min"
    decode, ftz = decoder(kind, "ftz" in mods), "ftz" in mods
    to, a, b = ins.operands
    write, ra, rb = d.write(to, kind), d.read(a, kind), d.read(b, kind)

    def run(st: Any) -> None:
        x, y = np.broadcast_arrays(decode(ra(st)), decode(rb(st)))
        sign = np.signbit(x) ^ np.signbit(y)
        if "xorsign" in mods:
            x, y = np.abs(x), np.abs(y)
        if "NaN" in mods:
            out = np.minimum(x, y) if least else np.maximum(x, y)
        else:
            out = np.fmin(x, y) if least else np.fmax(x, y)
        negative = np.signbit(x) | np.signbit(y) if least else np.signbit(x) & np.signbit(y)
        zero = (x == 0) & (y == 0)
        out = np.where(zero, np.where(negative, -0.0, 0.0).astype(x.dtype), out)
        if "xorsign" in mods:
            out = np.where(sign, -np.abs(out), np.abs(out))
        write(st, _done(out.astype(x.dtype), kind, ftz, False))

    return run


_FUNCTIONS: dict[str, Callable[[Array], Array]] = {
    "ex2": np.exp2,
    "lg2": np.log2,
    "sin": np.sin,
    "cos": np.cos,
    "tanh": np.tanh,
    "rsqrt": lambda x: 1.0 / np.sqrt(x),
}


@opcode(*_FUNCTIONS)
def _function(d: Decoder, ins: Instruction) -> Handler:
    kind, _, mods = _modes(d, ins, ("approx", "ftz"))
    if "approx" not in mods:
        d.unknown()
    ftz, f = "ftz" in mods, _FUNCTIONS[ins.parts[0]]
    decode, encode = decoder(kind, ftz), encoder(kind)
    to, a = ins.operands
    write, ra = d.write(to, kind), d.read(a, kind)

    def run(st: Any) -> None:
        out = f(decode(ra(st)).astype(np.float64))
        if kind == "f32":
            out = out.astype(np.float32)
        write(st, encode(flushed(out) if ftz and kind == "f32" else out))

    return run


@opcode("rcp", "sqrt")
def _root(d: Decoder, ins: Instruction) -> Handler:
    kind, mode, mods = _modes(d, ins, (*ROUNDINGS, "approx", "ftz"))
    ftz, name = "ftz" in mods, ins.parts[0]
    if kind not in ("f32", "f64") or (kind == "f64" and mode != "rn"):
        d.unknown()
    decode, encode = decoder(kind, ftz), encoder(kind)
    to, a = ins.operands
    write, ra = d.write(to, kind), d.read(a, kind)

    def run(st: Any) -> None:
        x = decode(ra(st))
        if mode == "rn":
            out = np.sqrt(x) if name == "sqrt" else x.dtype.type(1) / x
        elif name == "sqrt":
            out = rounded(_root_to_odd(x.astype(np.float64)), kind, mode).astype(x.dtype)
        else:
            out = _binary("div", np.ones_like(x), x, mode)
        write(st, encode(flushed(out) if ftz else out))

    return run


@opcode("copysign")
def _copysign(d: Decoder, ins: Instruction) -> Handler:
    """d = the second operand with the sign of the first."""
    _, kind = ins.parts
    to, a, b = ins.operands
    write, ra, rb = d.write(to, d.kind(kind)), d.read(a, kind), d.read(b, kind)
    return lambda st: write(st, np.copysign(rb(st), ra(st)))


@opcode("testp")
def _testp(d: Decoder, ins: Instruction) -> Handler:
    _, what, kind = ins.parts
    tiny = np.finfo(dtype_of(d.kind(kind))).tiny
    tests: dict[str, Callable[[Array], Array]] = {
        "finite": np.isfinite,
        "infinite": np.isinf,
        "number": lambda x: ~np.isnan(x),
        "notanumber": np.isnan,
        "normal": lambda x: np.isfinite(x) & (np.abs(x) >= tiny),
        "subnormal": lambda x: (np.abs(x) < tiny) & (x != 0),
    }
    if what not in tests:
        d.unknown(f"modifier .{what}")
    to, a = ins.operands
    write, ra, f = d.write(to, "pred"), d.read(a, kind), tests[what]
    return lambda st: write(st, f(ra(st)))
