"""The backend of programs for grids of threads that this CPU runs, compiled by LLVM."""

from __future__ import annotations

from collections.abc import Sequence

from compiler.codegen.backend import Code
from compiler.codegen.llvm.backend import LLVMBackend
from compiler.codegen.simt.threads_as_loops import without_grids
from compiler.codegen.standalone import Standalone
from compiler.codegen.steps import Step
from compiler.errors import UnsupportedError
from compiler.symbolic import Var
from compiler.target.registry import Target, host
from compiler.tensor.expr import Buffer
from compiler.tensor.stmt import PrimFunc


class SimtBackend(LLVMBackend):
    """See `compiler.codegen.backend.Backend`. Whatever the chip, the code is this CPU's."""

    def loops(self, func: PrimFunc) -> PrimFunc:
        """See Backend."""
        return without_grids(func)

    def kernel(self, func: PrimFunc, tables: Sequence[Buffer], target: Target) -> Code:
        """See Backend. Functions are the GPU's: this CPU's C library has others in the last bit."""
        return self._compiled(self.loops(func), tables, host(), target.architecture.library)

    def entry(
        self, steps: Sequence[Step], dims: Sequence[Var], threads: int, target: Target
    ) -> Code:
        """See Backend."""
        return super().entry(steps, dims, threads, host())

    def standalone(self, codes: Sequence[Code], alone: Standalone, target: Target) -> Code:
        """See Backend.

        Raises:
            UnsupportedError: always.
        """
        said = "programs of GPUs are not exported: name a CPU"
        raise UnsupportedError(f"target {target.text!r}: {said}")

    def prepare(self, target: Target) -> None:
        """See Backend."""
        super().prepare(host())

    def object(self, code: Code, target: Target) -> bytes:
        """See Backend."""
        return super().object(code, host())

    def object_and_assembly(self, code: Code, target: Target) -> tuple[bytes, str]:
        """See Backend."""
        return super().object_and_assembly(code, host())


SIMT = SimtBackend()
