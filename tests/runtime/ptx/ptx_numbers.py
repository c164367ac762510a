"""What floating-point instructions of PTX mean, in fractions, and the table of them."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
from ptx_instructions import Case

FORMATS = {"f16": (11, -24, 16, 5), "bf16": (8, -133, 16, 8), "f32": (24, -149, 32, 8),
           "f64": (53, -1074, 64, 11), "tf32": (11, -136, 32, 8)}  # fmt: skip
"""Bits of the significand, exponent of the least number, bits, bits of the exponent."""
DTYPES: dict[str, Any] = {"f16": np.float16, "bf16": ml_dtypes.bfloat16, "f32": np.float32,
                          "f64": np.float64}  # fmt: skip
NAN = math.nan


def largest(kind: str) -> Fraction:
    digits, _, _, exponent = FORMATS[kind]
    top = 2 ** (exponent - 1) - 1
    return (2 - Fraction(1, 2 ** (digits - 1))) * Fraction(2) ** top


def to_format(x: Fraction, kind: str, mode: str, zero: float = 0.0) -> float:
    """A number rounded to a format; `zero`: what 0 becomes."""
    if x == 0:
        return zero
    digits, least, _, _ = FORMATS[kind]
    e = math.floor(math.log2(abs(x))) if 1e-300 < abs(x) < 1e300 else _exponent(x)
    while Fraction(2) ** e > abs(x):
        e -= 1
    while Fraction(2) ** (e + 1) <= abs(x):
        e += 1
    unit = Fraction(2) ** max(e - digits + 1, least)
    whole = x / unit
    if mode == "rn":
        n = round(whole)
    elif mode == "rna":
        n = math.floor(abs(whole) + Fraction(1, 2)) * (1 if x > 0 else -1)
    else:
        n = {"rz": math.trunc, "rm": math.floor, "rp": math.ceil}[mode](whole)
    out = n * unit
    if abs(out) > largest(kind):
        away = mode in ("rn", "rna") or (mode == "rp" and x > 0) or (mode == "rm" and x < 0)
        return (math.inf if away else float(largest(kind))) * (1 if x > 0 else -1)
    return math.copysign(float(out), 1 if x > 0 else -1)


def _exponent(x: Fraction) -> int:
    return abs(x.numerator).bit_length() - x.denominator.bit_length()


def tiny(kind: str) -> float:
    digits, least, _, _ = FORMATS[kind]
    return 2.0 ** (least + digits - 1)


def flush(x: float) -> float:
    return math.copysign(0.0, x) if abs(x) < tiny("f32") else x


def special(*values: float) -> bool:
    return any(math.isnan(v) or math.isinf(v) for v in values)


def f64(f: Callable[..., Any], *values: float) -> float:
    with np.errstate(all="ignore"):
        return float(f(*map(np.float64, values)))


def sign_of_zero(x: float, y: float, mode: str) -> float:
    """Of an exact sum of x and y that is 0."""
    if x == 0 and y == 0 and math.copysign(1, x) == math.copysign(1, y):
        return x
    return -0.0 if mode == "rm" else 0.0


def add(a: float, b: float, kind: str, mode: str) -> float:
    if special(a, b):
        return f64(np.add, a, b)
    return to_format(Fraction(a) + Fraction(b), kind, mode, sign_of_zero(a, b, mode))


def mul(a: float, b: float, kind: str, mode: str) -> float:
    if special(a, b):
        return f64(np.multiply, a, b)
    zero = math.copysign(0.0, math.copysign(1, a) * math.copysign(1, b))
    return to_format(Fraction(a) * Fraction(b), kind, mode, zero)


def div(a: float, b: float, kind: str, mode: str) -> float:
    if special(a, b) or b == 0:
        return f64(np.divide, a, b)
    zero = math.copysign(0.0, math.copysign(1, a) * math.copysign(1, b))
    return to_format(Fraction(a) / Fraction(b), kind, mode, zero)


def fma(a: float, b: float, c: float, kind: str, mode: str) -> float:
    if special(a, b, c):
        if special(a, b):
            return f64(np.add, f64(np.multiply, a, b), c)
        return c
    product = Fraction(a) * Fraction(b)
    sign = math.copysign(1, a) * math.copysign(1, b)
    stand_in = math.copysign(0.0 if product == 0 else 1.0, sign)
    zero = sign_of_zero(stand_in, c, mode)
    return to_format(product + Fraction(c), kind, mode, zero)


def sqrt(a: float, kind: str, mode: str) -> float:
    if special(a) or a <= 0:
        return f64(np.sqrt, a)
    x = Fraction(a) * Fraction(4) ** 1200
    n = math.isqrt(x.numerator // x.denominator)
    exact = Fraction(n) + (Fraction(1, 2) if n * n != x else 0)
    return to_format(exact / Fraction(2) ** 1200, kind, mode)


def least(a: float, b: float, kind: str = "f32") -> float:
    if math.isnan(a) or math.isnan(b):
        return b if math.isnan(a) else a
    if a == b == 0:
        return min(a, b, key=lambda v: math.copysign(1, v))
    return min(a, b)


def greatest(a: float, b: float, kind: str = "f32") -> float:
    return -least(-a, -b)


def saturated(x: float) -> float:
    return 0.0 if math.isnan(x) else min(max(x, 0.0), 1.0)


def from_bits(bits: int, kind: str) -> float:
    """The number that bits are."""
    size = FORMATS[kind][2] // 8
    raw = np.frombuffer(bits.to_bytes(size, "little"), DTYPES[kind])
    with np.errstate(all="ignore"):
        return float(raw[0])


def to_bits(x: float, kind: str) -> int:
    """The bits of a number of a format; NaN as GPUs have it."""
    if math.isnan(x):
        return {"f16": 0x7FFF, "bf16": 0x7FFF, "f32": 0x7FFFFFFF, "f64": 0x7FF8 << 48}[kind]
    if kind == "f64":
        return int(struct.unpack("<Q", struct.pack("<d", x))[0])
    with np.errstate(all="ignore"):
        out = np.array([x], np.float64).astype(np.float32).astype(DTYPES[kind])
    assert float(out[0]) == x, f"{x} is no {kind}"
    return int.from_bytes(out.tobytes(), "little")


def numbers(rng: np.random.Generator, kind: str, n: int) -> np.ndarray[Any, Any]:
    """Bits of numbers: special ones, ones near each other, and any."""
    digits, _, bits, exponent = FORMATS[kind]
    top, frac = (1 << exponent) - 1, digits - 1
    bias = top >> 1
    least, one, infinite, middle = 1 << frac, bias << frac, top << frac, 1 << frac - 1
    named = [0, 1, 2, least - 1, least, least + 1, one, one + 1, one | middle, (bias + 1) << frac,
             infinite - 1, infinite, infinite | middle, infinite | 3]  # fmt: skip
    sign = 1 << bits - 1
    out = []
    for _ in range(n):
        pick = rng.integers(0, 4)
        if pick == 0:
            v = named[int(rng.integers(0, len(named)))]
        elif pick == 1:
            v = int(rng.integers(0, 2**63)) & (sign - 1)
        elif pick == 2:
            v = (bias + int(rng.integers(-3, 4))) << frac | int(rng.integers(0, 1 << frac))
        else:  # few bits: ties
            v = (bias + int(rng.integers(-30, 30)) % bias) << frac
            v |= int(rng.integers(0, 8)) << frac - 3
            v &= sign - 1
        out.append(v | sign * int(rng.integers(0, 2)))
    return np.array(out, f"u{bits // 8}")


def _case(code: str, kinds: Sequence[str], target: str, f: Callable[..., float]) -> Case:
    """A case on bits, whose meaning is on numbers."""
    names = [f"b{FORMATS[k][2]}" if k in FORMATS else k for k in kinds]

    def meaning(*raw: int) -> int:
        values = [from_bits(v, k) if k in FORMATS else v for v, k in zip(raw, kinds, strict=True)]
        out = f(*values)
        return to_bits(out, target) if target in FORMATS else out

    return Case(
        code, tuple(names), f"u{FORMATS[target][2]}" if target in FORMATS else target, meaning
    )


def _arithmetic() -> list[tuple[Case, tuple[str, ...]]]:
    found = []

    def put(code: str, kinds: str, target: str, f: Callable[..., Any]) -> None:
        k = tuple(kinds.split())
        found.append((_case(code, k, target, f), k))

    for op, f in (("add", add), ("mul", mul), ("sub", lambda a, b, k, m: add(a, -b, k, m))):
        for kind in ("f32", "f64"):
            for mode in ("rn", "rz", "rm", "rp"):
                put(f"{op}.{mode}.{kind} %d, %a, %b", f"{kind} {kind}", kind,
                    lambda a, b, f=f, k=kind, m=mode: f(a, b, k, m))  # fmt: skip
        for kind in ("f16", "bf16"):
            name = f"{op}.rn.{kind}" if kind == "bf16" else f"{op}.{kind}"
            put(f"{name} %d, %a, %b", f"{kind} {kind}", kind,
                lambda a, b, f=f, k=kind: f(a, b, k, "rn"))  # fmt: skip
        put(f"{op}.rn.ftz.f32 %d, %a, %b", "f32 f32", "f32",
            lambda a, b, f=f: flush(f(flush(a), flush(b), "f32", "rn")))  # fmt: skip
        put(f"{op}.sat.f32 %d, %a, %b", "f32 f32", "f32",
            lambda a, b, f=f: saturated(f(a, b, "f32", "rn")))  # fmt: skip
    for mode in ("rn", "rz", "rm", "rp"):
        for kind in ("f32", "f64"):
            put(f"div.{mode}.{kind} %d, %a, %b", f"{kind} {kind}", kind,
                lambda a, b, k=kind, m=mode: div(a, b, k, m))  # fmt: skip
        put(f"fma.{mode}.f32 %d, %a, %b, %c", "f32 f32 f32", "f32",
            lambda a, b, c, m=mode: fma(a, b, c, "f32", m))  # fmt: skip
        put(f"rcp.{mode}.f32 %d, %a", "f32", "f32", lambda a, m=mode: div(1.0, a, "f32", m))
        put(f"sqrt.{mode}.f32 %d, %a", "f32", "f32", lambda a, m=mode: sqrt(a, "f32", m))
    put("div.full.f32 %d, %a, %b", "f32 f32", "f32", lambda a, b: div(a, b, "f32", "rn"))
    put("sqrt.rn.f64 %d, %a", "f64", "f64", lambda a: sqrt(a, "f64", "rn"))
    put("rcp.rn.f64 %d, %a", "f64", "f64", lambda a: div(1.0, a, "f64", "rn"))
    put("fma.rn.f64 %d, %a, %b, %c", "f64 f64 f64", "f64",
        lambda a, b, c: fma(a, b, c, "f64", "rn"))  # fmt: skip
    put("fma.rn.ftz.f32 %d, %a, %b, %c", "f32 f32 f32", "f32",
        lambda a, b, c: flush(fma(flush(a), flush(b), flush(c), "f32", "rn")))  # fmt: skip
    for kind in ("f16", "bf16"):
        put(f"fma.rn.{kind} %d, %a, %b, %c", f"{kind} {kind} {kind}", kind,
            lambda a, b, c, k=kind: fma(a, b, c, k, "rn"))  # fmt: skip
        put(f"fma.rn.relu.{kind} %d, %a, %b, %c", f"{kind} {kind} {kind}", kind,
            lambda a, b, c, k=kind: _relu(fma(a, b, c, k, "rn")))  # fmt: skip
    for kind in ("f32", "f64", "f16", "bf16"):
        two = f"{kind} {kind}"
        put(f"min.{kind} %d, %a, %b", two, kind, least)
        put(f"max.{kind} %d, %a, %b", two, kind, greatest)
        if kind != "f64":
            put(f"min.NaN.{kind} %d, %a, %b", two, kind,
                lambda a, b: NAN if math.isnan(a) or math.isnan(b) else least(a, b))  # fmt: skip
    for kind, top in (("f32", 1 << 31), ("f64", 1 << 63)):
        u = f"u{FORMATS[kind][2]}"  # of NaN too
        found.append((Case(f"copysign.{kind} %d, %b, %a", (u, u), u,
                           lambda a, b, t=top: a & ~t | b & t), (kind, kind)))  # fmt: skip
    for kind in ("f32", "f64", "f16"):
        for order in ("eq", "ne", "lt", "le", "gt", "ge", "equ", "neu", "ltu", "leu", "gtu", "geu",
                      "num", "nan"):  # fmt: skip
            put(f"setp.{order}.{kind} %p, %a, %b; selp.b32 %d, 1, 0, %p", f"{kind} {kind}", "u32",
                lambda a, b, o=order: int(compare(a, b, o)))  # fmt: skip
    put("setp.lt.and.f32 %p|%q, %a, %b, %p; selp.b32 %d, 1, 0, %q", "f32 f32", "u32",
        lambda a, b: 0)  # fmt: skip
    for what, test in (("finite", math.isfinite), ("infinite", math.isinf),
                       ("notanumber", math.isnan), ("number", lambda x: not math.isnan(x)),
                       ("normal", lambda x: math.isfinite(x) and abs(x) >= tiny("f32")),
                       ("subnormal", lambda x: 0 < abs(x) < tiny("f32"))):  # fmt: skip
        put(f"testp.{what}.f32 %p, %a; selp.b32 %d, 1, 0, %p", "f32", "u32",
            lambda a, t=test: int(t(a)))  # fmt: skip
    return found


def _relu(x: float) -> float:
    return x if math.isnan(x) or x > 0 else 0.0


def compare(a: float, b: float, order: str) -> bool:
    nan = math.isnan(a) or math.isnan(b)
    if order in ("num", "nan"):
        return nan == (order == "nan")
    base = order[:2]
    plain = {"eq": a == b, "ne": a != b, "lt": a < b, "le": a <= b, "gt": a > b, "ge": a >= b}[base]
    return len(order) == 3 if nan else plain


def _conversions() -> list[tuple[Case, tuple[str, ...]]]:
    found = []

    def put(code: str, kinds: str, target: str, f: Callable[..., Any]) -> None:
        k = tuple(kinds.split())
        found.append((_case(code, k, target, f), k))

    for kind in ("f16", "f32", "f64"):
        for t in ("s16", "u16", "s32", "u32", "s64", "u64"):
            for mode in ("rni", "rzi", "rmi", "rpi"):
                put(f"cvt.{mode}.{t}.{kind} %d, %a", kind, t,
                    lambda a, t=t, m=mode, k=kind: to_integer(a, t, m, k))  # fmt: skip
                if mode != "rzi":
                    put(f"cvt.rn.{kind}.{t} %d, %a", t, kind,
                        lambda a, k=kind: to_format(Fraction(a), k, "rn"))  # fmt: skip
        for mode in ("rz", "rm", "rp"):
            for t in ("s32", "u32", "s64", "u64"):
                put(f"cvt.{mode}.{kind}.{t} %d, %a", t, kind,
                    lambda a, k=kind, m=mode: to_format(Fraction(a), k, m))  # fmt: skip
    for s, t in (("f64", "f32"), ("f64", "f16"), ("f32", "f16")):
        for mode in ("rn", "rz", "rm", "rp"):
            put(f"cvt.{mode}.{t}.{s} %d, %a", s, t,
                lambda a, t=t, m=mode: narrow(a, t, m))  # fmt: skip
    for mode in ("rn", "rz"):
        put(f"cvt.{mode}.bf16.f32 %d, %a", "f32", "bf16", lambda a, m=mode: narrow(a, "bf16", m))
    put("cvt.f32.f16 %d, %a", "f16", "f32", lambda a: a)
    put("cvt.f64.f16 %d, %a", "f16", "f64", lambda a: a)
    put("cvt.f64.f32 %d, %a", "f32", "f64", lambda a: a)
    put("cvt.f32.bf16 %d, %a", "bf16", "f32", lambda a: a)
    put("cvt.sat.f32.f32 %d, %a", "f32", "f32", saturated)
    put("cvt.rn.relu.bf16.f32 %d, %a", "f32", "bf16", lambda a: _relu(narrow(a, "bf16", "rn")))
    put("cvt.ftz.f64.f32 %d, %a", "f32", "f64", flush)
    put("cvt.rna.tf32.f32 %d, %a", "f32", "f32", lambda a: narrow(a, "tf32", "rna"))
    for mode, f in (("rni", round), ("rzi", math.trunc), ("rmi", math.floor), ("rpi", math.ceil)):
        for kind in ("f32", "f64"):
            put(f"cvt.{mode}.{kind}.{kind} %d, %a", kind, kind,
                lambda a, f=f: a if special(a) else math.copysign(float(f(a)), a))  # fmt: skip
    for half, target in (("f16", "f16x2"), ("bf16", "bf16x2")):
        put(f"cvt.rn.{target}.f32 %d, %a, %b", "f32 f32", "u32", lambda a, b, h=half:
            to_bits(narrow(a, h, "rn"), h) << 16 | to_bits(narrow(b, h, "rn"), h))  # fmt: skip
    for kind in ("e4m3x2", "e5m2x2"):
        put(f"cvt.rn.satfinite.{kind}.f32 %d, %a, %b", "f32 f32", "u16",
            lambda a, b, k=kind: byte(a, k) << 8 | byte(b, k))  # fmt: skip
        put(f"cvt.rn.f16x2.{kind} %d, %a", "b16", "u32",
            lambda a, k=kind: half_of(a >> 8, k) << 16 | half_of(a & 255, k))  # fmt: skip
    return found


def narrow(x: float, kind: str, mode: str) -> float:
    return x if special(x) else to_format(Fraction(x), kind, mode, x)


def to_integer(x: float, kind: str, mode: str, source: str) -> int:
    bits = int(kind[1:])
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if kind[0] == "s" else (0, (1 << bits) - 1)
    if math.isnan(x):
        if source != "f64" and bits < 64:
            return 0
        return low if kind[0] == "s" else 1 << bits - 1
    if math.isinf(x):
        return high if x > 0 else low
    f = {"rni": round, "rzi": math.trunc, "rmi": math.floor, "rpi": math.ceil}[mode]
    return min(max(int(f(Fraction(x))), low), high)


def _eights(kind: str) -> list[float]:
    dtype = ml_dtypes.float8_e4m3fn if kind == "e4m3x2" else ml_dtypes.float8_e5m2
    return [float(v) for v in np.arange(256, dtype=np.uint8).view(dtype)]


EIGHTS = {k: _eights(k) for k in ("e4m3x2", "e5m2x2")}


def byte(x: float, kind: str) -> int:
    """The code of the nearest 8-bit float, ties to the even code; beyond the largest, that one."""
    if math.isnan(x):
        return 0x7F
    values = [v for v in EIGHTS[kind][:128] if math.isfinite(v)]
    m = min(abs(x), values[-1])
    code = min(range(len(values)), key=lambda k: (abs(Fraction(values[k]) - Fraction(m)), k % 2))
    return code | (128 if math.copysign(1, x) < 0 else 0)


def half_of(code: int, kind: str) -> int:
    return to_bits(EIGHTS[kind][code], "f16")


ARITHMETIC = _arithmetic()
CONVERSIONS = _conversions()
