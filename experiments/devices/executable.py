"""Executables whose programs are on a device."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NoReturn, TypeVar

from compiler.boundary.inputs import bind_inputs
from compiler.codegen.linking import missing
from compiler.errors import LoweringError, UnsupportedError
from compiler.exporting.export import Relocatable, relocatable
from compiler.ir.expr import IRModule
from compiler.runtime.executable import Executable, GraphExecutable
from compiler.scheduling.tuning_log import of_machine
from compiler.symbolic import Var
from compiler.target.registry import Target
from compiler.types.dtypes import Array
from experiments.measure.latency import LatencyStats
from experiments.measure.speedup import Protocol, Speedup

from .client import Device, DeviceError

T = TypeVar("T")


def build(
    mod: IRModule,
    device: Device,
    target: str = "llvm",
    threads: int = 1,
    dtype_lowering: str | None = None,
) -> DeviceExecutable:
    """Compile a module here for a device; it is sent there when it is first called.

    Args:
        mod: the module, without control flow.
        device: where it runs.
        target: `llvm` is the device's own CPU.
        threads: 1, as there are no others yet.
        dtype_lowering: as for `compiler.build`.

    Raises:
        DeviceError: the device does not answer, or nothing here links what is for it.
        UnsupportedError: the device has no such target, or the module cannot stand alone.
    """
    if threads != 1:
        raise UnsupportedError(f"programs on devices run on one thread: not on {threads}")
    chosen = device.machine.target(target)
    with of_machine(device.machine.llvm_cpu):
        made = relocatable(mod, chosen, dtype_lowering)
    return DeviceExecutable(made, device, content_of(made, chosen, device))


def content_of(made: Relocatable, target: Target, device: Device) -> bytes:
    """What is sent: a library if it can be linked here, else what the device links."""
    if device.machine.runner:  # each links in its own way
        return made.content
    if not missing(target):
        try:
            return made.library()
        except LoweringError:
            if not device.machine.linker:
                raise
    if not device.machine.linker:
        raise DeviceError(
            f"device {device.address} has no C compiler to link with, and here {missing(target)}"
        )
    return made.content


class DeviceExecutable(GraphExecutable):
    """The program of a module on a device; called as what `compiler.build` makes.

    Attributes:
        device: where it is.
        content: what is sent there.
        instructions: how many the last call took; None, if the device does not count them.
    """

    instructions: int | None = None

    def __init__(self, made: Relocatable, device: Device, content: bytes):
        super().__init__(replace(made.program, constants=()), _nowhere)
        self.device, self.content = device, content
        self.elements, self.indices = made.facts.elements, made.facts.indices

    def run(
        self, arrays: Sequence[Array], dims: Mapping[Var, int], held: Sequence[Array] = ()
    ) -> list[Array]:
        """See Executable.

        Raises:
            DeviceError: the device was lost, or the program was stopped there.
        """
        shapes, _, values = self._sizes(dims)
        if values is None:
            return self._outputs(shapes)
        found = self.device.run(self.content, arrays)
        self.instructions = self.device.counted
        kinds = [t.dtype.storage for _, t in self.program.outputs]
        if [(a.shape, a.dtype) for a in found] != list(zip(shapes, kinds, strict=True)):
            raise DeviceError(f"device {self.device.address} gives outputs of other types")
        return found

    @property
    def machine(self) -> str:
        """The device, for people."""
        runner = self.device.machine.runner
        return f"{runner} of {self.device.address}" if runner else self.device.address

    @property
    def emulated(self) -> str:
        """See Executable."""
        return self.device.emulator

    def prepared(self) -> Callable[[Sequence[Array]], list[Array]] | None:
        """See GraphExecutable; there is nothing quicker."""
        return None

    def stats(self) -> str:
        """What it is."""
        return f"program for {self.target} on device {self.device.address}\n  {self.signature()}"

    def save(self, path: str | os.PathLike[str]) -> None:
        """See Executable.

        Raises:
            UnsupportedError: programs on devices are not kept here.
        """
        raise UnsupportedError("a program on a device is not saved: export it for that target")


def _nowhere(*_: int) -> NoReturn:
    raise DeviceError("a program on a device has no address here")


def interleaved(
    programs: Iterable[Executable], inputs: Iterable[object], warmup: int, runs: int
) -> list[LatencyStats]:
    """`measure_interleaved` of programs on one device, for the same inputs, by its clock.

    Raises:
        DeviceError: as `DeviceExecutable.run`.
    """
    there = [_there(p) for p in programs]
    said = _measured(there, inputs, how="interleaved", warmup=warmup, runs=runs)
    return _read(there[0].device, lambda: [LatencyStats(**s) for s in said["stats"]])


def speedup(
    program: Executable,
    baseline: Executable | None,
    inputs: Iterable[object],
    protocol: Protocol,
) -> Speedup:
    """`measure_speedup` of programs on one device, for the same inputs, by its clocks.

    Raises:
        DeviceError: as `DeviceExecutable.run`.
    """
    there = [_there(p) for p in (program, baseline) if p is not None]
    said = _measured(
        there, inputs, how="speedup", warmup=protocol.warmup, runs=protocol.runs,
        precision=protocol.precision, budget_s=protocol.budget_s,
    )  # fmt: skip

    def read() -> Speedup:
        found = dict(said["speedup"])
        latency, noise = LatencyStats(**found.pop("latency")), tuple(found.pop("noise"))
        return Speedup(latency=latency, noise=noise, **found)

    return _read(there[0].device, read)


def _there(program: Executable) -> DeviceExecutable:
    if not isinstance(program, DeviceExecutable):
        raise UnsupportedError("only programs that were built for a device are measured there")
    return program


def _measured(
    programs: Sequence[DeviceExecutable], inputs: Iterable[object], **how: object
) -> Mapping[str, Any]:
    arrays, _ = bind_inputs(list(programs[0].inputs.items()), list(inputs), {})
    contents = [p.content for p in programs]
    return programs[0].device.measure(contents, arrays, **how)


def _read(device: Device, how: Callable[[], T]) -> T:
    try:
        return how()
    except (KeyError, TypeError, ValueError, AttributeError):
        raise DeviceError(f"device {device.address} says no times: update dtypelab there") from None
