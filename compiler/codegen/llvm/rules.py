"""Scalar operations of the built-in dtypes as LLVM instructions, lane by lane.

Instructions carry no fast-math flags, and only `fma` is fused: by LLVM's intrinsic of that name,
which is a call of the C library where the processor has no such instruction, and rounds once too.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from compiler.arithmetic.scalar_functions import FUNCTIONS
from compiler.errors import LoweringError
from compiler.target.emit import Emitter, Val, llvm_type
from compiler.target.intrinsics import nvptx, wasm
from compiler.target.intrinsics.arm import extreme, nearest_integer
from compiler.target.intrinsics.x86 import limited
from compiler.types.dtypes import BOOL, FLOAT32, FLOAT64, DType

FLOAT16 = DType("float", 16)


_FLOAT = {"Add": "fadd", "Sub": "fsub", "Mul": "fmul", "Div": "fdiv"}
_INT = {
    "Add": "add",
    "Sub": "sub",
    "Mul": "mul",
    "And": "and",
    "Or": "or",
    "Xor": "xor",
    "Shl": "shl",
}
_FCMP = {"LT": "olt", "LE": "ole", "GT": "ogt", "GE": "oge", "EQ": "oeq", "NE": "une"}
_ICMP = {"LT": "lt", "LE": "le", "GT": "gt", "GE": "ge", "EQ": "eq", "NE": "ne"}


def suffix(v: Val) -> str:
    """Type suffix of an overloaded intrinsic, e.g. `v16f32`."""
    scalar = {"half": "f16", "float": "f32", "double": "f64"}.get(v.t, v.t)
    return f"v{v.n}{scalar}" if v.n > 1 else scalar


def binary(
    e: Emitter, op: str, dtype: DType, a: Val, b: Val, enabled: frozenset[str] = frozenset()
) -> Val:
    """`a op b` for operands of a built-in dtype. `enabled`: features of the target.

    Raises:
        LoweringError: the dtype has no such operation.
    """
    if op in _ICMP:
        if dtype.is_float:
            return e.op(f"fcmp {_FCMP[op]} {a}, {b.name}", "i1", a.n)
        sign = "" if op in ("EQ", "NE") else "s" if dtype.kind == "int" else "u"
        return e.op(f"icmp {sign}{_ICMP[op]} {a}, {b.name}", "i1", a.n)
    if dtype.is_float:
        if op in _FLOAT:
            return e.bin(_FLOAT[op], a, b)
        if op in ("Max", "Min"):  # NaN propagates, as in numpy and ONNX
            if (found := extreme(e, op, a, b, enabled)) is not None:
                return found
            return e.call(
                f"llvm.{'maximum' if op == 'Max' else 'minimum'}.{suffix(a)}", a.t, a.n, [a, b]
            )
    elif op in _INT:
        return e.bin(_INT[op], a, b)
    elif op in ("Max", "Min") and dtype.is_integer:
        fn = f"llvm.{'s' if dtype.kind == 'int' else 'u'}{op.lower()}.{suffix(a)}"
        return e.call(fn, a.t, a.n, [a, b])
    elif op == "Div" and dtype.is_integer:
        return _divide(e, dtype.kind == "int", a, b)
    elif op == "Shr" and dtype.is_integer:
        return e.bin("ashr" if dtype.kind == "int" else "lshr", a, b)
    raise LoweringError(f"no operation {op} of {dtype}")


def _divide(e: Emitter, signed: bool, a: Val, b: Val) -> Val:
    """Integer division toward zero; by zero gives 0, and the least number by -1 wraps, where the
    processor would stop the program."""
    zero, one = e.const(0, a.t, a.n), e.const(1, a.t, a.n)
    none = e.op(f"icmp eq {b}, {zero.name}", "i1", a.n)
    safe = e.op(f"select {none}, {one}, {b}", a.t, a.n)
    if not signed:
        return e.op(f"select {none}, {zero}, {e.bin('udiv', a, safe)}", a.t, a.n)
    negated = e.op(f"icmp eq {b}, {e.const(-1, a.t, a.n).name}", "i1", a.n)
    safe = e.op(f"select {negated}, {one}, {safe}", a.t, a.n)
    quotient = e.op(f"select {none}, {zero}, {e.bin('sdiv', a, safe)}", a.t, a.n)
    return e.op(f"select {negated}, {e.bin('sub', zero, a)}, {quotient}", a.t, a.n)


def cast(e: Emitter, a: Val, source: DType, dtype: DType) -> Val:
    """Conversion between built-in dtypes; float to integer truncates and saturates."""
    t = llvm_type(dtype)
    to = Val("", t, a.n).ty
    if source == dtype:
        return a
    if dtype == BOOL:
        zero = e.const(0, a.t, a.n)
        return e.op(f"{'fcmp une' if source.is_float else 'icmp ne'} {a}, {zero.name}", "i1", a.n)
    if source == FLOAT64 and dtype == FLOAT16:
        return e.op(f"fptrunc {_float_to_odd(e, a)} to {to}", t, a.n)
    if source.is_float and dtype.is_float:
        if a.t == "half" and t == "double":  # at once, LLVM makes invalid WebAssembly of it
            a = e.op(f"fpext {a} to {Val('', 'float', a.n).ty}", "float", a.n)
        return e.op(f"{'fpext' if dtype.bits > source.bits else 'fptrunc'} {a} to {to}", t, a.n)
    if (
        source == FLOAT16
    ):  # LLVM's saturating conversion with AVX512-FP16 makes NaN the least integer
        return cast(e, cast(e, a, source, FLOAT32), FLOAT32, dtype)
    signed = "s" if dtype.kind == "int" else "u"
    if source in (FLOAT32, FLOAT64) and a.n > 1 and (dtype.bits < 32 or signed == "s"):
        return _saturated(e, a, dtype)
    if source.is_float:
        return e.call(f"llvm.fpto{signed}i.sat.{suffix(Val('', t, a.n))}.{suffix(a)}", t, a.n, [a])
    if dtype.is_float:
        return e.op(f"{'si' if source.kind == 'int' else 'ui'}tofp {a} to {to}", t, a.n)
    if source != BOOL and dtype.bits == source.bits:
        return a
    if source != BOOL and dtype.bits < source.bits:
        return e.op(f"trunc {a} to {to}", t, a.n)
    return e.op(f"{'sext' if source.kind == 'int' else 'zext'} {a} to {to}", t, a.n)


def _saturated(e: Emitter, a: Val, dtype: DType) -> Val:
    """Lanes of float32 or float64 as integers of up to 32 bits, or signed ones (LLVM does this lane
    by lane). What is no number is converted as well, which the CPU notes as invalid, and becomes 0.
    """
    n, ends, wide = a.n, np.iinfo(dtype.storage), "i64" if dtype.bits == 64 else "i32"
    storage = np.float32 if a.t == "float" else np.float64
    most = storage(ends.max)
    if float(most) > ends.max:
        most = np.nextafter(most, storage(0))
    bounds = [e.const(float(b), a.t, n) for b in (ends.min, most)]
    below, above = (
        e.op(f"fcmp {how} {a}, {b.name}", "i1", n)
        for how, b in zip(("olt", "ogt"), bounds, strict=True)
    )
    inside = e.op(f"select {below}, {bounds[0]}, {a}", a.t, n)
    inside = e.op(f"select {above}, {bounds[1]}, {inside}", a.t, n)
    found = e.op(f"fptosi {inside} to {Val('', wide, n).ty}", wide, n)
    if float(most) < ends.max:
        found = e.op(f"select {above}, {e.const(ends.max, wide, n)}, {found}", wide, n)
    nan = e.op(f"fcmp uno {a}, {a.name}", "i1", n)
    found = e.op(f"select {nan}, {e.const(0, wide, n)}, {found}", wide, n)
    t = llvm_type(dtype)
    return found if t == wide else e.op(f"trunc {found} to {Val('', t, n).ty}", t, n)


def _float_to_odd(e: Emitter, a: Val) -> Val:
    """float32 of float64 lanes rounded to odd, so that it can be rounded once more (Boldo and
    Melquiond, 2008). LLVM converts float64 to float16 by a function that few processes have."""
    n = a.n
    near = e.op(f"fptrunc {a} to {Val('', 'float', n).ty}", "float", n)
    back = e.op(f"fpext {near} to {a.ty}", "double", n)
    size = [e.call(f"llvm.fabs.{suffix(x)}", "double", n, [x]) for x in (a, back)]
    below = e.op(f"fcmp olt {size[1]}, {size[0].name}", "i1", n)
    differs = e.op(f"fcmp one {a}, {back.name}", "i1", n)
    bits = e.bitcast(near, "i32", n)
    one = e.const(1, "i32", n)
    even = e.op(f"icmp eq {e.bin('and', bits, one)}, {e.const(0, 'i32', n).name}", "i1", n)
    up, down = e.bin("add", bits, one), e.bin("sub", bits, one)
    toward = e.op(f"select {below}, {up}, {down}", "i32", n)
    odd = e.bin("and", differs, even)
    return e.bitcast(e.op(f"select {odd}, {toward}, {bits}", "i32", n), "float", n)


def limit(e: Emitter, x: Val, most: Val, enabled: frozenset[str]) -> Val:
    """x, or `most` with its sign if its magnitude is above that; of NaN any number or NaN."""
    found = limited(e, x, most, enabled)
    if found is not None:
        return found
    least = e.op(f"fneg {most}", x.t, x.n)
    for bound, beyond in ((most, "ogt"), (least, "olt")):
        outside = e.op(f"fcmp {beyond} {x}, {bound.name}", "i1", x.n)
        x = e.op(f"select {outside}, {bound}, {x}", x.t, x.n)
    return x


def nearest(e: Emitter, x: Val, enabled: frozenset[str], small: bool = False) -> Val:
    """Floats as the nearest int32, ties to even; what has none becomes any number. `small`: they
    are known to be within `wasm.SMALL`."""
    found = nearest_integer(e, x, enabled)
    if found is None:
        found = nvptx.nearest_integer(e, x, enabled)
    if found is None:
        found = wasm.rounded(e, x, enabled, small)
    if found is not None:
        return found
    return e.call(f"llvm.lrint.{suffix(Val('', 'i32', x.n))}.{suffix(x)}", "i32", x.n, [x])


def function(
    e: Emitter,
    fn: str,
    dtype: DType,
    args: Sequence[Val],
    enabled: frozenset[str] = frozenset(),
) -> Val:
    """A scalar function that is one LLVM operation, or a call of the C library in float64.
    `enabled`: features of the target, where its instructions are to be preferred.

    Raises:
        LoweringError: there is no such function of the dtype.
    """
    a = args[0]
    if fn == "bits":
        return e.bitcast(a, llvm_type(dtype), a.n)
    if fn == "fma" and (found := wasm.multiply_add(e, args, enabled)) is not None:
        return found
    if fn == "abs" and dtype.kind == "int":
        return e.call(f"llvm.abs.{suffix(a)}", a.t, a.n, [a, Val("false", "i1")])
    f = FUNCTIONS.get(fn)
    intrinsic = "llvm.fma" if fn == "fma" else None if f is None else f.llvm
    if intrinsic is not None and dtype.is_float:
        return e.call(f"{intrinsic}.{suffix(a)}", a.t, a.n, args)
    if f is not None and f.c is not None and a.t == "double":
        return e.gather_lanes(
            [e.call(f.c, "double", 1, [e.extract(x, k) for x in args]) for k in range(a.n)]
        )
    if f is not None and f.c is not None and dtype.is_float:
        wide = [cast(e, x, dtype, FLOAT64) for x in args]
        return cast(e, function(e, fn, FLOAT64, wide), FLOAT64, dtype)
    raise LoweringError(f"no function {fn} of {dtype}")
