"""WebAssembly's vectors of 128 bits: 4-way int8 and 2-way int16 dot products; and what there is no
instruction for, in a few: rounding to integers, and fused multiply-add of float32.

Of relaxed SIMD, whose results depend on the machine, the dot product is used where they do not. Its
fused multiply-add may or may not fuse."""

from __future__ import annotations

from collections.abc import Sequence

from compiler.target.emit import Emitter, Val
from compiler.tensor.intrinsic import dot_product

_SEVEN = "llvm.wasm.relaxed.dot.i8x16.i7x16.add.signed"
"""i32x4.relaxed_dot_i8x16_i7x16_add_s: one instruction of x86 with AVX-VNNI and of ARM with dot
products, a few of others; exact if the second operand has 7 bits."""
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


def _seven_bits(e: Emitter, c: Val, a: list[Val], b: list[Val]) -> Val:
    """The factor that has to be within 0 and 127, lest the result depend on the machine, comes
    second. Data of one pixel are masked once for all its outputs."""
    data = e.bin("and", a[0], e.const(127, "i8", 16))
    return e.call(_SEVEN, "i32", 4, [b[0], data, c])


def _wide_data(e: Emitter, c: Val, a: list[Val], b: list[Val]) -> Val:
    """Weights are widened by the instruction that loads them."""
    weight = e.op(f"sext {b[0]} to <8 x i16>", "i16", 8)
    return e.bin("add", c, e.call(_PAIRS, "i32", 4, [a[0], weight]))


DOT4 = dot_product("dot4.wasm", 4, _bytes, features=("simd128",), widens=True)
DOT2 = dot_product("dot2.wasm", 4, _pairs, 2, "int16", "int16", features=("simd128",))
DOT2_BYTES = dot_product(
    "dot2.bytes.wasm", 4, _wide_data, 2, "int16", "int8", features=("simd128",)
)
DOT7 = dot_product("dot7.wasm", 4, _seven_bits, features=("relaxed-simd",), data_bits=7)
INTRINSICS = (DOT7, DOT4, DOT2, DOT2_BYTES)


SMALL = 1 << 22
"""Numbers within this are rounded by adding `_WHOLE`: sums around that are whole, rounded to the
nearest, halves to even, and their lowest bits are the integer."""
_WHOLE, _WHOLE_BITS = 1.5 * 2**23, 0x4B400000


def rounded(e: Emitter, x: Val, enabled: frozenset[str], small: bool = False) -> Val | None:
    """float32 to the nearest int32, halves to even; what is beyond becomes the nearest there is,
    NaN 0. `small`: it is known to be within `SMALL`, for which two instructions do, where engines
    write ten of x86. None without vectors: a function of the C library does it then."""
    if "simd128" not in enabled or x.t != "float":
        return None
    if small:
        return _small(e, x)
    near = e.call(f"llvm.roundeven.{_suffix(x)}", "float", x.n, [x])
    to = Val("", "i32", x.n)
    return e.call(f"llvm.fptosi.sat.{_suffix(to)}.{_suffix(x)}", "i32", x.n, [near])


def clips_first(low: int, high: int, enabled: frozenset[str]) -> bool:
    """Whether float32 that become integers from `low` to `high` had rather be clipped before they
    are rounded."""
    return "simd128" in enabled and max(-low, high) <= SMALL


def clipped(e: Emitter, x: Val, low: int, high: int) -> Val:
    """float32 to the nearest int32 from `low` to `high` (see `clips_first`); NaN becomes `low`."""
    for bound, beyond in ((low, "ogt"), (high, "olt")):
        limit = e.const(float(bound), "float", x.n)
        inside = e.op(f"fcmp {beyond} {x}, {limit.name}", "i1", x.n)
        x = e.op(f"select {inside}, {x}, {limit}", "float", x.n)
    return _small(e, x)


def _small(e: Emitter, x: Val) -> Val:
    bits = e.bitcast(e.bin("fadd", x, e.const(_WHOLE, "float", x.n)), "i32", x.n)
    return e.bin("sub", bits, e.const(_WHOLE_BITS, "i32", x.n))


def multiply_add(e: Emitter, args: Sequence[Val], enabled: frozenset[str]) -> Val | None:
    """a * b + c of float32 `args`, rounded once: float64 holds the product, and the sum to odd
    (see `compiler.arithmetic.fused_multiply_add`), which is the last bit that float32 needs. None
    without vectors."""
    a, b, c = args
    if "simd128" not in enabled or a.t != "float":
        return None
    n, double = a.n, Val("", "double", a.n).ty
    x, y, z = (e.op(f"fpext {v} to {double}", "double", n) for v in (a, b, c))
    product = e.bin("fmul", x, y)
    total = e.bin("fadd", product, z)
    added = e.bin("fsub", total, product)
    rest = e.bin("fsub", product, e.bin("fsub", total, added))
    error = e.bin("fadd", rest, e.bin("fsub", z, added))  # D. Knuth's two-sum: exact
    zero, one = e.const(0, "double", n), e.const(1, "i64", n)
    signs = [e.op(f"fcmp olt {v}, {zero.name}", "i1", n) for v in (error, total)]
    bits = e.bitcast(total, "i64", n)
    nearer = e.bin("xor", *signs)
    wide = Val("", "i64", n).ty
    step = e.bin("or", e.op(f"sext {nearer} to {wide}", "i64", n), one)
    inexact = e.op(f"fcmp one {error}, {zero.name}", "i1", n)
    even = e.op(f"icmp eq {e.bin('and', bits, one)}, {e.const(0, 'i64', n).name}", "i1", n)
    moved = e.op(
        f"select {e.bin('and', inexact, even)}, {e.bin('add', bits, step)}, {bits}", "i64", n
    )
    odd = e.bitcast(moved, "double", n)
    return e.op(f"fptrunc {odd} to {a.ty}", "float", n)


def _suffix(v: Val) -> str:
    scalar = {"float": "f32"}.get(v.t, v.t)
    return f"v{v.n}{scalar}" if v.n > 1 else scalar
