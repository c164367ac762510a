"""The LLVM backend: loop nests as LLVM text, and that as object code."""

from __future__ import annotations

from collections.abc import Sequence

from compiler.codegen.backend import Code
from compiler.codegen.llvm import jit
from compiler.codegen.llvm.graph_entry import entry_text
from compiler.codegen.llvm.lower import lower_primfunc, module_text
from compiler.codegen.steps import Step
from compiler.symbolic import Var
from compiler.target.registry import Target
from compiler.tensor.stmt import Buffer, PrimFunc


class LLVMBackend:
    """See `compiler.codegen.backend.Backend`."""

    language = "llvm"
    separate = True

    def kernel(self, func: PrimFunc, tables: Sequence[Buffer], target: Target) -> Code:
        """See Backend."""
        stages = lower_primfunc(func, list(tables), target)
        return Code(tuple(s.symbol for s in stages), module_text([s.text for s in stages]))

    def entry(self, steps: Sequence[Step], dims: Sequence[Var], threads: int) -> Code:
        """See Backend."""
        text = entry_text("main", steps, dims, threads)
        symbol = f"main_{jit.digest(text)}"
        return Code((symbol,), text.replace("@main(", f"@{symbol}("), plain=True)

    def joined(self, codes: Sequence[Code]) -> Code:
        """See Backend."""
        symbols = tuple(dict.fromkeys(s for c in codes for s in c.symbols))
        return Code(symbols, "\n\n".join(dict.fromkeys(c.text for c in codes)))

    def prepare(self, target: Target) -> None:
        """See Backend."""
        jit.machine(target)

    def object(self, code: Code, target: Target) -> bytes:
        """See Backend; in front are the names of the C functions that the code needs, and a line
        break."""
        return jit.object_code(code.text, target, code.plain)

    def versions(self) -> tuple[str, ...]:
        """See Backend."""
        return ()


LLVM = LLVMBackend()
