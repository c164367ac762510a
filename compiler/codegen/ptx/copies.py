"""Asynchronous copies (see `Intrinsic.late`), and what waits for them."""

from __future__ import annotations

from compiler.codegen.llvm.accesses import Accesses
from compiler.codegen.llvm.addresses import Addresses
from compiler.codegen.llvm.scalars import Scalars
from compiler.codegen.llvm.scope import Scope
from compiler.errors import LoweringError
from compiler.symbolic import Index
from compiler.target.emit import LLVM_BYTES, Emitter, Val, memory_type
from compiler.tensor.expr import Buffer
from compiler.tensor.intrinsic import Emit, copied
from compiler.tensor.stmt import Commit, Intrin, Wait


def write_copy(
    scope: Scope, addresses: Addresses, accesses: Accesses, scalars: Scalars, s: Intrin, emit: Emit
) -> None:
    """Write one copy.

    Raises:
        LoweringError: it does not go from global to shared memory, its elements are not neighbours,
            or they do not begin at a multiple of their bytes.
    """
    it, st = s.intrin, s.store
    (value,) = s.leaves.values()
    found = copied(value)
    if scope.lanes or found is None or st.buffer.scope != "shared":
        raise LoweringError(f"{it.name} copies what is in global memory, not {value!r}, and once")
    load, conditions = found
    size = LLVM_BYTES[memory_type(st.buffer.dtype)]
    scope.lanes = [(v, it.loops[n]) for n, v in s.vars.items()]
    nbytes = size
    for n in it.loops.values():
        nbytes *= n

    def start(b: Buffer, idx: tuple[Index, ...]) -> Val:
        flat = addresses.flat_of(b, idx)
        at = addresses.address(b, flat)
        near = at.pointer is None or at.offsets != tuple(range(nbytes // size))
        if near or not accesses.aligned(b, flat, nbytes):
            raise LoweringError(f"{it.name} copies neighbours, from multiples of {nbytes} bytes on")
        assert at.pointer is not None
        return scope.e.at(at.pointer, at.const * size)

    ends = start(st.buffer, st.idx), start(load.buffer, load.idx)
    scope.lanes = []
    count = None
    for c in conditions:
        scalars.values = {}
        here = scalars.eval(c)
        count = here if count is None else scope.e.bin("and", count, here)
    if count is not None:
        count = scope.e.op(f"select {count}, i32 {nbytes}, i32 0", "i32")
    emit(scope.e, *ends, count)


def write_sync(e: Emitter, s: Commit | Wait) -> None:
    """Write what makes a group of the copies that were begun, or what waits for groups."""
    fn = "llvm.nvvm.cp.async.commit.group"
    if isinstance(s, Commit):
        e.decls[fn] = f"declare void @{fn}()"
        e.lines.append(f"  call void @{fn}()")
        return
    fn = "llvm.nvvm.cp.async.wait.group"
    e.decls[fn] = f"declare void @{fn}(i32 immarg)"
    e.lines.append(f"  call void @{fn}(i32 {s.left})")


__all__ = ["write_copy", "write_sync"]
