"""NVPTX: dp4a, the 4-way int8 dot product of one thread (compute capability 6.1 and newer)."""

from __future__ import annotations

from compiler.target.emit import Emitter, Val
from compiler.tensor.intrinsic import Emit, dot_product


def nearest_integer(e: Emitter, x: Val, enabled: frozenset[str]) -> Val | None:
    """Floats as the nearest int32, ties to even; None: this is no GPU."""
    if "sm_61" not in enabled:
        return None
    fn = "llvm.nvvm.f2i.rn" if x.t == "float" else "llvm.nvvm.d2i.rn"
    return e.gather_lanes([e.call(fn, "i32", 1, [e.extract(x, k)]) for k in range(x.n)])


def _dp4a(signs: str) -> Emit:
    def emit(e: Emitter, c: Val, a: list[Val], b: list[Val]) -> Val:
        words = [e.bitcast(v[0], "i32") for v in (a, b)]
        return e.call(f"llvm.nvvm.idp4a.{signs}", "i32", 1, [*words, c])

    return emit


DP4A_SIGNED = dot_product("dp4a.s32.s32", 1, _dp4a("s.s"), data="int8", features=("sm_61",))
DP4A_UNSIGNED = dot_product("dp4a.u32.s32", 1, _dp4a("u.s"), features=("sm_61",))
INTRINSICS = (DP4A_SIGNED, DP4A_UNSIGNED)
