"""The loader of LLVM's code on this machine: LLVM's MCJIT links it into this process."""

from __future__ import annotations

from collections.abc import Sequence

from compiler.codegen.backend import Code, backend_of
from compiler.codegen.llvm import jit
from compiler.errors import UnsupportedError
from compiler.runtime import pool
from compiler.runtime.beside import Beside
from compiler.runtime.executable import GraphExecutable, Sized
from compiler.runtime.program import Program
from compiler.target.registry import Target


class HostLoader:
    """See `compiler.runtime.loader.Loader`."""

    def prepare(self, threads: int, beside: Beside) -> None:
        """See Loader."""
        if threads > 1:
            pool.begin(beside)

    def link(self, code: bytes, symbols: Sequence[str], target: Target) -> None:
        """See Loader; what is for another machine is left alone."""
        if target.runnable:
            jit.link(code, symbols, target)

    def address(self, symbol: str, target: Target) -> int:
        """See Loader."""
        return jit.address(symbol, target)

    def compiled(self, code: Code, target: Target) -> int:
        """See Loader."""
        (symbol,) = code.symbols
        return jit.compile_text(code.text, symbol, target, code.plain)

    def load(self, program: Program, sized: Sized | None = None) -> GraphExecutable:
        """See Loader.

        Raises:
            UnsupportedError: the code is for another machine.
            LoweringError: a C function that the code calls cannot be found.
        """
        target = program.target
        if not target.runnable:
            raise UnsupportedError(
                f"target {str(target)!r} is for {target.triple}, unlike this machine"
            )
        if program.threads > 1:
            pool.start()
        for k in program.kernels if backend_of(target).separate else ():
            jit.link(k.code, [s.symbol for s in k.stages], target)
        jit.link(program.code, [program.symbol], target)
        return GraphExecutable(program, jit.address(program.symbol, target), sized)


HOST = HostLoader()
