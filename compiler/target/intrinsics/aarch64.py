"""AArch64: sdot (Armv8.2 dot product), on signed activations."""

from __future__ import annotations

from compiler.target.emit import Emitter, Val
from compiler.tensor.intrinsic import dot_product


def _emit(e: Emitter, c: Val, a: list[Val], b: list[Val]) -> Val:
    return e.call("llvm.aarch64.neon.sdot.v4i32.v16i8", "i32", 4, [c, a[0], b[0]])


SDOT = dot_product("sdot", 4, _emit, data="int8", features=("dotprod",))
INTRINSICS = (SDOT,)
