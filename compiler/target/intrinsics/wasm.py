"""WebAssembly's vectors of 128 bits: 4-way int8 and 2-way int16 dot products."""

from __future__ import annotations

from compiler.target.emit import Emitter, Val
from compiler.tensor.intrinsic import dot_product

_PAIRS = "llvm.wasm.dot"
"""i32x4.dot_i16x8_s: int16 multiplied and added in pairs; exact, but for (-32768)**2 twice."""


def _bytes(e: Emitter, c: Val, a: list[Val], b: list[Val]) -> Val:
    """Bytes at even places and at odd places are widened to int16 where they are, and multiplied
    and added in pairs: what neighbours in a tile share is widened once."""
    x, y = (e.bitcast(v[0], "i16", 8) for v in (a, b))
    eight = e.const(8, "i16", 8)
    even = [
        e.bin("and", x, e.const(255, "i16", 8)),
        e.bin("ashr", e.bin("shl", y, eight), eight),
    ]
    odd = [e.bin("lshr", x, eight), e.bin("ashr", y, eight)]
    for pair in (even, odd):
        c = e.bin("add", c, e.call(_PAIRS, "i32", 4, pair))
    return c


def _pairs(e: Emitter, c: Val, a: list[Val], b: list[Val]) -> Val:
    return e.bin("add", c, e.call(_PAIRS, "i32", 4, [a[0], b[0]]))


DOT4 = dot_product("dot4.wasm", 4, _bytes, features=("simd128",))
DOT2 = dot_product("dot2.wasm", 4, _pairs, 2, "int16", "int16", features=("simd128",))
INTRINSICS = (DOT4, DOT2)
