"""Tuning on a device: candidates are compiled here, and run and timed there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from compiler.ir.expr import Function, IRModule
from compiler.runtime.executable import Executable
from compiler.scheduling.choices import Choice
from compiler.scheduling.tuning_log import of_machine
from compiler.target.registry import Target
from compiler.tuning.places import alone
from compiler.types.dtypes import Array

from .client import Device, DeviceError
from .executable import DeviceExecutable, build, content_of


@dataclass(frozen=True)
class _Kernel:
    """What is sent, and its inputs."""

    content: bytes
    inputs: Sequence[Array]


class DevicePlace:
    """See `compiler.tuning.places.Place`."""

    def __init__(self, device: Device):
        self.device, self.cpu = device, device.machine.llvm_cpu

    def kernel(
        self,
        function: Function,
        target: Target,
        inputs: Sequence[Array],
        choice: Choice | None = None,
    ) -> _Kernel:
        """See Place."""
        with of_machine(self.cpu):
            made, arrays = alone(function, target, inputs, choice)
        return _Kernel(content_of(made, target, self.device), arrays)

    def result(self, kernel: _Kernel) -> bytes:
        """See Place."""
        outs = self.device.run(kernel.content, kernel.inputs)
        return b"".join(out.tobytes() for out in outs)

    def kernels_in_turns(self, first: _Kernel, second: _Kernel, rounds: int) -> tuple[float, float]:
        """See Place."""
        return self._in_turns(first.content, second.content, first.inputs, rounds)

    def network(self, mod: IRModule, target: Target) -> Executable:
        """See Place."""
        return build(mod, self.device, str(target))

    def networks_in_turns(
        self, first: Executable, second: Executable, inputs: Sequence[Array], rounds: int
    ) -> tuple[float, float]:
        """See Place."""
        assert isinstance(first, DeviceExecutable), "`network` made it"
        assert isinstance(second, DeviceExecutable), "`network` made it"
        return self._in_turns(first.content, second.content, inputs, rounds)

    def _in_turns(
        self, first: bytes, second: bytes, inputs: Sequence[Array], rounds: int
    ) -> tuple[float, float]:
        how = {"how": "turns", "warmup": 0, "runs": rounds}
        said = self.device.measure([first, second], inputs, **how)
        try:
            before, after = map(float, said["ms"])
        except (KeyError, TypeError, ValueError):
            text = f"device {self.device.address} says no times: update dtypelab there"
            raise DeviceError(text) from None
        return before, after
