"""The loader of LLVM's code for machines of other architectures, which run beside this process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence

from compiler.codegen.backend import Code
from compiler.errors import UnsupportedError
from compiler.runtime.beside import Beside
from compiler.runtime.executable import GraphExecutable, Sized
from compiler.runtime.machines.image import image_of
from compiler.runtime.machines.machine import Loaded, Machine
from compiler.runtime.machines.registry import machine_of
from compiler.runtime.program import Program
from compiler.symbolic import Var
from compiler.target.registry import Target
from compiler.types.dtypes import Array

_ALONE = (
    "code for {triple} runs as whole programs, so that its functions cannot be called one by one: "
    "use a target of this machine"
)


class ElsewhereExecutable(GraphExecutable):
    """A program on a machine of another architecture; called as any other.

    Attributes:
        machine, loaded: what it runs on, and it there.
        instructions: how many the last call took; None, if the machine does not count them.
    """

    instructions: int | None = None

    def __init__(
        self, program: Program, machine: Machine, loaded: Loaded, sized: Sized | None = None
    ):
        super().__init__(program, _nowhere, sized)
        self.machine, self.loaded = machine, loaded
        self._alone = threading.Lock()

    @property
    def emulated(self) -> str:
        """See Executable."""
        return self.machine.name if self.machine.emulated else ""

    def run(
        self, arrays: Sequence[Array], dims: Mapping[Var, int], held: Sequence[Array] = ()
    ) -> list[Array]:
        """See Executable; calls by several threads follow each other.

        Raises:
            MachineError: the machine has stopped, or the program has failed on it.
        """
        shapes, size, values = self._sizes(dims)
        outs = list(held) if [a.shape for a in held] == shapes else self._outputs(shapes)
        if values is None:  # nothing to compute
            return outs
        if isinstance(values, GraphExecutable):
            return values.run(arrays, {}, held)
        given = [dims[v] for v in self.program.dims]
        with self._alone:
            self.instructions = self.loaded.run(arrays, outs, given, size)
        return outs

    def prepared(self) -> Callable[[Sequence[Array]], list[Array]] | None:
        """See GraphExecutable: there is none, as no address here means anything there."""
        return None

    def stats(self) -> str:
        """Also says what it runs on."""
        return f"{super().stats()}\n  runs on: {self.machine.name}"


class ElsewhereLoader:
    """See `compiler.runtime.loader.Loader`."""

    def prepare(self, threads: int, beside: Beside) -> None:
        """See Loader: there is nothing."""

    def link(self, code: bytes, symbols: Sequence[str], target: Target) -> None:
        """See Loader: programs are linked whole."""

    def address(self, symbol: str, target: Target) -> int:
        """See Loader: there is none in this process."""
        raise UnsupportedError(_ALONE.format(triple=target.triple))

    def compiled(self, code: Code, target: Target) -> int:
        """See Loader: there is none in this process."""
        raise UnsupportedError(_ALONE.format(triple=target.triple))

    def load(self, program: Program, sized: Sized | None = None) -> GraphExecutable:
        """See Loader.

        Raises:
            UnsupportedError: nothing that is installed runs it, or it calls registered functions,
                or has threads.
            LoweringError: it cannot be linked.
            MachineError: the machine rejects it.
        """
        machine = machine_of(program.target)
        return ElsewhereExecutable(program, machine, machine.load(image_of(program)), sized)


def _nowhere(given: int, made: int, constants: int, arena: int, dims: int) -> None:
    raise AssertionError("a program for another machine has no address here")


ELSEWHERE = ElsewhereLoader()
