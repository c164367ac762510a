"""The loader of programs of GPUs that this CPU runs."""

from __future__ import annotations

from collections.abc import Sequence

from compiler.codegen.backend import Code
from compiler.runtime import pool
from compiler.runtime.executable import GraphExecutable, Sized
from compiler.runtime.host import HostLoader
from compiler.runtime.program import Program
from compiler.target.registry import Target, host


class SimtExecutable(GraphExecutable):
    """A program of a GPU on this CPU, whose times say nothing of a GPU's."""

    @property
    def emulated(self) -> str:
        """See Executable."""
        return "simt"


class SimtLoader(HostLoader):
    """See `compiler.runtime.loader.Loader`: all code is this CPU's."""

    def link(self, code: bytes, symbols: Sequence[str], target: Target) -> None:
        """See Loader."""
        super().link(code, symbols, host())

    def address(self, symbol: str, target: Target) -> int:
        """See Loader."""
        return super().address(symbol, host())

    def compiled(self, code: Code, target: Target) -> int:
        """See Loader."""
        return super().compiled(code, host())

    def load(self, program: Program, sized: Sized | None = None) -> GraphExecutable:
        """See Loader."""
        if program.threads > 1:
            pool.start()
        for k in program.kernels:
            self.link(k.code, [s.symbol for s in k.stages], program.target)
        self.link(program.code, [program.symbol], program.target)
        return SimtExecutable(program, self.address(program.symbol, program.target), sized)


SIMT = SimtLoader()
