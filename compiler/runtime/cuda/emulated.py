"""A device that is none: PTX is interpreted, in memory of this process, at once."""

from __future__ import annotations

import ctypes
import itertools
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol, cast

from compiler.errors import DtypelabError, LoweringError, MachineError, OutOfMemoryError
from compiler.runtime.cuda.driver import CudaError, Extent, Figures, Properties

MEMORY = 4 << 30
"""Bytes that programs may have there."""


class DeviceMemory(Protocol):
    """Memory of an interpreter, at addresses of its own."""

    def allocate(self, nbytes: int) -> int:
        """Where so many bytes are. Raises MachineError or OutOfMemoryError: there is no room."""

    def free(self, address: int) -> None:
        """Let go of what `allocate` gave."""

    def write(self, address: int, data: bytes) -> None:
        """Put bytes there."""

    def read(self, address: int, nbytes: int) -> bytes:
        """What is there."""


class Interpreter(Protocol):
    """What runs PTX: the module `compiler.runtime.machines.ptx`, or what a test has instead."""

    def Memory(self, limit: int) -> DeviceMemory:  # noqa: N802
        """Memory of at most `limit` bytes."""

    def parse(self, text: str) -> Any:
        """Code of a text. Raises DtypelabError: it is no PTX, or what is not known."""

    def launch(
        self,
        module: Any,
        name: str,
        *,
        grid: Extent,
        block: Extent,
        args: Sequence[int],
        memory: DeviceMemory,
        shared: int = 0,
        seed: int | None = None,
        races: bool = False,
    ) -> object:
        """Run a grid of threads. `seed` chooses the order in which warps take turns; `races`:
        what two of them do to one byte without waiting for each other is an error. Raises
        MachineError: the program does what it may not."""


def _interpreter() -> Interpreter:
    from compiler.runtime.machines import ptx

    return cast(Interpreter, ptx)


