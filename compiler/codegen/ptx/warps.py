"""Instructions that the threads of a warp execute together (see `Intrinsic`)."""

from __future__ import annotations

from collections.abc import Callable

from compiler.codegen.llvm.accesses import Accesses
from compiler.codegen.llvm.addresses import Addresses
from compiler.codegen.llvm.scope import Scope
from compiler.errors import LoweringError
from compiler.symbolic import Index, IntLike, Var
from compiler.target.cuda import WARP
from compiler.target.emit import LLVM_BYTES, Val, memory_type
from compiler.tensor.expr import Load
from compiler.tensor.intrinsic import Emit, Lane
from compiler.tensor.lanes import points
from compiler.tensor.stmt import Intrin


def write_together(
    scope: Scope,
    addresses: Addresses,
    accesses: Accesses,
    s: Intrin,
    emit: Emit,
    thread: Var | None,
) -> None:
    """Write one such instruction. `thread`: the number of the thread in its block.

    A lane loads what others of its warp multiply: it has the address where they read, by their
    number in the place of its own.

    Raises:
        LoweringError: threads have not one axis, the statement is in lanes, or an operand is not in
            shared memory.
    """
    it, st = s.intrin, s.store
    if scope.lanes or thread is None:
        raise LoweringError(f"{it.name} is for the threads of axis x, and for no lanes")
    own = [n for n, v in it.vars.items() if any(i == v for i in it.pattern.idx)]
    flat = addresses.flat_of(st.buffer, st.idx)
    places = []
    scope.env.update(dict.fromkeys(s.vars.values(), 0))
    for x in points([it.loops[n] for n in own]):
        scope.env.update({s.vars[n]: k for n, k in zip(own, x, strict=True)})
        places.append(addresses.address(st.buffer, flat))
    sums = [accesses.read(st.buffer, flat, p) for p in places]

    def at(name: str, reads: Callable[[Index], Lane]) -> Val:
        e = s.leaves[name]
        if not isinstance(e, Load) or e.buffer.scope != "shared":
            raise LoweringError(f"{it.name} takes operand {name} from shared memory, not {e!r}")
        lane = reads(thread % WARP)
        m: dict[Var, IntLike] = {thread: thread // WARP * WARP + lane.number}
        here: dict[Var, IntLike] = {s.vars[n]: i for n, i in lane.at.items()}
        position = e.buffer.flat(tuple(i.subst(here | m) for i in e.idx))
        found = addresses.address(e.buffer, position)
        assert found.pointer is not None
        size = LLVM_BYTES[memory_type(e.buffer.dtype)]
        return scope.e.at(found.pointer, found.const * size)

    for p, v in zip(places, emit(scope.e, sums, at), strict=True):
        accesses.write(st.buffer, flat, v, None, p)


__all__ = ["write_together"]
