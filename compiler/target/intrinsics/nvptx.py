"""NVPTX: dp4a, the 4-way int8 dot product of one thread (compute capability 6.1 and newer)."""

from __future__ import annotations

from compiler.target.emit import Emitter, Val
from compiler.tensor.intrinsic import Emit, dot_product


def _dp4a(signs: str) -> Emit:
    def emit(e: Emitter, c: Val, a: list[Val], b: list[Val]) -> Val:
        words = [e.bitcast(v[0], "i32") for v in (a, b)]
        return e.call(f"llvm.nvvm.idp4a.{signs}", "i32", 1, [*words, c])

    return emit


DP4A_SIGNED = dot_product("dp4a.s32.s32", 1, _dp4a("s.s"), data="int8", features=("sm_61",))
DP4A_UNSIGNED = dot_product("dp4a.u32.s32", 1, _dp4a("u.s"), features=("sm_61",))
INTRINSICS = (DP4A_SIGNED, DP4A_UNSIGNED)
