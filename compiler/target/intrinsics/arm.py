"""Cortex-M: floats to integers in one instruction."""

from __future__ import annotations

from compiler.target.emit import Emitter, Val


def nearest_integer(e: Emitter, x: Val, enabled: frozenset[str]) -> Val | None:
    """The nearest int32 of float32 lanes, ties to even, one by one; None where a target with the
    features `enabled` has no such instruction. (LLVM calls a function of the C library.)"""
    if x.t != "float" or "vfp4d16sp" not in enabled:
        return None
    found = [
        e.bitcast(e.call("llvm.arm.vcvtr.f32", "float", 1, [e.extract(x, k)]), "i32")
        for k in range(x.n)
    ]
    return e.gather_lanes(found)
