"""The LLVM backend: loop nests as LLVM text, one function a top-level statement, and that as object
code. Knows nothing of convolution or any schedule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from compiler.codegen.backend import Code, refuse_grid, refuse_libraries
from compiler.codegen.llvm import jit
from compiler.codegen.llvm.graph_entry import entry_text
from compiler.codegen.llvm.standalone import external_symbols, standalone_text
from compiler.codegen.llvm.statements import Statements
from compiler.codegen.standalone import Standalone
from compiler.codegen.steps import Step
from compiler.symbolic import Index, Var
from compiler.target.registry import Target
from compiler.tensor.expr import Buffer
from compiler.tensor.stmt import PrimFunc
from compiler.types.names import digest


@dataclass(frozen=True)
class NativeStage:
    """One top-level statement of a PrimFunc as an LLVM function.

    Called with a pointer per param, temp and table, an int64 per dim, and, if it has parallel
    loops, the range [begin, end) of tasks to do (see `parallel_tasks`); `extent` is the number of
    tasks, None if the stage is sequential.
    """

    symbol: str
    text: str
    extent: Index | None


def lower_primfunc(
    f: PrimFunc, tables: list[Buffer], target: Target | None = None, library: bool = True
) -> list[NativeStage]:
    """LLVM functions for the top-level statements of `f`, to be called in order.

    Args:
        f: scheduled and free of custom dtypes.
        tables: constant buffers that it reads, passed after its temporaries.
        target: whose instructions may be used; None: any.
        library: whether functions of the C library may be called.

    Raises:
        LoweringError: an expression or schedule that cannot be lowered, as a grid of threads.
    """
    refuse_grid(f, "llvm")
    out = []
    for k, s in enumerate(f.body):
        symbol = f"{f.name}_{k}"
        out.append(NativeStage(symbol, *Statements(f, tables, s, target, library).run(symbol)))
    return out


def module_text(texts: Sequence[str]) -> str:
    """LLVM text of several functions, with what they declare written once."""
    declared: dict[str, None] = {}
    bodies = []
    for text in texts:
        head, define, body = text.partition("define ")
        declared.update(dict.fromkeys(head.splitlines()))
        bodies.append(define + body)
    return "\n".join([*declared, *bodies])


class LLVMBackend:
    """See `compiler.codegen.backend.Backend`."""

    language = "llvm"
    separate = True

    def loops(self, func: PrimFunc) -> PrimFunc:
        """See Backend."""
        return func

    def kernel(self, func: PrimFunc, tables: Sequence[Buffer], target: Target) -> Code:
        """See Backend."""
        return self._compiled(func, tables, target, target.architecture.library)

    def _compiled(
        self, func: PrimFunc, tables: Sequence[Buffer], target: Target, library: bool
    ) -> Code:
        stages = lower_primfunc(func, list(tables), target, library)
        return Code(tuple(s.symbol for s in stages), module_text([s.text for s in stages]))

    def entry(
        self, steps: Sequence[Step], dims: Sequence[Var], threads: int, target: Target
    ) -> Code:
        """See Backend."""
        text = entry_text("main", steps, dims, threads, target)
        symbol = f"main_{digest(text)}"
        return Code((symbol,), text.replace("@main(", f"@{symbol}("), plain=True)

    def joined(self, codes: Sequence[Code]) -> Code:
        """See Backend."""
        symbols = tuple(dict.fromkeys(s for c in codes for s in c.symbols))
        return Code(symbols, "\n\n".join(dict.fromkeys(c.text for c in codes)))

    def standalone(self, codes: Sequence[Code], alone: Standalone, target: Target) -> Code:
        """See Backend."""
        text = standalone_text([c.text for c in codes], alone, target)
        refuse_libraries(external_symbols(text))
        return Code((f"{alone.name}_run",), text)

    def relocatable(self, code: Code, target: Target) -> bytes:
        """See Backend."""
        return jit.object_code(code.text, target, relocatable=True).partition(b"\n")[2]

    def prepare(self, target: Target) -> None:
        """See Backend."""
        jit.machine(target)

    def object(self, code: Code, target: Target) -> bytes:
        """See Backend; in front are the names of the C functions that the code needs, and a line
        break."""
        return jit.object_code(code.text, target, code.plain)

    def object_and_assembly(self, code: Code, target: Target) -> tuple[bytes, str]:
        """See Backend."""
        assembly = jit.commented_assembly(code.text, target)
        if target.runnable:  # LLVM need not generate code twice
            return jit.assembled(code.text, assembly, target), assembly
        return self.object(code, target), assembly

    def versions(self) -> tuple[str, ...]:
        """See Backend."""
        return ()


LLVM = LLVMBackend()
