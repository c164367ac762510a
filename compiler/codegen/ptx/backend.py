"""The backend of NVIDIA's GPUs: one kernel a top-level statement, as PTX, which the driver makes
machine code of."""

from __future__ import annotations

from collections.abc import Sequence

from compiler.codegen.backend import Code
from compiler.codegen.launches import shared_by
from compiler.codegen.llvm import jit
from compiler.codegen.llvm.backend import LLVMBackend, module_text
from compiler.codegen.llvm.standalone import external_symbols
from compiler.codegen.ptx.statements import GridStatements
from compiler.codegen.standalone import Standalone
from compiler.codegen.steps import Step
from compiler.errors import LoweringError, UnsupportedError
from compiler.symbolic import Var
from compiler.target.cuda import CHIPS
from compiler.target.registry import Target
from compiler.tensor.expr import Buffer
from compiler.tensor.stmt import PrimFunc
from compiler.types.names import digest


class PTXBackend(LLVMBackend):
    """See `compiler.codegen.backend.Backend`. Its language is LLVM's; `object` gives PTX."""

    def kernel(self, func: PrimFunc, tables: Sequence[Buffer], target: Target) -> Code:
        """See Backend: kernels of one thread each, for the grids that `Stage.launch` says.

        Raises:
            LoweringError: an expression or schedule that cannot be lowered, a function that GPUs
                have not, or more shared memory than a block can have.
        """
        symbols, texts = [], []
        library = target.architecture.library
        chip = CHIPS[target.cpu]
        for k, s in enumerate(func.body):
            _, shared = shared_by(s)
            if shared > chip.shared:
                raise LoweringError(
                    f"{func.name}: a block has {shared} bytes of shared memory, of at most "
                    f"{chip.shared} on {chip.name}: use smaller shared buffers"
                )
            symbols.append(f"{func.name}_{k}")
            text, _ = GridStatements(func, list(tables), s, target, library).run(symbols[-1])
            texts.append(text)
        whole = module_text(texts)
        for symbol in external_symbols(whole):
            raise LoweringError(
                f"the C function {symbol} is in no library of GPUs: use a CPU, or a format that is "
                'lowered to "vector" or "table" (dtype_lowering, --lowering)'
            )
        return Code(tuple(symbols), whole)

    def entry(
        self, steps: Sequence[Step], dims: Sequence[Var], threads: int, target: Target
    ) -> Code:
        """See Backend: there is no code for it; the loader launches the steps one by one."""
        listed = [s.stage.symbol if s.stage is not None else f"copy {s.size} bytes" for s in steps]
        text = "\n".join(f"; {line}" for line in listed)
        return Code((f"main_{digest(text)}",), text, plain=True)

    def standalone(self, codes: Sequence[Code], alone: Standalone, target: Target) -> Code:
        """See Backend.

        Raises:
            UnsupportedError: always.
        """
        said = "programs of GPUs are not exported: name a CPU"
        raise UnsupportedError(f"target {target.text!r}: {said}")

    def object(self, code: Code, target: Target) -> bytes:
        """See Backend: PTX; of the entry point nothing."""
        return b"" if code.plain else jit.assembly(code.text, target).encode()

    def object_and_assembly(self, code: Code, target: Target) -> tuple[bytes, str]:
        """See Backend."""
        return self.object(code, target), ""


PTX = PTXBackend()
