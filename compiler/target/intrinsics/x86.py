"""x86: 4-way int8 and 2-way int16 dot products, int32 clipped to bytes, and
floats limited in magnitude."""

from __future__ import annotations

from compiler.symbolic import Index, Var
from compiler.target.emit import Emitter, Val
from compiler.tensor.expr import Buffer, maximum, minimum
from compiler.tensor.intrinsic import Emit, Intrinsic, dot_product
from compiler.tensor.stmt import Store
from compiler.types.dtypes import INT32, UINT8


def _plus(e: Emitter, c: Val, products: Val) -> Val:
    """c + products, which LLVM adds up in this order: another spares time between additions that
    tiles have anyway, and takes registers that they have not."""
    total = e.bin("add", c, products)
    return e.op(f'call {total.ty} asm "", "=v,0"({total})', total.t, total.n)


def _vpdpbusd(bits: int) -> Emit:
    lanes = bits // 32

    def emit(e: Emitter, c: Val, a: list[Val], b: list[Val]) -> Val:
        return e.call(f"llvm.x86.avx512.vpdpbusd.{bits}", "i32", lanes, [c, a[0], b[0]])

    return emit


def _maddwd(intrinsic: str, lanes: int) -> Emit:
    """Without VNNI, exact (vpmaddubsw would saturate): bytes at even places and at odd places are
    widened to int16 where they are, and multiplied and added in pairs."""

    def emit(e: Emitter, c: Val, a: list[Val], b: list[Val]) -> Val:
        n = 2 * lanes
        x, y = (e.bitcast(v[0], "i16", n) for v in (a, b))
        eight = e.const(8, "i16", n)
        even = [
            e.bin("and", x, e.const(255, "i16", n)),
            e.bin("ashr", e.bin("shl", y, eight), eight),
        ]
        odd = [e.bin("lshr", x, eight), e.bin("ashr", y, eight)]
        for pair in (even, odd):
            c = _plus(e, c, e.call(intrinsic, "i32", lanes, pair))
        return c

    return emit


def _vpdpwssd(e: Emitter, c: Val, a: list[Val], b: list[Val]) -> Val:
    return e.call("llvm.x86.avx512.vpdpwssd.512", "i32", 16, [c, a[0], b[0]])


def _pairs(intrinsic: str, lanes: int) -> Emit:
    """int16 without VNNI: products added in pairs."""

    def emit(e: Emitter, c: Val, a: list[Val], b: list[Val]) -> Val:
        return _plus(e, c, e.call(intrinsic, "i32", lanes, [a[0], b[0]]))

    return emit


def _wide_data(intrinsic: str, lanes: int) -> Emit:
    """int16 data and bytes without VNNI: weights are widened by the instruction that loads them."""

    def emit(e: Emitter, c: Val, a: list[Val], b: list[Val]) -> Val:
        weight = e.op(f"sext {b[0]} to <{2 * lanes} x i16>", "i16", 2 * lanes)
        return _plus(e, c, e.call(intrinsic, "i32", lanes, [a[0], weight]))

    return emit


def _pack(e: Emitter, _: None, v: list[Val]) -> Val:
    """Four vectors of 16, saturated to int16 and then to uint8, which leaves four bytes of each in
    turn; vectors that are missing repeat others."""
    v = [*v, v[-1]] if len(v) % 2 else v
    words = [
        e.call("llvm.x86.avx512.packssdw.512", "i16", 32, [a, b])
        for a, b in zip(v[::2], v[1::2], strict=True)
    ]
    return e.call("llvm.x86.avx512.packuswb.512", "i8", 64, [words[0], words[-1]])


def _narrow(count: int) -> Intrinsic:
    """`count` neighbouring vectors of 16 int32, clipped to uint8 and stored as bytes."""
    out = Buffer("out", (Index.of(count), Index.of(16)), UINT8)
    v = Buffer("v", (Index.of(count), Index.of(16)), INT32)

    def semantics(p: Var, o: Var) -> Store:
        return Store("", out, (p, o), minimum(maximum(v[p, o], 0), 255).astype("uint8"))

    at = [(4 * part + j, p) for part in range(4) for p in range(4) for j in range(4)]
    order = tuple(16 * p + o if p < count else None for o, p in at)
    return Intrinsic(
        f"narrow.{count}x16", {"p": count, "o": 16}, {"v": ("o",)}, semantics, _pack, ("p", "o"),
        order, features=("avx512bw",),
    )  # fmt: skip


VPDPBUSD_512 = dot_product("vpdpbusd.512", 16, _vpdpbusd(512), features=("avx512vnni",))
VPDPBUSD_256 = dot_product("vpdpbusd.256", 8, _vpdpbusd(256), features=("avx512vnni", "avx512vl"))
_MADD = (
    ("512", 16, "llvm.x86.avx512.pmaddw.d.512", "avx512bw"),
    ("256", 8, "llvm.x86.avx2.pmadd.wd", "avx2"),
    ("128", 4, "llvm.x86.sse2.pmadd.wd", "sse2"),
)
"""int16 multiplied and added in pairs: bits, lanes of int32, LLVM's name, and the feature."""
PMADDWD = tuple(
    dot_product(f"pmaddwd.{bits}", lanes, _maddwd(llvm, lanes), features=(f,), widens=True)
    for bits, lanes, llvm, f in _MADD
)
PAIRS_OF_BYTES = tuple(
    dot_product(
        f"pairs.bytes.{bits}", lanes, _wide_data(llvm, lanes), 2, "int16", "int8", features=(f,)
    )
    for bits, lanes, llvm, f in _MADD
)
PAIRS = (
    dot_product("vpdpwssd.512", 16, _vpdpwssd, 2, "int16", "int16", features=("avx512vnni",)),
    *(
        dot_product(f"pairs.{bits}", lanes, _pairs(llvm, lanes), 2, "int16", "int16", features=(f,))
        for bits, lanes, llvm, f in _MADD
    ),
)
NARROW = tuple(_narrow(count) for count in (4, 3, 2, 1))
INTRINSICS = (VPDPBUSD_512, VPDPBUSD_256, *PMADDWD, *PAIRS, *PAIRS_OF_BYTES, *NARROW)


def limited(e: Emitter, x: Val, most: Val, enabled: frozenset[str]) -> Val | None:
    """AVX-512 DQ: x, or `most` with its sign if its magnitude is above that; None where a target
    with the features `enabled` has no instruction for it."""
    if x.t != "float" or not 1 < x.n <= 16 or "avx512dq" not in enabled:
        return None
    n, x, most = x.n, e.widened(x, 16), e.widened(most, 16)
    lesser, everywhere, rounding = Val("2", "i32"), Val("-1", "i16"), Val("4", "i32")
    args = [x, most, lesser, x, everywhere, rounding]
    found = e.call("llvm.x86.avx512.mask.range.ps.512", x.t, 16, args)
    return found if n == 16 else e.shuffle(found, found, list(range(n)))
