"""C11 as a target's language: all code of a program is one readable source file.

It needs no heap, no files and no threads, and is reentrant: whoever calls it gives all the memory
that it writes.
"""

from __future__ import annotations

from collections.abc import Sequence

from compiler.codegen import cache
from compiler.codegen.backend import Code, refuse_libraries
from compiler.codegen.c import system_compiler
from compiler.codegen.c.entry import entry_text, run_text
from compiler.codegen.c.functions import expansion, external_calls, external_symbols
from compiler.codegen.c.helpers import prelude
from compiler.codegen.c.kernels import kernel_text
from compiler.codegen.c.standalone import CHECKS, standalone_text
from compiler.codegen.standalone import Standalone
from compiler.codegen.steps import Step
from compiler.errors import InputError
from compiler.symbolic import Var
from compiler.target.registry import Target
from compiler.tensor.expr import Buffer
from compiler.tensor.stmt import PrimFunc
from compiler.types.names import digest

FUNCTIONS = "net_functions"
"""The table of functions of libraries that a program calls, which the loader fills."""

_HEAD = """/* C11. Compile it without contraction:
 * cc -std=c11 -O2 -ffp-contract=off -fno-strict-aliasing program.c -lm */
#include <fenv.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#ifdef __GNUC__ /* a kernel whose rounding is watched must stay between what clears and reads */
#define KERNEL static __attribute__((noinline))
#else
#define KERNEL static
#endif"""


class CBackend:
    """See `compiler.codegen.backend.Backend`."""

    language = "c"
    separate = False

    def loops(self, func: PrimFunc) -> PrimFunc:
        """See Backend."""
        return func

    def kernel(self, func: PrimFunc, tables: Sequence[Buffer], target: Target) -> Code:
        """See Backend."""
        return Code(*kernel_text(func, tables))

    def entry(
        self, steps: Sequence[Step], dims: Sequence[Var], threads: int, target: Target
    ) -> Code:
        """See Backend.

        Raises:
            InputError: more than one thread.
        """
        if threads != 1:
            raise InputError(
                f"programs in C run on one thread: build with threads=1, not {threads}"
            )
        symbol = f"main_{digest(entry_text('main', steps, dims))}"
        return Code((symbol,), entry_text(symbol, steps, dims))

    def joined(self, codes: Sequence[Code]) -> Code:
        """See Backend: a whole source file."""
        bodies, symbols = (
            dict.fromkeys(c.text for c in codes),
            [s for c in codes for s in c.symbols],
        )
        body = "\n\n".join([*bodies, run_text(symbols[-1], codes[-1].text)])
        return Code(tuple(symbols), _whole(_HEAD, body))

    def standalone(self, codes: Sequence[Code], alone: Standalone, target: Target) -> Code:
        """See Backend."""
        bodies = dict.fromkeys(c.text for c in codes)
        refuse_libraries(external_symbols("\n".join(bodies)))
        texts = [_internal(t, alone.symbol) for t in bodies]
        body = "\n\n".join([*texts, standalone_text(alone)])
        return Code((f"{alone.name}_run",), _whole(f"{_HEAD}\n\n{CHECKS}", body))

    def relocatable(self, code: Code, target: Target) -> bytes:
        """See Backend."""
        return system_compiler.object_file(code.text, system_compiler.of_target(target))

    def prepare(self, target: Target) -> None:
        """See Backend."""
        system_compiler.version()

    def object(self, code: Code, target: Target) -> bytes:
        """The functions of libraries that the code calls, a line break, and a shared library.

        Raises:
            LoweringError: there is no C compiler, or it rejects the code.
        """
        head = " ".join(external_symbols(code.text)).encode()
        library = system_compiler.shared_library(code.text, system_compiler.of_target(target))
        cache.count("compiled")
        return head + b"\n" + library

    def object_and_assembly(self, code: Code, target: Target) -> tuple[bytes, str]:
        """See Backend."""
        return self.object(code, target), ""

    def versions(self) -> tuple[str, ...]:
        """See Backend."""
        return (system_compiler.version(),)


def _whole(head: str, body: str) -> str:
    """A source file: what it begins with, what `body` needs, and that."""
    parts = [head]
    if called := external_symbols(body):
        parts.append(f"/* Functions of libraries: {', '.join(called)}. The loader sets them. */")
        parts.append(f"const void *{FUNCTIONS}[{len(called)}];")
        parts += external_calls(body, FUNCTIONS)
    parts += [*prelude(body, expansion), body]
    return "\n\n".join(parts) + "\n"


def _internal(text: str, symbol: str) -> str:
    """The text of an entry point whose `symbol` nothing outside sees."""
    return text.replace(f"void {symbol}(", f"static void {symbol}(", 1)


C = CBackend()
