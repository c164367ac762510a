"""Instructions and what they mean, in Python's integers and fractions: the table of the tests."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Case:
    """`code` computes %d, of type `target`, of %a, %b, ...; `meaning`: the same of Python's
    numbers (integers, unless a type is a float), for one thread."""

    code: str
    sources: tuple[str, ...]
    target: str
    meaning: Callable[..., Any]


def wrap(v: int, kind: str) -> int:
    bits = int(kind[1:])
    v &= (1 << bits) - 1
    return v - (1 << bits) if kind[0] == "s" and v >> (bits - 1) else v


def trunc_div(a: int, b: int) -> int:
    q = abs(a) // abs(b)
    return -q if (a < 0) != (b < 0) else q


def f32(x: float) -> float:
    try:
        return float(struct.unpack("<f", struct.pack("<f", x))[0])
    except OverflowError:
        return math.copysign(math.inf, x)


def _integers() -> list[Case]:
    cases = []

    def add(code: str, sources: str, target: str, meaning: Callable[..., Any]) -> None:
        cases.append(Case(code, tuple(sources.split()), target, meaning))

    for k in ("u16", "s16", "u32", "s32", "u64", "s64"):
        two, bits = f"{k} {k}", int(k[1:])
        add(f"add.{k} %d, %a, %b", two, k, lambda a, b, k=k: wrap(a + b, k))
        add(f"sub.{k} %d, %a, %b", two, k, lambda a, b, k=k: wrap(a - b, k))
        add(f"mul.lo.{k} %d, %a, %b", two, k, lambda a, b, k=k: wrap(a * b, k))
        add(f"mul.hi.{k} %d, %a, %b", two, k, lambda a, b, k=k, n=bits: wrap(a * b >> n, k))
        add(f"mad.lo.{k} %d, %a, %b, %c", f"{two} {k}", k,
            lambda a, b, c, k=k: wrap(a * b + c, k))  # fmt: skip
        add(f"mad.hi.{k} %d, %a, %b, %c", f"{two} {k}", k,
            lambda a, b, c, k=k, n=bits: wrap((a * b >> n) + c, k))  # fmt: skip
        if bits < 64:
            w = f"{k[0]}{2 * bits}"
            add(f"mul.wide.{k} %d, %a, %b", two, w, lambda a, b, w=w: wrap(a * b, w))
            add(f"mad.wide.{k} %d, %a, %b, %c", f"{two} {w}", w,
                lambda a, b, c, w=w: wrap(a * b + c, w))  # fmt: skip
        add(f"div.{k} %d, %a, %b", two, k,
            lambda a, b, k=k: wrap(trunc_div(a, b), k) if b else wrap(-1, k))  # fmt: skip
        add(f"rem.{k} %d, %a, %b", two, k,
            lambda a, b, k=k: wrap(a - b * trunc_div(a, b), k) if b else a)  # fmt: skip
        add(f"min.{k} %d, %a, %b", two, k, min)
        add(f"max.{k} %d, %a, %b", two, k, max)
        add(f"sad.{k} %d, %a, %b, %c", f"{two} {k}", k,
            lambda a, b, c, k=k: wrap(c + abs(a - b), k))  # fmt: skip
        add(f"shr.{k} %d, %a, %b", f"{k} u32", k, lambda a, b: a >> min(b, 64))
        if k[0] == "s":
            add(f"abs.{k} %d, %a", k, k, lambda a, k=k: wrap(abs(a), k))
            add(f"neg.{k} %d, %a", k, k, lambda a, k=k: wrap(-a, k))
        for order, f in (("eq", "=="), ("ne", "!="), ("lt", "<"), ("le", "<="), ("gt", ">"),
                         ("ge", ">=")):  # fmt: skip
            add(f"setp.{order}.{k} %p, %a, %b; selp.b32 %d, 7, -3, %p", two, "s32",
                lambda a, b, f=f: 7 if eval(f"a {f} b") else -3)  # fmt: skip
    for order, f in (("lo", "<"), ("ls", "<="), ("hi", ">"), ("hs", ">=")):
        add(f"setp.{order}.u32 %p, %a, %b; selp.b32 %d, 1, 0, %p", "u32 u32", "u32",
            lambda a, b, f=f: int(eval(f"a {f} b")))  # fmt: skip
    for k in ("b16", "b32", "b64"):
        u, n = f"u{k[1:]}", int(k[1:])
        add(f"and.{k} %d, %a, %b", f"{k} {k}", u, lambda a, b: a & b)
        add(f"or.{k} %d, %a, %b", f"{k} {k}", u, lambda a, b: a | b)
        add(f"xor.{k} %d, %a, %b", f"{k} {k}", u, lambda a, b: a ^ b)
        add(f"not.{k} %d, %a", k, u, lambda a, u=u: wrap(~a, u))
        add(f"cnot.{k} %d, %a", k, u, lambda a: int(a == 0))
        add(f"shl.{k} %d, %a, %b", f"{k} u32", u,
            lambda a, b, u=u: wrap(a << min(b, 64), u))  # fmt: skip
        if n > 16:
            add(f"popc.{k} %d, %a", k, "u32", lambda a: a.bit_count())
            add(f"clz.{k} %d, %a", k, "u32", lambda a, n=n: n - a.bit_length())
            add(f"brev.{k} %d, %a", k, u, lambda a, n=n: int(f"{a:0{n}b}"[::-1], 2))
            add(f"bfi.{k} %d, %a, %b, %c, %e", f"{k} {k} u32 u32", u,
                lambda a, b, c, e, n=n: _insert(a, b, c, e, n))  # fmt: skip
    for k in ("u32", "s32", "u64", "s64"):
        bits = int(k[1:])
        add(f"bfe.{k} %d, %a, %b, %c", f"{k} u32 u32", k,
            lambda a, b, c, k=k: _extract(a, b, c, k))  # fmt: skip
        add(f"bfind.{k} %d, %a", k, "u32", lambda a, k=k: wrap(_top(a), "u32"))
        add(f"bfind.shiftamt.{k} %d, %a", k, "u32",
            lambda a, n=bits: wrap(n - 1 - _top(a) if _top(a) + 1 else -1, "u32"))  # fmt: skip
    add("add.sat.s32 %d, %a, %b", "s32 s32", "s32",
        lambda a, b: min(max(a + b, -(2**31)), 2**31 - 1))  # fmt: skip
    add("sub.sat.s32 %d, %a, %b", "s32 s32", "s32",
        lambda a, b: min(max(a - b, -(2**31)), 2**31 - 1))  # fmt: skip
    add("mad.hi.sat.s32 %d, %a, %b, %c", "s32 s32 s32", "s32",
        lambda a, b, c: min(max((a * b >> 32) + c, -(2**31)), 2**31 - 1))  # fmt: skip
    for op, f in (("add", lambda a, b: a + b), ("sub", lambda a, b: a - b)):
        code = (f"mov.b64 {{%t0, %t1}}, %a; mov.b64 {{%t2, %t3}}, %b; {op}.cc.u32 %t0, %t0, %t2; "
                f"{op}c.u32 %t1, %t1, %t3; mov.b64 %d, {{%t0, %t1}}")  # fmt: skip
        add(code, "u64 u64", "u64", lambda a, b, f=f: wrap(f(a, b), "u64"))
    add("mov.b64 {%t0, %t1}, %c; mad.lo.cc.u32 %t0, %a, %b, %t0; madc.hi.u32 %t1, %a, %b, %t1; "
        "mov.b64 %d, {%t0, %t1}", "u32 u32 u64", "u64",
        lambda a, b, c: wrap(a * b + c, "u64"))  # fmt: skip
    add("shf.l.wrap.b32 %d, %a, %b, %c", "b32 b32 u32", "u32",
        lambda a, b, c: wrap(((b << 32 | a) << (c & 31)) >> 32, "u32"))  # fmt: skip
    add("shf.r.wrap.b32 %d, %a, %b, %c", "b32 b32 u32", "u32",
        lambda a, b, c: wrap((b << 32 | a) >> (c & 31), "u32"))  # fmt: skip
    add("shf.l.clamp.b32 %d, %a, %b, %c", "b32 b32 u32", "u32",
        lambda a, b, c: wrap(((b << 32 | a) << min(c, 32)) >> 32, "u32"))  # fmt: skip
    add("shf.r.clamp.b32 %d, %a, %b, %c", "b32 b32 u32", "u32",
        lambda a, b, c: wrap((b << 32 | a) >> min(c, 32), "u32"))  # fmt: skip
    for table in (0x00, 0x96, 0xE8, 0xCA, 0x1D, 0xFF):
        add(f"lop3.b32 %d, %a, %b, %c, {table}", "b32 b32 b32", "u32",
            lambda a, b, c, t=table: _lop3(a, b, c, t))  # fmt: skip
    add("prmt.b32 %d, %a, %b, %c", "b32 b32 b32", "u32", _prmt)
    add("bmsk.clamp.b32 %d, %a, %b", "u32 u32", "u32",
        lambda a, b: wrap(((1 << min(b, 32)) - 1) << min(a, 32), "u32"))  # fmt: skip
    add("mul24.lo.s32 %d, %a, %b", "s32 s32", "s32",
        lambda a, b: wrap(wrap24(a, True) * wrap24(b, True), "s32"))  # fmt: skip
    add("mul24.lo.u32 %d, %a, %b", "u32 u32", "u32",
        lambda a, b: wrap(wrap24(a, False) * wrap24(b, False), "u32"))  # fmt: skip
    for ka in "su":
        for kb in "su":
            to = "u32" if ka == kb == "u" else "s32"
            add(f"dp4a.{ka}32.{kb}32 %d, %a, %b, %c", f"{ka}32 {kb}32 {to}", to,
                lambda a, b, c, x=ka, y=kb, to=to: wrap(c + sum(
                    _part(a, k, x, 8) * _part(b, k, y, 8) for k in range(4)), to))  # fmt: skip
            for m, at in (("lo", 0), ("hi", 2)):
                add(f"dp2a.{m}.{ka}32.{kb}32 %d, %a, %b, %c", f"{ka}32 {kb}32 {to}", to,
                    lambda a, b, c, x=ka, y=kb, to=to, h=at: wrap(
                        c + _part(a, 0, x, 16) * _part(b, h, y, 8)
                        + _part(a, 1, x, 16) * _part(b, h + 1, y, 8), to))  # fmt: skip
    for s in ("u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64"):
        for t in ("u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64"):
            wide = f"{t[0]}{max(int(t[1:]), 16)}"
            if s != t:
                add(f"cvt.{t}.{s} %d, %a", s, wide,
                    lambda a, s=s, t=t, w=wide: wrap(wrap(a, t), w))  # fmt: skip
            if any(clip(v, t) != v for v in (clip(-(2**63), s), clip(2**64, s))):
                add(f"cvt.sat.{t}.{s} %d, %a", s, wide, lambda a, t=t, w=wide: wrap(clip(a, t), w))
    add(
        "cvt.pack.sat.s8.s32.b32 %d, %a, %b, %c",
        "s32 s32 b32",
        "u32",
        lambda a, b, c: wrap(c << 16 | (clip(a, "s8") & 255) << 8 | clip(b, "s8") & 255, "u32"),
    )
    add("cvt.pack.sat.u16.s32 %d, %a, %b", "s32 s32", "u32",
        lambda a, b: clip(a, "u16") << 16 | clip(b, "u16"))  # fmt: skip
    return cases


def wrap24(v: int, signed: bool) -> int:
    v &= (1 << 24) - 1
    return v - (1 << 24) if signed and v >> 23 else v


def clip(v: int, kind: str) -> int:
    bits = int(kind[1:])
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if kind[0] == "s" else (0, (1 << bits) - 1)
    return min(max(v, low), high)


def _part(v: int, k: int, sign: str, bits: int) -> int:
    return wrap(v >> bits * k, f"{sign}{bits}")


def _top(v: int) -> int:
    return (v if v >= 0 else ~v).bit_length() - 1


def _insert(a: int, b: int, c: int, e: int, n: int) -> int:
    start, length = c & 255, e & 255
    mask = ((1 << length) - 1) << start & (1 << n) - 1
    return (b & ~mask) | (a << start & mask)


def _extract(a: int, b: int, c: int, kind: str) -> int:
    start, length = b & 255, c & 255
    if not length:
        return 0
    if kind[0] == "u":
        return a >> start & (1 << length) - 1
    return wrap(a >> start, f"s{length}")


def _lop3(a: int, b: int, c: int, table: int) -> int:
    out = 0
    for k in range(32):
        row = (a >> k & 1) << 2 | (b >> k & 1) << 1 | c >> k & 1
        out |= (table >> row & 1) << k
    return out


def _prmt(a: int, b: int, c: int) -> int:
    pool, out = (b << 32 | a).to_bytes(8, "little"), []
    for k in range(4):
        pick = c >> 4 * k & 15
        v = pool[pick & 7]
        out.append((255 if v & 128 else 0) if pick & 8 else v)
    return int.from_bytes(bytes(out), "little")


INTEGERS = _integers()
EDGES = (0, 1, 2, 3, 5, 7, 8, 15, 16, 31, 32, 33, 63, 64, 127, 128, 255, 256, 0x7FFF, 0x8000,
         0xFFFF, 0x10000, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 1 << 32, (1 << 63) - 1, 1 << 63,
         (1 << 64) - 1)  # fmt: skip


def integers(rng: np.random.Generator, kind: str, n: int) -> np.ndarray[Any, Any]:
    """Values of an integer type: edges, small ones and any."""
    bits = int(kind[1:])
    edges = np.array([e & (1 << bits) - 1 for e in EDGES] + [-e & (1 << bits) - 1 for e in EDGES],
                     np.uint64)  # fmt: skip
    any_ = rng.integers(0, 2**64, n, dtype=np.uint64) >> np.uint64(64 - bits)
    small = rng.integers(0, 70, n).astype(np.uint64)
    pick = rng.integers(0, 4, n)
    chosen = np.where(pick == 0, rng.choice(edges, n), np.where(pick == 1, small, any_))
    raw = chosen.astype(f"u{bits // 8}")
    return raw.view(f"i{bits // 8}") if kind[0] == "s" else raw
