"""The loader of programs for NVIDIA's GPUs: of now, it makes their code only."""

from __future__ import annotations

from compiler.errors import UnsupportedError
from compiler.runtime.executable import GraphExecutable, Sized
from compiler.runtime.program import Program
from compiler.runtime.shared_library import LibraryLoader


class CudaLoader(LibraryLoader):
    """See `compiler.runtime.loader.Loader`."""

    def load(self, program: Program, sized: Sized | None = None) -> GraphExecutable:
        """See Loader.

        Raises:
            UnsupportedError: always.
        """
        raise UnsupportedError(
            f"target {program.target.text!r}: nothing runs its code here: add -runner=simt"
        )


CUDA = CudaLoader()
