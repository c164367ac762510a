"""AVX-512 DQ: the number of lesser magnitude of two, lane by lane."""

from __future__ import annotations

from compiler.target.emit import Emitter, Val


def limited(e: Emitter, x: Val, most: Val, enabled: frozenset[str]) -> Val | None:
    """x, or `most` with its sign if its magnitude is above that; None where a target with the
    features `enabled` has no instruction for it."""
    if (x.t, x.n) != ("float", 16) or "avx512dq" not in enabled:
        return None
    lesser, everywhere, rounding = Val("2", "i32"), Val("-1", "i16"), Val("4", "i32")
    args = [x, most, lesser, x, everywhere, rounding]
    return e.call("llvm.x86.avx512.mask.range.ps.512", x.t, x.n, args)