class EmulatedDriver:
    """See `compiler.runtime.cuda.driver.Driver`. It refuses what CUDA refuses while a stream is
    captured, so that programs that do it are found here.

    Attributes:
        seed: of the order in which warps take turns.
        races: whether what two warps do to a byte of shared memory, without waiting for each other,
            is an error.
    """

    emulated = "interpreter of PTX"
    place: tuple[int, int] | None = None

    def __init__(self, interpreter: Interpreter | None = None, limit: int = MEMORY):
        self._interpreter = interpreter or _interpreter()
        self.memory = self._interpreter.Memory(limit=limit)
        self.seed: int | None = None
        self.races = False
        self.properties = Properties(
            "the interpreter of PTX", (9, 0), 1, limit, 1024, 65536, 232448, 2048
        )
        self._used: dict[int, int] = {}
        self._handles = itertools.count(1)
        self._modules: dict[int, Any] = {}
        self._kernels: dict[int, tuple[int, str]] = {}
        self._streams: dict[int, list[Callable[[], None]] | None] = {}  # what is captured of each
        self._graphs: dict[int, list[Callable[[], None]]] = {}
        self._events: dict[int, float] = {}

    def _put(self, stream: int, action: Callable[[], None]) -> None:
        captured = self._streams[stream]
        if captured is None:
            action()
        else:
            captured.append(action)

    def _add(self, table: dict[int, Any], value: Any) -> int:
        handle = next(self._handles)
        table[handle] = value
        return handle

    # ---- memory ----------------------------------------------------------------------------------
    def free_bytes(self) -> int:
        """See Driver."""
        return self.properties.memory - sum(self._used.values())

    def allocate(self, nbytes: int) -> int:
        """See Driver."""
        if nbytes > self.free_bytes():
            raise OutOfMemoryError("the interpreter's limit is reached")
        try:
            address = self.memory.allocate(nbytes)
        except (MachineError, MemoryError) as error:
            raise OutOfMemoryError(str(error)) from None
        self._used[address] = nbytes
        return address

    def free(self, address: int) -> None:
        """See Driver."""
        del self._used[address]
        self.memory.free(address)

    def zero(self, address: int, nbytes: int, stream: int) -> None:
        """See Driver."""
        self._put(stream, lambda: self.memory.write(address, bytes(nbytes)))

    def upload(self, address: int, host: int, nbytes: int, stream: int) -> None:
        """See Driver."""
        self._put(stream, lambda: self.memory.write(address, ctypes.string_at(host, nbytes)))

    def download(self, host: int, address: int, nbytes: int, stream: int) -> None:
        """See Driver."""

        def action() -> None:
            ctypes.memmove(host, bytes(self.memory.read(address, nbytes)), nbytes)

        self._put(stream, action)

    def copy(self, target: int, source: int, nbytes: int, stream: int) -> None:
        """See Driver."""
        self._put(
            stream,
            lambda: self.memory.write(target, bytes(self.memory.read(source, nbytes))),
        )

    # ---- code ------------------------------------------------------------------------------------
    def module(self, text: bytes) -> int:
        """See Driver."""
        try:
            parsed = self._interpreter.parse(text.decode())
        except DtypelabError as error:
            raise LoweringError(f"the interpreter of PTX rejects the code: {error}") from None
        return self._add(self._modules, parsed)

    def unload(self, module: int) -> None:
        """See Driver."""
        del self._modules[module]

    def function(self, module: int, name: str, shared: int = 0) -> int:
        """See Driver."""
        return self._add(self._kernels, (module, name))

    def figures(self, function: int) -> Figures:
        """See Driver; there are none."""
        raise CudaError("an interpreter has no registers: ask ptxas")

    def occupancy(self, function: int, threads: int, shared: int = 0) -> int:
        """See Driver; there is none."""
        raise CudaError("an interpreter runs one block after another: ask ptxas")

    def launch(
        self,
        function: int,
        grid: Extent,
        block: Extent,
        arguments: Sequence[int],
        shared: int,
        stream: int,
    ) -> None:
        """See Driver."""
        module, name = self._kernels[function]
        code, given = self._modules[module], list(arguments)

        def action() -> None:
            self._interpreter.launch(
                code,
                name,
                grid=grid,
                block=block,
                args=given,
                memory=self.memory,
                shared=shared,
                seed=self.seed,
                races=self.races,
            )

        self._put(stream, action)

    # ---- order and time --------------------------------------------------------------------------
    def stream(self) -> int:
        """See Driver."""
        return self._add(self._streams, None)

    def close_stream(self, stream: int) -> None:
        """See Driver."""
        del self._streams[stream]

    def synchronize(self, stream: int | None) -> None:
        """See Driver."""
        streams = self._streams if stream is None else [stream]
        if any(self._streams[s] is not None for s in streams):
            name = "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"
            raise CudaError(f"{name}: a stream that is captured is waited for", name)

    def event(self) -> int:
        """See Driver."""
        return self._add(self._events, 0.0)

    def close_event(self, event: int) -> None:
        """See Driver."""
        del self._events[event]

    def record(self, event: int, stream: int) -> None:
        """See Driver."""

        def action() -> None:
            self._events[event] = time.perf_counter()

        self._put(stream, action)

    def milliseconds(self, first: int, second: int) -> float:
        """See Driver."""
        return (self._events[second] - self._events[first]) * 1e3

    def begin_capture(self, stream: int) -> None:
        """See Driver."""
        self._streams[stream] = []

    def end_capture(self, stream: int) -> int:
        """See Driver."""
        captured, self._streams[stream] = self._streams[stream], None
        return self._add(self._graphs, captured)

    def abandon_capture(self, stream: int) -> None:
        """See Driver."""
        self._streams[stream] = None

    def launch_graph(self, graph: int, stream: int) -> None:
        """See Driver."""
        for action in self._graphs[graph]:
            self._put(stream, action)

    def close_graph(self, graph: int) -> None:
        """See Driver."""
        del self._graphs[graph]
