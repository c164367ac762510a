"""Cortex-M: dot products of bytes by smlad, floats to integers in one instruction."""

from __future__ import annotations

from compiler.target.emit import Emitter, Val
from compiler.tensor.intrinsic import dot_product


def _smlad(e: Emitter, c: Val, a: list[Val], b: list[Val]) -> Val:
    """Four products for each sum by two instructions, which multiply pairs of int16: the bytes at
    even places of a word, and those at odd places."""
    x, w = (e.bitcast(v[0], "i32", c.n) for v in (a, b))
    sums = []
    for lane in range(c.n):
        total, data, weight = (e.extract(v, lane) for v in (c, x, w))
        for turn in (0, 8):
            pairs = []
            for word, widen in ((data, "uxtb16"), (weight, "sxtb16")):
                if turn:
                    turned = [word, word, e.const(turn, "i32")]
                    word = e.call("llvm.fshr.i32", "i32", 1, turned)
                pairs.append(e.call(f"llvm.arm.{widen}", "i32", 1, [word]))
            total = e.call("llvm.arm.smlad", "i32", 1, [*pairs, total])
        sums.append(total)
    return e.gather_lanes(sums)


def _vmladava(e: Emitter, c: Val, a: list[Val], b: list[Val]) -> Val:
    """A vector of products for one sum, of signed bytes or of what they are widened to as they are
    loaded."""
    return _added(e, c, *(_filling(e, v[0], "sext") for v in (a, b)))


def _unsigned_vmladava(e: Emitter, c: Val, a: list[Val], b: list[Val]) -> Val:
    return _added(e, c, _filling(e, a[0], "zext"), _filling(e, b[0], "sext"))


def _filling(e: Emitter, v: Val, how: str) -> Val:
    """Bytes widened to fill a vector of 128 bits, unless they do."""
    wide = f"i{128 // v.n}"
    return v if v.t == wide else e.op(f"{how} {v} to <{v.n} x {wide}>", wide, v.n)


def _added(e: Emitter, c: Val, a: Val, b: Val) -> Val:
    plain = [e.const(0, "i32")] * 3  # signed, added, in order
    return e.call(f"llvm.arm.mve.vmldava.v{a.n}{a.t}", "i32", 1, [*plain, c, a, b])


SMLAD = dot_product("smlad.2", 2, _smlad, features=("dsp",))
VMLADAVA = tuple(
    dot_product(f"vmladava.{n}", 1, _vmladava, steps=n, data="int8", features=("mve",))
    for n in (16, 8, 4)
)
"""Of signed bytes: by the sixteen; few channels, filled up to 4 or 8, widened."""
UNSIGNED_VMLADAVA = dot_product("vmladava.8u", 1, _unsigned_vmladava, steps=8, features=("mve",))
INTRINSICS = (*VMLADAVA, UNSIGNED_VMLADAVA, SMLAD)


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


def extreme(e: Emitter, op: str, a: Val, b: Val, enabled: frozenset[str]) -> Val | None:
    """The larger (`op` Max) or smaller of float64 or float16 lanes, as `llvm.maximum` has it, where
    LLVM aborts on that: on processors of this kind. None elsewhere."""
    if a.t not in ("double", "half") or "dsp" not in enabled:
        return None
    if a.t == "half":
        wide = Val("", "float", a.n)
        both = [e.op(f"fpext {v} to {wide.ty}", "float", v.n) for v in (a, b)]
        fn = f"llvm.{'maximum' if op == 'Max' else 'minimum'}.{f'v{a.n}' if a.n > 1 else ''}f32"
        found = e.call(fn, "float", a.n, both)
        return e.op(f"fptrunc {found} to {a.ty}", a.t, a.n)
    first = e.op(f"fcmp {'ogt' if op == 'Max' else 'olt'} {a}, {b.name}", "i1", a.n)
    chosen = e.op(f"select {first}, {a}, {b}", a.t, a.n)
    # Equal numbers differ in the signs of zeros.
    bits = e.bin("and" if op == "Max" else "or", *(e.bitcast(v, "i64", v.n) for v in (a, b)))
    equal = e.op(f"fcmp oeq {a}, {b.name}", "i1", a.n)
    chosen = e.op(f"select {equal}, {e.bitcast(bits, a.t, a.n)}, {chosen}", a.t, a.n)
    nan = e.op(f"fcmp uno {a}, {b.name}", "i1", a.n)
    return e.op(f"select {nan}, {e.bin('fadd', a, b)}, {chosen}", a.t, a.n)
