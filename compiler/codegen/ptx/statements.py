"""Statements of a loop nest on a grid of threads to LLVM text, for one thread.

- loop over blocks or threads: its variable is a special register; where its extent is shorter than
  the grid's, the threads beyond do nothing;
- shared buffer: memory of the block;
- barrier: that of all threads of the block;
- asynchronous copy: see `compiler.codegen.ptx.copies`;
- instruction of a warp: see `compiler.codegen.ptx.warps`.

The rest is as on a CPU (see `compiler.codegen.llvm.statements`).
"""

from __future__ import annotations

from compiler.codegen.launches import BEGIN, DECLARED, launch_of, shared_by
from compiler.codegen.llvm.addresses import SizeSums
from compiler.codegen.llvm.statements import Statements
from compiler.codegen.ptx.copies import write_copy, write_sync
from compiler.codegen.ptx.warps import write_together
from compiler.errors import LoweringError
from compiler.symbolic import Var
from compiler.target.emit import LLVM_BYTES, Val, memory_type
from compiler.target.registry import Target
from compiler.tensor.expr import Buffer
from compiler.tensor.stmt import (
    Barrier,
    Commit,
    For,
    Intrin,
    Stmt,
    Wait,
    accesses,
    family,
    walk_stmts,
)

_LEAST = 1 << 31
"""Bytes from which on positions in a buffer need 64 bits."""
_SPECIAL = {"blockIdx": "ctaid", "threadIdx": "tid"}


class GridStatements(Statements):
    """One kernel of a GPU; see the module's text."""

    define = "define ptx_kernel void"

    def _parameter(self, b: Buffer) -> str:
        """What nobody stores to meanwhile goes through the read-only cache."""
        facts = f"ptr noalias nocapture align {BEGIN}"
        return facts if b in self.accesses.written else f"{facts} readonly"

    def _facts(self) -> str:
        """How many threads a block has: ptxas then knows how many registers there are for each."""
        x, y, z = (self.most[axis] for axis in "xyz")
        return f' "nvvm.maxntid"="{x},{y},{z}"'

    def _index_type(self, target: Target | None) -> str:
        """Short where it can be: a GPU divides 64 bits slowly."""
        every = {b for b, *_ in accesses([self.body])}
        sizes = [b.size.constant() for b in every]
        known = [n * b.dtype.nbytes for n, b in zip(sizes, every, strict=True) if n is not None]
        short = len(known) == len(sizes) and max(known, default=0) < _LEAST
        return "i32" if short else "i64"

    def _size_sums(self) -> SizeSums | None:
        return None

    def _begin(self, symbol: str) -> None:
        launch = launch_of(self.body)
        if launch is None:
            raise LoweringError(f"{self.func.name}: a kernel of a GPU needs loops over its threads")
        self.most = dict(zip("xyz", launch.threads, strict=True))
        self.thread: Var | None = None
        self.accesses.begin = BEGIN
        shared, nbytes = shared_by(self.body)
        for k, (b, at) in enumerate(shared.items()):
            found = (
                self._of_launch(symbol, at) if nbytes > DECLARED else self._of_block(b, symbol, k)
            )
            self.scope.cursor[b] = (found, {})

    def _of_block(self, b: Buffer, symbol: str, k: int) -> Val:
        """The k-th buffer of the block, which the code declares."""
        name, n, t = f"{symbol}.s{k}", b.size.constant(), memory_type(b.dtype)
        align = max(b.align, BEGIN, LLVM_BYTES[t])
        what = f"internal addrspace(3) global [{n} x {t}] undef, align {align}"
        self.e.decls[name] = f"@{name} = {what}"
        return Val(f"addrspacecast (ptr addrspace(3) @{name} to ptr)", "ptr")

    def _of_launch(self, symbol: str, at: int) -> Val:
        """A buffer in the memory that the launch gives the block, at a multiple of its bytes."""
        name = f"{symbol}_shared"
        self.e.decls[name] = f"@{name} = external addrspace(3) global [0 x i8], align {BEGIN}"
        here = f"getelementptr (i8, ptr addrspace(3) @{name}, i32 {at})"
        return Val(f"addrspacecast (ptr addrspace(3) {here} to ptr)", "ptr")

    def _statements(self, body: list[Stmt]) -> None:
        for s in body:
            if isinstance(s, Barrier):
                self._barrier()
            elif isinstance(s, Commit | Wait):
                write_sync(self.e, s)
            else:
                super()._statements([s])

    def _barrier(self) -> None:
        fn = "llvm.nvvm.barrier.cta.sync.aligned.all"
        self.e.decls[fn] = f"declare void @{fn}(i32) convergent nounwind"
        self.e.lines.append(f"  call void @{fn}(i32 0)")

    def _intrin(self, s: Intrin) -> None:
        emit = s.intrin.emitter("ptx")
        if emit is None:
            super()._intrin(s)
        elif missing := sorted(set(s.intrin.features) - self.scalars.features):
            raise LoweringError(f"{s.intrin.name} needs {missing[0]}: name a newer chip (-arch=)")
        elif s.intrin.late:
            write_copy(self.scope, self.addresses, self.accesses, self.scalars, s, emit)
        else:
            write_together(self.scope, self.addresses, self.accesses, s, emit, self.thread)

    def _loop(self, s: For) -> None:
        of = family(s)
        if not of:
            super()._loop(s)
            return
        e, axis = self.e, s.kind[-1]
        here = e.call(f"llvm.nvvm.read.ptx.sreg.{_SPECIAL[of]}.{axis}", "i32", 1, [])
        at = self.scope.env[s.var] = e.resized(here, e.index)
        if s.kind == "threadIdx.x":
            self.thread = s.var
        if of == "blockIdx" or self.addresses.known(s.extent) == self.most[axis]:
            self._statements(s.body)
            return
        if _waits(s.body):
            raise LoweringError(f"loop {s.var} has barriers, and an extent that varies")
        inside = e.op(f"icmp slt {at}, {self.addresses.runtime(s.extent).name}", "i1")
        self._guarded(inside, s.body)


def _waits(body: list[Stmt]) -> bool:
    return any(isinstance(x, Barrier) for x, _, _ in walk_stmts(body))
