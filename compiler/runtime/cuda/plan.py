"""The steps of a program for known sizes: which functions are launched on which addresses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from compiler.codegen.kernel_abi import Launch
from compiler.codegen.steps import Pointer, Step
from compiler.errors import LoweringError, MachineError, OutOfMemoryError, UnsupportedError
from compiler.runtime.cuda.device import Device, Module
from compiler.runtime.cuda.driver import CudaError, Driver, Extent
from compiler.runtime.program import Program
from compiler.symbolic import Var


@dataclass(frozen=True)
class Addresses:
    """Where the tensors of a call are."""

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    constants: tuple[int, ...]
    workspace: int

    def of(self, base: str, index: int, offset: int) -> int:
        """The address of a pointer (see `compiler.codegen.steps.Pointer`)."""
        if base == "workspace":
            return self.workspace + offset
        table = {"input": self.inputs, "output": self.outputs, "constant": self.constants}
        return table[base][index] + offset


@dataclass(frozen=True)
class Ready:
    """A step whose sizes are known: a launch, or, without a function, a copy of `nbytes` bytes."""

    step: Step
    who: str
    places: tuple[tuple[str, int, int], ...]
    dims: tuple[int, ...] = ()
    function: int | None = None
    grid: Extent = (1, 1, 1)
    block: Extent = (1, 1, 1)
    shared: int = 0
    nbytes: int = 0

    @property
    def idle(self) -> bool:
        """Whether there is nothing to do."""
        return not self.nbytes if self.function is None else min(self.grid) < 1

    def put(self, driver: Driver, at: Addresses, stream: int) -> None:
        """Put it on a stream.

        Raises:
            MachineError, OutOfMemoryError: it is not launched; names what it computes.
        """
        if self.idle:
            return
        pointers = [at.of(*place) for place in self.places]
        with blaming(self.who):
            if self.function is not None:
                given = [*pointers, *self.dims]
                driver.launch(self.function, self.grid, self.block, given, self.shared, stream)
            else:
                driver.copy(pointers[0], pointers[1], self.nbytes, stream)


@contextmanager
def blaming(who: str) -> Iterator[None]:
    """Let errors of the driver say who met them."""
    try:
        yield
    except CudaError as error:
        raise CudaError(f"{who}: {error}", error.name, error.dead) from error
    except MachineError as error:
        raise MachineError(f"{who}: {error}") from error
    except OutOfMemoryError as error:
        raise OutOfMemoryError(f"{who}: {error}") from error


class Code:
    """The modules of a program on a device.

    Raises:
        LoweringError: a module is rejected, or a stage is for no grid of threads.
        UnsupportedError: the program calls functions of this process, or asks whether its kernels
            round.
    """

    def __init__(self, program: Program, device: Device):
        program.refuse_externals("cannot be called on a GPU")
        self._modules: dict[str, Module] = {}
        for kernel in program.kernels:
            if kernel.stages:
                with rejected(kernel.stages[0].symbol):
                    module = device.module(kernel.code)
                self._modules.update({s.symbol: module for s in kernel.stages})
        self._names = _names(program.steps)
        self._program = program
        for s in program.steps:
            if s.stage is not None and s.stage.launch is None:
                raise LoweringError(f"{s.stage.symbol} is for no grid of threads")
            if s.watch is not None or s.when is not None:
                raise UnsupportedError("no GPU tells whether it has rounded")

    def ready(self, dims: Mapping[Var, int]) -> list[Ready]:
        """The steps for sizes."""
        found = []
        for s, who in zip(self._program.steps, self._names, strict=True):
            places = tuple(_place(p, dims) for p in s.pointers)
            if s.stage is None or s.stage.launch is None:
                found.append(Ready(s, who, places, nbytes=int(s.size.value(dims))))
                continue
            at: Launch = s.stage.launch
            x, y, z = (int(n.value(dims)) for n in at.blocks)
            given = tuple(dims[v] for v in s.dims)
            with blaming(who):
                function = self._modules[s.stage.symbol].function(s.stage.symbol, at.shared)
            found.append(Ready(s, who, places, given, function, (x, y, z), at.threads, at.shared))
        return found

    def written(self) -> tuple[int, ...]:
        """Numbers of the inputs that the program writes to: caches that grow where they are."""
        counts = {
            s.symbol: (len(k.arguments), k.outputs) for k in self._program.kernels for s in k.stages
        }
        found = set()
        for s in self._program.steps:
            first, count = (0, 1) if s.stage is None else counts.get(s.stage.symbol, (0, 0))
            targets = s.pointers[first : first + count]
            found |= {p.index for p in targets if p.base == "input"}
        return tuple(sorted(found))


@contextmanager
def rejected(symbol: str) -> Iterator[None]:
    """Let errors of the driver's compiler name the kernel."""
    try:
        yield
    except LoweringError as error:
        raise LoweringError(f"{symbol}: {error}") from None


def _place(p: Pointer, dims: Mapping[Var, int]) -> tuple[str, int, int]:
    return p.base, p.index, int(p.offset.value(dims))


def _names(steps: Sequence[Step]) -> list[str]:
    """What each step computes, for people: its function, and the nodes of the model. Only the first
    stage of a kernel has these."""
    names, kernel, nodes = [], "", ""
    for s in steps:
        if s.stage is None:
            names.append("a copy between results")
            continue
        base = s.stage.symbol.rpartition("_")[0]
        if s.nodes or base != kernel:
            kernel, nodes = base, s.nodes
        names.append(f"{s.stage.symbol} ({nodes})" if nodes else s.stage.symbol)
    return names
