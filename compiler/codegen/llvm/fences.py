"""Pointers and registers that LLVM cannot see through, where a loop says so."""

from __future__ import annotations

from compiler.codegen.llvm.addresses import Addresses
from compiler.codegen.llvm.scope import Scope
from compiler.symbolic import Var
from compiler.target.emit import LLVM_BYTES, Val, memory_type
from compiler.target.registry import Target
from compiler.tensor.expr import Buffer
from compiler.tensor.stmt import For, Stmt, accesses


class Fences:
    """The fences of one function."""

    def __init__(self, scope: Scope, addresses: Addresses, target: Target | None):
        self.scope, self.addresses = scope, addresses
        self.constraint = "" if target is None else target.architecture.vector_constraint
        self.vector_bytes = 0 if target is None else target.vector_bytes
        # Offsets that an instruction can add are short where they are negative.
        self.short = target is not None and target.scalar

    def passed(self, b: Buffer, s: For) -> tuple[Val, dict[Var, int]]:
        """The pointer to a buffer for an iteration of a loop, as something else may have made it,
        and by how many elements it moves with which variable."""
        p, inc = self.scope.cursor[b]
        behind = self._behind(b, s.body) if self.short else 0
        ahead = self.scope.ahead.get(p.name, 0) + behind
        if behind:  # where padding is skipped, perhaps in front of the buffer
            off = f"{self.scope.e.index} {behind * LLVM_BYTES[memory_type(b.dtype)]}"
            p = self.scope.e.op(f"getelementptr i8, ptr {p.name}, {off}", "ptr")
        q = self._opaque_pointer(p, s.fence)
        self.scope.ahead[q.name] = ahead
        return q, inc

    def _behind(self, b: Buffer, body: list[Stmt]) -> int:
        """The least constant in the positions of a buffer that statements access, if negative."""
        ahead = self.scope.ahead.get(self.scope.cursor[b][0].name, 0)
        places = [idx for x, idx, _, _ in accesses(body) if x is b]
        found = [self.addresses.flat_of(b, idx).const - ahead for idx in places if idx is not None]
        return min(0, *found) if len(found) == len(places) > 0 else 0

    def _opaque_pointer(self, p: Val, fence: bool) -> Val:
        """The pointer through empty inline asm. A fence also passes the register written last
        through it, which ties the loads that follow to the arithmetic before them."""
        e = self.scope.e
        last = next(reversed(self.scope.regs.items())) if fence and self.scope.regs else None
        if last is None or not self.constraint or not self._in_one_register(last[1]):
            return e.op(f'call ptr asm sideeffect "", "=r,0"(ptr {p.name})', "ptr")
        k, v = last
        asm = f'asm sideeffect "", "=r,={self.constraint},0,1,~{{memory}}"'
        pair = e.op(f"call {{ptr, {v.ty}}} {asm}(ptr {p.name}, {v})", "")
        self.scope.regs[k] = e.op(f"extractvalue {{ptr, {v.ty}}} {pair.name}, 1", v.t, v.n)
        return e.op(f"extractvalue {{ptr, {v.ty}}} {pair.name}, 0", "ptr")

    def _in_one_register(self, v: Val) -> bool:
        """Whether one register of the machine holds a value: of most, none holds a half, and LLVM
        gives up where assembly is to take a vector that is none."""
        nbytes = v.n * LLVM_BYTES[v.t]
        whole = v.n == 1 or (nbytes >= 16 and nbytes & (nbytes - 1) == 0)
        return v.t != "half" and whole and nbytes <= self.vector_bytes
