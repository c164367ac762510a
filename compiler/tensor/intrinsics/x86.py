"""x86: 4-way int8 dot products, and int32 clipped to bytes."""

from __future__ import annotations

from compiler.codegen.emit import Emitter, Val
from compiler.dtypes import INT32, UINT8
from compiler.symbolic import Index, Var
from compiler.tensor.expr import maximum, minimum
from compiler.tensor.intrinsics.intrinsic import Emit, Intrinsic, dot_product
from compiler.tensor.stmt import Buffer, Store


def _vpdpbusd(bits: int) -> Emit:
    lanes = bits // 32

    def emit(e: Emitter, c: Val, a: list[Val], b: list[Val]) -> Val:
        return e.call(f"llvm.x86.avx512.vpdpbusd.{bits}", "i32", lanes, [c, a[0], b[0]])

    return emit


def _maddwd(e: Emitter, c: Val, a: list[Val], b: list[Val]) -> Val:
    """AVX2 without VNNI, exact: widen to int16, multiply-add pairs, add the two pairs of each quad.
    (vpmaddubsw would saturate.)"""
    x = e.op(f"zext {a[0]} to <{a[0].n} x i16>", "i16", a[0].n)
    y = e.op(f"sext {b[0]} to <{b[0].n} x i16>", "i16", b[0].n)
    halves = [
        e.call(
            "llvm.x86.avx2.pmadd.wd", "i32", 8,
            [e.shuffle(z, z, list(range(k, k + 16))) for z in (x, y)],
        )
        for k in (0, 16)
    ]  # fmt: skip
    even, odd = (e.shuffle(halves[0], halves[1], list(range(k, 16, 2))) for k in (0, 1))
    return e.bin("add", c, e.bin("add", even, odd))


def _pack(e: Emitter, _: None, v: list[Val]) -> Val:
    """Four vectors of 16, saturated to int16 and then to uint8, which leaves four bytes of each in
    turn; vectors that are missing repeat others."""
    v = [*v, v[-1]] if len(v) % 2 else v
    words = [
        e.call("llvm.x86.avx512.packssdw.512", "i16", 32, [a, b])
        for a, b in zip(v[::2], v[1::2], strict=True)
    ]
    return e.call("llvm.x86.avx512.packuswb.512", "i8", 64, [words[0], words[-1]])


def _narrow(count: int) -> Intrinsic:
    """`count` neighbouring vectors of 16 int32, clipped to uint8 and stored as bytes."""
    out = Buffer("out", (Index.of(count), Index.of(16)), UINT8)
    v = Buffer("v", (Index.of(count), Index.of(16)), INT32)

    def semantics(p: Var, o: Var) -> Store:
        return Store("", out, (p, o), minimum(maximum(v[p, o], 0), 255).astype("uint8"))

    at = [(4 * part + j, p) for part in range(4) for p in range(4) for j in range(4)]
    order = tuple(16 * p + o if p < count else None for o, p in at)
    return Intrinsic(
        f"narrow.{count}x16", {"p": count, "o": 16}, {"v": ("o",)}, semantics, _pack, ("p", "o"),
        order, features=("avx512bw",),
    )  # fmt: skip


VPDPBUSD_512 = dot_product("vpdpbusd.512", 16, _vpdpbusd(512), features=("avx512vnni",))
VPDPBUSD_256 = dot_product("vpdpbusd.256", 8, _vpdpbusd(256), features=("avx512vnni", "avx512vl"))
PMADDWD = dot_product("pmaddwd", 8, _maddwd, features=("avx2",))
NARROW = tuple(_narrow(count) for count in (4, 3, 2, 1))
INTRINSICS = (VPDPBUSD_512, VPDPBUSD_256, PMADDWD, *NARROW)
