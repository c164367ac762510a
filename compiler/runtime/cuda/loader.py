"""The loader of programs for GPUs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from compiler.codegen.backend import Code
from compiler.errors import UnsupportedError
from compiler.runtime.beside import Beside
from compiler.runtime.cuda.device import Device, opened
from compiler.runtime.cuda.executable import CudaExecutable
from compiler.runtime.executable import GraphExecutable, Sized
from compiler.runtime.program import Program
from compiler.target.registry import Target

_WHOLE = (
    "kernels for target {target!r} run on a device, so that they cannot be called one by one from "
    "here"
)


class CudaLoader:
    """See `compiler.runtime.loader.Loader`.

    Args:
        device: gives the device of a target's runner.
    """

    def __init__(self, device: Callable[[str], Device] = opened):
        self._device = device

    def device(self, target: Target) -> Device:
        """Where programs for a target run.

        Raises:
            UnsupportedError: there is no driver or device here, or it does not run such code.
        """
        found = self._device(target.runner)
        if not found.driver.emulated:
            found.refuse(target)
        return found

    def prepare(self, threads: int, beside: Beside) -> None:
        """See Loader: there is nothing."""

    def link(self, code: bytes, symbols: Sequence[str], target: Target) -> None:
        """See Loader: a program's kernels are taken to the device when it is loaded."""

    def address(self, symbol: str, target: Target) -> int:
        """See Loader: there is none in this process."""
        raise UnsupportedError(_WHOLE.format(target=str(target)))

    def compiled(self, code: Code, target: Target) -> int:
        """See Loader: there is none in this process."""
        raise UnsupportedError(_WHOLE.format(target=str(target)))

    def load(self, program: Program, sized: Sized | None = None) -> GraphExecutable:
        """See Loader.

        Raises:
            UnsupportedError: there is no device here, it does not run such code, or the program
                calls registered functions.
            LoweringError: the device's compiler rejects the code.
            OutOfMemoryError: the device has no room for the weights.
        """
        return CudaExecutable(program, self.device(program.target), sized)


CUDA = CudaLoader()
