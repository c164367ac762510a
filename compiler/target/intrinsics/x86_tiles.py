"""x86: products of matrices of bytes in tile registers (AMX), each 16 rows of 64 bytes.

A tile of int32 sums takes 64 steps of a reduction at a time: neighbours of the data, by four rows
of bytes that weights have in groups of four. LLVM gives tiles their registers, and configures these
at the begin of a function that uses any, so that each thread does it for itself; shapes are given
with every instruction.
"""

from __future__ import annotations

from compiler.symbolic import Index, Var
from compiler.target.emit import Emitter, Val
from compiler.tensor.expr import Buffer, const
from compiler.tensor.intrinsic import Emit, Intrinsic, Rows
from compiler.tensor.stmt import Store
from compiler.types.dtypes import INT8, INT32, UINT8, DType

TILE, SIZE, GROUP = "x86_amx", 16, 4
_FEATURES = ("amx-tile", "amx-int8")
_SHAPE = [Val(str(SIZE), "i16"), Val(str(4 * SIZE), "i16")]
_BYTES = {"r": SIZE, "c": SIZE, "i": GROUP}
_INTS = {"m": SIZE, "n": SIZE}


def _buffer(name: str, dtype: DType, *extents: int) -> Buffer:
    return Buffer(name, tuple(map(Index.of, extents)), dtype)


def _tile_of(e: Emitter, name: str, args: list[Val]) -> Val:
    return e.call(f"llvm.x86.{name}.internal", TILE, 1, [*_SHAPE, *args])


def _load(dtype: DType, letter: str) -> Intrinsic:
    out, a = (_buffer(n, dtype, SIZE, SIZE, GROUP) for n in ("out", "a"))

    def semantics(r: Var, c: Var, i: Var) -> Store:
        return Store("", out, (r, c, i), a[r, c, i])

    def emit(e: Emitter, _: None, rows: Rows) -> Val:
        return _tile_of(e, "tileloadd64", [rows.address, rows.step])

    name = f"tileloadd.{letter}8"
    return Intrinsic(
        name, _BYTES, {"a": ("c", "i")}, semantics, emit, features=_FEATURES, rows={"a": "r"}
    )


def _multiply(name: str) -> Emit:
    def emit(e: Emitter, c: Val, a: Val, b: Val) -> Val:
        return _tile_of(e, name, [Val(str(4 * SIZE), "i16"), c, a, b])

    return emit


def _product(name: str, data: DType, weight: DType) -> Intrinsic:
    c = _buffer("c", INT32, SIZE, SIZE)
    a, b = (_buffer(n, t, SIZE, SIZE, GROUP) for n, t in (("a", data), ("b", weight)))

    def semantics(m: Var, n: Var, k: Var, i: Var) -> Store:
        product = a[m, k, i].astype(INT32) * b[k, n, i].astype(INT32)
        return Store("", c, (m, n), product, update="Add")

    loops = {**_INTS, "k": SIZE, "i": GROUP}
    lanes = {"a": ("m", "k", "i"), "b": ("k", "n", "i")}
    return Intrinsic(name, loops, lanes, semantics, _multiply(name), ("m", "n"), rows={},
                     features=_FEATURES)  # fmt: skip


def _zeros() -> Intrinsic:
    c = _buffer("c", INT32, SIZE, SIZE)

    def semantics(m: Var, n: Var) -> Store:
        return Store("", c, (m, n), const(0, INT32))

    def emit(e: Emitter, _: None) -> Val:
        return _tile_of(e, "tilezero", [])

    return Intrinsic("tilezero", _INTS, {}, semantics, emit, ("m", "n"), rows={},
                     features=_FEATURES)  # fmt: skip


def _store() -> Intrinsic:
    out, c = (_buffer(n, INT32, SIZE, SIZE) for n in ("out", "c"))

    def semantics(m: Var, n: Var) -> Store:
        return Store("", out, (m, n), c[m, n])

    def emit(e: Emitter, rows: Rows, c: Val) -> None:
        args = [*_SHAPE, rows.address, rows.step, c]
        name = "llvm.x86.tilestored64.internal"
        e.decls[name] = f"declare void @{name}({', '.join(a.ty for a in args)})"
        e.lines.append(f"  call void @{name}({', '.join(map(str, args))})")

    return Intrinsic("tilestored", _INTS, {"c": ("m", "n")}, semantics, emit, ("n",),
                     rows={"out": "m"}, features=_FEATURES)  # fmt: skip


INTRINSICS = (
    _product("tdpbusd", UINT8, INT8),
    _product("tdpbssd", INT8, INT8),
    _product("tdpbsud", INT8, UINT8),
    _product("tdpbuud", UINT8, UINT8),
    _load(UINT8, "u"),
    _load(INT8, "s"),
    _zeros(),
    _store(),
)
