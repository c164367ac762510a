"""What shows and checks the work of passes: PrintIR, and instruments of a PassContext."""

from __future__ import annotations

import sys
import time
from typing import TextIO

from compiler.errors import VerifyError
from compiler.ir.expr import IRModule
from compiler.ir.verifier import verify
from compiler.passes.manager import ModulePass, Pass, PassContext, PassInstrument


class PrintIR(ModulePass):
    """Prints the module where it stands in a Sequential."""

    name = "PrintIR"

    def __init__(self, header: str = "", show_meta_data: bool = False, file: TextIO | None = None):
        self.header, self.show_meta_data, self.file = header, show_meta_data, file

    def transform(self, mod: IRModule, ctx: PassContext) -> IRModule:
        """Print and pass on."""
        head = f"// {self.header}\n" if self.header else ""
        print(head + mod.astext(self.show_meta_data), file=self.file or sys.stdout)
        return mod


class TimingInstrument(PassInstrument):
    """Wall-clock milliseconds of every pass that ran, in `times` as (name, ms)."""

    def __init__(self) -> None:
        self.times: list[tuple[str, float]] = []
        self._starts: list[float] = []

    def before(self, mod: IRModule, pass_: Pass) -> None:
        """Start the clock."""
        self._starts.append(time.perf_counter())

    def after(self, mod: IRModule, pass_: Pass) -> None:
        """Stop the clock."""
        self.times.append((pass_.name, (time.perf_counter() - self._starts.pop()) * 1e3))

    def render(self) -> str:
        """The times as a table, slowest first."""
        rows = sorted(self.times, key=lambda t: -t[1])
        return "\n".join(f"{ms:9.3f} ms  {name}" for name, ms in rows)


class VerifyInstrument(PassInstrument):
    """Verifies the module after every pass, naming the pass that broke it."""

    def after(self, mod: IRModule, pass_: Pass) -> None:
        """Raise VerifyError if the pass left an invalid module."""
        try:
            verify(mod)
        except VerifyError as e:
            raise VerifyError(f"after pass {pass_.name}: {e}") from None
