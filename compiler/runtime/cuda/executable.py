"""Programs on a GPU: weights and values between kernels stay there, and a call is one graph."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from compiler.boundary.inputs import bind_inputs, dimensions, named_inputs
from compiler.errors import DtypelabError, InputError, MachineError
from compiler.runtime.addresses import address
from compiler.runtime.cuda.device import Device
from compiler.runtime.cuda.device_arrays import DeviceArray, Given, given, on_a_device
from compiler.runtime.cuda.memory import Block, quantity
from compiler.runtime.cuda.plan import Addresses, Code, Ready, blaming
from compiler.runtime.cuda.timing import clock, step_times
from compiler.runtime.executable import GraphExecutable, Sized
from compiler.runtime.memory import ALIGN as ALIGN_OF_PARTS
from compiler.runtime.program import Program
from compiler.symbolic import Var
from compiler.tensor.stmt import SLACK
from compiler.types.dtypes import Array
from compiler.types.tensor_types import TensorType, shape_text

ALIGN = 256
"""Tensors begin at multiples of this."""
GRAPHS = 16
"""Graphs that an executable keeps: one for each combination of sizes and addresses."""
_ONCE = 0
"""In the place of a graph: these steps were launched one by one, so far."""


class CudaExecutable(GraphExecutable):
    """A program on a GPU; called as any other. Its steps are put on one stream of its own; calls by
    several threads follow each other.

    The first call with some sizes waits for every step, so that what fails is named, and the code
    is there; the second one captures a graph of them, and those that follow launch that.

    Attributes:
        device: where it runs.
        graphs: whether steps are captured in graphs.
        stepwise: whether every call waits for every step.
    """

    graphs = True
    stepwise = False

    def __init__(self, program: Program, device: Device, sized: Sized | None = None):
        code = Code(program, device)
        super().__init__(program, _nowhere, sized)
        self.device, self._code = device, code
        self._alone = threading.Lock()
        self._plans: dict[tuple[int, ...], list[Ready]] = {}
        self._written = code.written()
        self._held = _Held(device)
        closing = weakref.finalize(self, self._held.close)
        closing.atexit = False
        try:
            with self._alone, self._calmly():
                self._weights = self._uploaded(program.constants)
        except BaseException:
            closing()
            raise
        device.pool.holders.add(self)

    @property
    def emulated(self) -> str:
        """See Executable."""
        return self.device.driver.emulated

    def run(
        self, arrays: Sequence[Array], dims: Mapping[Var, int], held: Sequence[Array] = ()
    ) -> list[Array]:
        """See Executable.

        Raises:
            MachineError: something has failed on the device; names what was computed, if that is
                known.
            OutOfMemoryError: the device has no room. Nothing is lost: all but the weights is given
                back, and calls that need less run.
        """
        shapes, size, values = self._sizes(dims)
        outs = list(held) if [a.shape for a in held] == shapes else self._outputs(shapes)
        if values is None:  # nothing to compute
            return outs
        if isinstance(values, GraphExecutable):
            return values.run(arrays, {}, held)
        with self._alone, self._calmly():
            at = self._places(arrays, outs, size, dims)
            driver, stream = self.device.driver, self._held.stream
            self._upload(arrays, at.inputs)
            self._launch(dims, at)
            changed = [(arrays[k], at.inputs[k]) for k in self._written]
            for a, there in (*changed, *zip(outs, at.outputs, strict=True)):
                if a.nbytes:
                    driver.download(address(a), there, a.nbytes, stream)
            self._wait()
        return outs

    def on_device(self, /, *args: Any, **kwargs: Any) -> Any:
        """Run the model on tensors that are on the device, as numpy arrays, `DeviceArray`s, or
        anything that DLPack takes over (torch's tensors on this device), and leave the results
        there. Inputs are named as in calls, and have the very dtype of the model: codes, if numpy
        has none. Those that are positions are not checked.

        Returns:
            A DeviceArray, or a list of them if the model has several outputs, which are ready:
            `torch.from_dlpack` takes them over without a copy.

        Raises:
            InputError: an input is missing, unknown, elsewhere, not in C order, or of the wrong
                rank, shape or dtype.
            MachineError, OutOfMemoryError: as `run`.
        """
        named = named_inputs(list(self.inputs), args, kwargs)
        with self._alone, self._calmly():
            tensors = [self._taken(n, t, named[n]) for n, t in self.inputs.items()]
            dims = dimensions(list(self.inputs.items()), [t.shape for t in tensors])
            shapes, size, values = self._sizes(dims)
            if not isinstance(values, CudaExecutable):
                outs = [
                    DeviceArray(self.device, shape, t.dtype.storage, SLACK)
                    for shape, (_, t) in zip(shapes, self.program.outputs, strict=True)
                ]
                if values is not None:
                    work = self._workspace_there(size, dims)
                    given = tuple(t.address for t in tensors)
                    made = tuple(a.address for a in outs)
                    self._launch(dims, Addresses(given, made, self._weights, work))
                    self._wait()
                return outs[0] if len(outs) == 1 else outs
        return values.on_device(*named.values())

    def _taken(self, name: str, t: TensorType, x: Any) -> Given | DeviceArray:
        """An input on the device, where kernels can read it."""
        driver, stream = self.device.driver, self._held.stream
        if on_a_device(x):
            found = given(name, x, self.device, stream)
            if (found.dtype, len(found.shape)) != (t.dtype.storage, t.rank):
                raise InputError(
                    f"input {name!r} must be {t}, in {t.dtype.storage.name}, not "
                    f"{shape_text(found.shape)} in {found.dtype.name}"
                )
            if found.address % ALIGN_OF_PARTS == 0 or not found.nbytes:
                return found
            if list(self.inputs).index(name) in self._written:
                raise InputError(
                    f"input {name!r}, which the program changes, must begin at a multiple of "
                    f"{ALIGN_OF_PARTS} bytes"
                )
            there = DeviceArray(self.device, found.shape, found.dtype, SLACK)
            driver.copy(there.address, found.address, found.nbytes, stream)
            driver.synchronize(stream)  # before `found` is gone
            return there
        (a,), _ = bind_inputs([(name, t)], (x,), {})
        there = DeviceArray(self.device, a.shape, a.dtype, SLACK)
        if a.nbytes:
            driver.upload(there.address, address(a), a.nbytes, stream)
            driver.synchronize(stream)
        return there

    def stage_times(
        self, arrays: Sequence[Array], dims: Mapping[Var, int], runs: int
    ) -> list[list[float]] | None:
        """See GraphExecutable: by events of the device."""
        outs = self.run(arrays, dims)
        _, size, values = self._sizes(dims)
        if values is None:
            return [[0.0] * runs for s in self.program.steps if s.stage is not None]
        if isinstance(values, GraphExecutable):
            return values.stage_times(arrays, {}, runs)
        with self._alone, self._calmly():
            at = self._places(arrays, outs, size, dims)
            self._upload(arrays, at.inputs)
            steps = self.steps(dims)
            times = step_times(self.device.driver, steps, at, self._held.stream, runs)
            self._wait()
        return [t for t, s in zip(times, steps, strict=True) if s.step.stage is not None]

    def call_times(
        self, arrays: Sequence[Array], dims: Mapping[Var, int], runs: int
    ) -> list[float]:
        """Milliseconds of all steps together on the device, as calls launch them, in each of so
        many runs; copies from and to this process's memory are not counted.

        Raises:
            InputError: the sizes leave nothing to compute.
            MachineError, OutOfMemoryError: as `run`.
        """
        for _ in range(2):  # what is launched from then on is a graph
            outs = self.run(arrays, dims)
        _, size, values = self._sizes(dims)
        if values is None or isinstance(values, GraphExecutable):
            raise InputError(f"a tensor without elements is nothing to time{_of(dims)}")
        with self._alone, self._calmly():
            at = self._places(arrays, outs, size, dims)
            self._upload(arrays, at.inputs)
            with clock(self.device.driver, self._held.stream) as timed:
                times = [timed(lambda: self._launch(dims, at)) for _ in range(runs)]
            self._wait()
        return times

    def _upload(self, arrays: Sequence[Array], places: Sequence[int]) -> None:
        """Put arrays, which stay as they are until the stream was waited for, on the device."""
        for a, there in zip(arrays, places, strict=True):
            if a.nbytes:
                self.device.driver.upload(there, address(a), a.nbytes, self._held.stream)

    def _launch(self, dims: Mapping[Var, int], at: Addresses) -> None:
        """Put the steps on the stream, as a graph if these have been there before."""
        driver, stream, graphs = self.device.driver, self._held.stream, self._held.graphs
        steps = self.steps(dims)
        if self.stepwise or not self.graphs:
            self._direct(steps, at, self.stepwise)
            return
        key = (tuple(dims[v] for v in self.program.dims), at)
        if key not in graphs:
            self._direct(steps, at, wait=True)
            self._held.keep(key, _ONCE)
            return
        if graphs[key] == _ONCE:
            self._held.keep(key, self._captured(steps, at))
        graphs.move_to_end(key)
        with blaming("the program"):
            driver.launch_graph(graphs[key], stream)

    def _direct(self, steps: Sequence[Ready], at: Addresses, wait: bool) -> None:
        for s in steps:
            s.put(self.device.driver, at, self._held.stream)
            if wait and not s.idle:
                with blaming(s.who):
                    self.device.driver.synchronize(self._held.stream)

    def _captured(self, steps: Sequence[Ready], at: Addresses) -> int:
        driver, stream = self.device.driver, self._held.stream
        driver.begin_capture(stream)
        try:
            for s in steps:
                s.put(driver, at, stream)
        except BaseException:
            driver.abandon_capture(stream)
            raise
        return driver.end_capture(stream)

    def _wait(self) -> None:
        try:
            self.device.driver.synchronize(self._held.stream)
        except MachineError as error:
            hint = "; executables whose `stepwise` is True say at which kernel"
            raise MachineError(f"the program fails: {error}{hint}") from error

    def steps(self, dims: Mapping[Var, int]) -> list[Ready]:
        """What is launched for given sizes."""
        key = tuple(dims[v] for v in self.program.dims)
        if key not in self._plans:
            if len(self._plans) >= GRAPHS:
                self._plans = {}
            self._plans[key] = self._code.ready(dims)
        return self._plans[key]

    # ---- memory ----------------------------------------------------------------------------------
    def _places(
        self, arrays: Sequence[Array], outs: Sequence[Array], size: int, dims: Mapping[Var, int]
    ) -> Addresses:
        """Where the tensors of a call are, in memory that grows to the largest call seen."""
        starts = [0]
        for a in (*arrays, *outs):
            starts.append(starts[-1] + _slot(a.nbytes))
        with self._giving_back():
            border = self._held.room("border", starts[-1], f"inputs and results{_of(dims)}")
        work = self._workspace_there(size, dims)
        there = [border + n for n in starts[:-1]]
        count = len(arrays)
        return Addresses(tuple(there[:count]), tuple(there[count:]), self._weights, work)

    def _workspace_there(self, size: int, dims: Mapping[Var, int]) -> int:
        what = f"intermediate values{_of(dims)}{self._largest(dims, size)}"
        with self._giving_back():
            return self._held.room("workspace", size, what)

    @contextlib.contextmanager
    def _giving_back(self) -> Iterator[None]:
        """Keep nothing but the weights if something fails."""
        try:
            yield
        except BaseException:
            self._held.give_back()
            self.device.pool.release()
            raise

    def _uploaded(self, constants: Sequence[Array]) -> tuple[int, ...]:
        """Where constants are on the device from now on."""
        starts = [0]
        for a in constants:
            starts.append(starts[-1] + _slot(a.nbytes))
        first = self._held.room("weights", starts[-1], "weights")
        for a, start in zip(constants, starts, strict=False):
            if a.nbytes:
                ready = np.ascontiguousarray(a)
                driver = self.device.driver
                driver.upload(first + start, address(ready), a.nbytes, self._held.stream)
                driver.synchronize(self._held.stream)  # before `ready` is gone
        return tuple(first + n for n in starts[:-1])

    def let_go(self) -> None:
        """Give back the memory of the last call, unless one runs."""
        if self._alone.acquire(blocking=False):
            try:
                self._held.give_back()
            finally:
                self._alone.release()

    def device_bytes(self) -> dict[str, int]:
        """Bytes on the device: of weights, and of the borders and the workspace of calls."""
        return {name: block.nbytes for name, block in self._held.blocks.items()}

    def _calmly(self) -> _Calmly:
        return _Calmly(self.device, self._held)

    def prepared(self) -> Callable[[Sequence[Array]], list[Array]] | None:
        """See GraphExecutable: there is none, as no address here means anything there."""
        return None

    def stats(self) -> str:
        """Also says what it runs on, and what it keeps there."""
        kept = ", ".join(f"{quantity(n)} of {name}" for name, n in self.device_bytes().items())
        where = self.device.driver.properties
        return f"{super().stats()}\n  runs on: {where.name} ({where.chip})\n  there: {kept}"


class _Held:
    """What an executable has on the device."""

    def __init__(self, device: Device):
        self._device = device
        device.settle()
        self.stream = device.driver.stream()
        self.blocks: dict[str, Block] = {}
        self.graphs: OrderedDict[Any, int] = OrderedDict()

    def room(self, name: str, nbytes: int, what: str) -> int:
        """The address of at least `nbytes` bytes, which are zeros where they are new."""
        found = self.blocks.get(name)
        if found is None or found.nbytes < nbytes:
            if found is not None:
                self._drop(name)
            found = self._device.pool.take(max(nbytes, 1), what)
            self.blocks[name] = found
            self._device.driver.zero(found.address, found.nbytes, self.stream)
        return found.address

    def _drop(self, name: str) -> None:
        self._device.pool.give(self.blocks.pop(name))
        self._forget_graphs()

    def give_back(self) -> None:
        """Give back all but the weights."""
        for name in list(self.blocks):
            if name != "weights":
                self._drop(name)

    def keep(self, key: Any, graph: int) -> None:
        """Remember a graph; the one that was not used for longest is forgotten."""
        self.graphs[key] = graph
        while len(self.graphs) > GRAPHS:
            self._close(self.graphs.popitem(last=False)[1])

    def _close(self, graph: int) -> None:
        if graph != _ONCE:
            self._device.later(partial(self._device.driver.close_graph, graph))

    def _forget_graphs(self) -> None:
        for graph in self.graphs.values():
            self._close(graph)
        self.graphs.clear()

    def close(self) -> None:
        """Give back everything, from any thread."""
        self._forget_graphs()
        for block in self.blocks.values():
            self._device.pool.give(block)
        self.blocks = {}
        self._device.later(partial(self._device.driver.close_stream, self.stream))


class _Calmly:
    """Nothing of a call is on the stream any more when it ends, however it ends."""

    def __init__(self, device: Device, held: _Held):
        self._device, self._held = device, held

    def __enter__(self) -> None:
        self._device.settle()

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if error is not None:
            with contextlib.suppress(DtypelabError):  # what has failed is being raised
                self._device.driver.synchronize(self._held.stream)


def _of(dims: Mapping[Var, int]) -> str:
    """What sizes are given, for people."""
    given = ", ".join(f"{v} = {n}" for v, n in dims.items())
    return f" ({given})" if given else ""


def _slot(nbytes: int) -> int:
    """Bytes of a tensor, with those behind it that kernels may read."""
    return -(-(nbytes + SLACK) // ALIGN) * ALIGN


def _nowhere(given: int, made: int, constants: int, arena: int, dims: int) -> None:
    raise AssertionError("a program on a GPU has no address here")
