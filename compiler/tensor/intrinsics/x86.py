"""x86: 4-way int8 dot products."""

from __future__ import annotations

from compiler.codegen.emit import Emitter, Val
from compiler.tensor.intrinsics.intrinsic import Emit, dot_product


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


VPDPBUSD_512 = dot_product("vpdpbusd.512", 16, _vpdpbusd(512), features=("avx512vnni",))
VPDPBUSD_256 = dot_product("vpdpbusd.256", 8, _vpdpbusd(256), features=("avx512vnni", "avx512vl"))
PMADDWD = dot_product("pmaddwd", 8, _maddwd, features=("avx2",))
INTRINSICS = (VPDPBUSD_512, VPDPBUSD_256, PMADDWD)
