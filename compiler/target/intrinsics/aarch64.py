"""AArch64: 4-way int8 dot products (Armv8.2 dot product; Armv8.6 i8mm, which takes unsigned
activations), and pairwise ones of signed bytes on every CPU.

Without i8mm no instruction multiplies unsigned by signed bytes: activations are made signed instead
(see `compiler.transform.fold_zero_point`).
"""

from __future__ import annotations

from compiler.target.emit import Emitter, Val
from compiler.tensor.intrinsic import Emit, dot_product

_NEON = "llvm.aarch64.neon."


def _dot(instruction: str) -> Emit:
    def emit(e: Emitter, c: Val, a: list[Val], b: list[Val]) -> Val:
        return e.call(f"{_NEON}{instruction}.v4i32.v16i8", "i32", 4, [c, a[0], b[0]])

    return emit


def _pairs(e: Emitter, c: Val, a: list[Val], b: list[Val]) -> Val:
    """smull, sadalp: products of int8 are exact in int16, and sums of two in int32."""
    products = e.call(f"{_NEON}smull.v8i16", "i16", 8, [a[0], b[0]])
    return e.bin("add", c, e.call(f"{_NEON}saddlp.v4i32.v8i16", "i32", 4, [products]))


USDOT = dot_product("usdot", 4, _dot("usdot"), features=("i8mm",))
SDOT = dot_product("sdot", 4, _dot("sdot"), data="int8", features=("dotprod",))
SMULL = dot_product("smull.sadalp", 4, _pairs, 2, data="int8", features=("neon",))
INTRINSICS = (USDOT, SDOT, SMULL)
