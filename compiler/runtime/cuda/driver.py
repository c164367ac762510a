"""What is asked of a device with grids of threads: a protocol in the words of CUDA's driver API.

Everything that runs there is put on a stream, and done in order; `synchronize` waits for it.
Handles (streams, modules, functions, events, graphs) are integers, addresses too. A driver may be
called from several threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from compiler.errors import MachineError

Extent = tuple[int, int, int]
"""How many there are along x, y and z."""


class CudaError(MachineError):
    """A call of the driver has failed.

    Attributes:
        name: CUDA's name of the error, such as CUDA_ERROR_INVALID_VALUE.
        dead: whether nothing can run in this process any more.
    """

    def __init__(self, message: str, name: str = "", dead: bool = False):
        super().__init__(message)
        self.name, self.dead = name, dead


@dataclass(frozen=True)
class Properties:
    """What a device is.

    Attributes:
        name: what its maker calls it.
        capability: its compute capability, such as (9, 0).
        multiprocessors: how many it has.
        memory: bytes.
        threads, registers: the most that a block has; registers of 32 bits.
        shared: bytes of shared memory that a block can have.
        resident: the most threads on a multiprocessor at once.
        clock: megahertz at most; 0: not known.
    """

    name: str
    capability: tuple[int, int]
    multiprocessors: int
    memory: int
    threads: int
    registers: int
    shared: int
    resident: int
    clock: int = 0

    @property
    def chip(self) -> str:
        """The least that code must be for to use all of it, such as `sm_90`."""
        return f"sm_{self.capability[0]}{self.capability[1]}"


@dataclass(frozen=True)
class Figures:
    """What a function takes: registers a thread, bytes of shared memory that its code declares, and
    bytes of a thread's own memory, where registers are spilled to."""

    registers: int
    shared: int
    local: int


class Driver(Protocol):
    """One device and the way to it.

    All methods raise CudaError if they fail, in CUDA's words, and OutOfMemoryError if the device
    has no room. Once an error has ended everything (`CudaError.dead`), all raise that error, but
    those that let go of something, which then do nothing.

    Attributes:
        properties: of the device.
        emulated: what stands in for a device, whose times say nothing; empty: it is a device.
        place: type and number of the device in DLPack; None: nobody else can read its memory.
    """

    properties: Properties
    emulated: str
    place: tuple[int, int] | None

    def free_bytes(self) -> int:
        """Bytes of the device's memory that nobody has."""

    def allocate(self, nbytes: int) -> int:
        """Where `nbytes` > 0 bytes are, at a multiple of 256.

        Raises:
            OutOfMemoryError: there are not so many.
        """

    def free(self, address: int) -> None:
        """Let go of what `allocate` gave."""

    def zero(self, address: int, nbytes: int, stream: int) -> None:
        """Fill memory of the device with zeros."""

    def upload(self, address: int, host: int, nbytes: int, stream: int) -> None:
        """Copy from this process's memory at `host`, which stays as it is until that is done."""

    def download(self, host: int, address: int, nbytes: int, stream: int) -> None:
        """Copy to this process's memory at `host`."""

    def copy(self, target: int, source: int, nbytes: int, stream: int) -> None:
        """Copy within the device."""

    def module(self, text: bytes) -> int:
        """Code from PTX.

        Raises:
            LoweringError: it is rejected; has what the driver's compiler says.
        """

    def unload(self, module: int) -> None:
        """Let go of a module."""

    def function(self, module: int, name: str, shared: int = 0) -> int:
        """A kernel of a module, which may be launched with `shared` bytes of shared memory besides
        those that it declares."""

    def figures(self, function: int) -> Figures:
        """What a function takes."""

    def occupancy(self, function: int, threads: int, shared: int = 0) -> int:
        """How many blocks of so many threads a multiprocessor runs at once."""

    def launch(
        self,
        function: int,
        grid: Extent,
        block: Extent,
        arguments: Sequence[int],
        shared: int,
        stream: int,
    ) -> None:
        """Put a grid of threads on a stream; `arguments`: of 8 bytes each."""

    def stream(self) -> int:
        """A new stream."""

    def close_stream(self, stream: int) -> None:
        """Let go of a stream on which nothing is left to do."""

    def synchronize(self, stream: int | None) -> None:
        """Wait for all that is on a stream; None: on the device. Raises what failed there."""

    def event(self) -> int:
        """A new event."""

    def close_event(self, event: int) -> None:
        """Let go of an event."""

    def record(self, event: int, stream: int) -> None:
        """Let an event be when all that is on the stream now is done."""

    def milliseconds(self, first: int, second: int) -> float:
        """How long after an event another was; waits for it."""

    def begin_capture(self, stream: int) -> None:
        """Keep what is put on the stream from now on, instead of doing it."""

    def end_capture(self, stream: int) -> int:
        """What was kept, as a graph that can be launched."""

    def abandon_capture(self, stream: int) -> None:
        """Forget what was kept."""

    def launch_graph(self, graph: int, stream: int) -> None:
        """Put all that a graph holds on a stream."""

    def close_graph(self, graph: int) -> None:
        """Let go of a graph."""
