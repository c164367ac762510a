"""NVPTX: asynchronous copies of 16, 8 or 4 bytes from global to shared memory, which go through no
register (cp.async), of compute capability 8.0 and newer.

To the loop nest they are copies that the thread waits for (see `Intrinsic.late`). Those of 16 bytes
go past the first cache (`.cg`), as each byte of an operand is read once by a block. How many bytes
are read may be said when it runs; the others become zeros, and nothing is read for them.

Source: PTX ISA, "asynchronous copy operations".
"""

from __future__ import annotations

from compiler.symbolic import Index, Var
from compiler.target.emit import Emitter, Val
from compiler.tensor.expr import Buffer
from compiler.tensor.intrinsic import Emit, Intrinsic
from compiler.tensor.stmt import Store
from compiler.types.dtypes import FLOAT32, INT8, UINT8, DType

SIZES = (16, 8, 4)
"""Bytes that a thread copies at once."""
WORD = 4
"""Bytes of the words that the loops of a copy are over, and over their elements."""
_NEAR, _FAR = "ptr addrspace(3)", "ptr addrspace(1)"


def _copy(nbytes: int) -> Emit:
    fn = f"llvm.nvvm.cp.async.{'cg' if nbytes == SIZES[0] else 'ca'}.shared.global.{nbytes}"

    def emit(e: Emitter, to: Val, source: Val, count: Val | None) -> None:
        """`count`: bytes that are read; None: all."""
        near = e.op(f"addrspacecast {to} to {_NEAR}", _NEAR)
        far = e.op(f"addrspacecast {source} to {_FAR}", _FAR)
        args, name = [near, far], fn
        if count is not None:
            args, name = [*args, count], f"{fn}.s"
        given = ", ".join(map(str, args))
        e.decls[name] = f"declare void @{name}({', '.join(a.ty for a in args)})"
        e.lines.append(f"  call void @{name}({given})")

    return emit


def _of(dtype: DType, nbytes: int) -> Intrinsic:
    loops = {"w": nbytes // WORD, "e": WORD // dtype.nbytes}
    shape = tuple(map(Index.of, loops.values()))
    to, source = Buffer("to", shape, dtype), Buffer("from", shape, dtype)

    def semantics(w: Var, e: Var) -> Store:
        return Store("", to, (w, e), source[w, e])

    name, lanes = f"cp.async.{nbytes}.{dtype}", ("w", "e")
    emit = {"ptx": _copy(nbytes)}
    return Intrinsic(
        name, loops, {"from": lanes}, semantics, emit, lanes, features=("sm_80",), late=True
    )


INTRINSICS = tuple(_of(dtype, n) for dtype in (INT8, UINT8, FLOAT32) for n in SIZES)
