"""The loader of programs in C: a shared library, opened once for each executable."""

from __future__ import annotations

import ctypes
import tempfile
from collections.abc import Sequence
from pathlib import Path

from compiler.codegen.backend import Code
from compiler.codegen.c.backend import FUNCTIONS
from compiler.codegen.llvm import jit
from compiler.errors import UnsupportedError
from compiler.runtime.beside import Beside
from compiler.runtime.executable import GraphExecutable, Sized
from compiler.runtime.program import Program
from compiler.target.registry import Target

_WHOLE = (
    "programs for target {target!r} are compiled and loaded whole, so that their functions cannot "
    'be called one by one: use target "llvm"'
)


class LibraryLoader:
    """See `compiler.runtime.loader.Loader`."""

    def prepare(self, threads: int, beside: Beside) -> None:
        """See Loader: there is nothing."""

    def link(self, code: bytes, symbols: Sequence[str], target: Target) -> None:
        """See Loader: programs are loaded whole."""

    def address(self, symbol: str, target: Target) -> int:
        """See Loader: there is none outside a program."""
        raise UnsupportedError(_WHOLE.format(target=str(target)))

    def compiled(self, code: Code, target: Target) -> int:
        """See Loader: there is none outside a program."""
        raise UnsupportedError(_WHOLE.format(target=str(target)))

    def load(self, program: Program, sized: Sized | None = None) -> GraphExecutable:
        """See Loader.

        Raises:
            LoweringError: a C function that the code calls cannot be found.
        """
        return GraphExecutable(program, address(opened(program.code), program.symbol), sized)


def opened(code: bytes) -> ctypes.CDLL:
    """A shared library (see `CBackend.object`) that knows the functions it calls, never closed.

    Raises:
        LoweringError: a C function that the code calls cannot be found.
    """
    head, _, content = code.partition(b"\n")
    addresses = [jit.function_address(name) for name in head.decode().split()]
    with tempfile.TemporaryDirectory(prefix="dtypelab-") as folder:
        path = Path(folder, "program.so")
        path.write_bytes(content)
        library = ctypes.CDLL(str(path))
    if addresses:
        table = (ctypes.c_size_t * len(addresses)).in_dll(library, FUNCTIONS)
        for k, at in enumerate(addresses):
            table[k] = at
    return library


def address(library: ctypes.CDLL, symbol: str) -> int:
    """Where a function of a library is."""
    found = ctypes.cast(getattr(library, symbol), ctypes.c_void_p).value
    assert found is not None
    return found


LIBRARY = LibraryLoader()
