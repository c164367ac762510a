"""Targets as devices: this machine once more, or another one in an emulator."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from compiler.boundary.inputs import bind_inputs
from compiler.devices.device import Device, Runner, check_name, registered_devices
from compiler.errors import ConfigError, UnsupportedError
from compiler.ir.devices import HOST
from compiler.ir.expr import Function, IRModule
from compiler.ir.outside import DEVICE
from compiler.runtime.executable import Executable
from compiler.runtime.loader import require
from compiler.target.registry import Target

Compile = Callable[[IRModule, Target], Executable]
"""Compiles the main of a module for a target."""


def devices_of(
    targets: Mapping[str, str | Target | Device], compile_main: Compile
) -> tuple[Target, dict[str, Device]]:
    """The target of the host, and all devices by name: those registered, and those of `targets`,
    what else a device's name stands for.

    Raises:
        ConfigError: there is no host, or a name is none.
        UnsupportedError: unknown target.
    """
    if HOST not in targets:
        raise ConfigError(f"targets of several devices need one called {HOST!r}, for all the rest")
    host = targets[HOST]
    if isinstance(host, Device):
        raise ConfigError(f"{HOST!r} must be a target, such as 'llvm', not device {host.name!r}")
    found = registered_devices()
    for name, what in targets.items():
        if name == HOST:
            continue
        check_name(name)
        if isinstance(what, Device):
            found[name] = replace(what, name=name)
        else:
            found[name] = target_device(name, Target.parse(what), compile_main)
    return Target.parse(host), found


def target_device(name: str, target: Target, compile_main: Compile) -> Device:
    """A device whose functions are compiled for a target. Its memory is apart from the host's;
    where an emulator has none between calls, values wait in this process."""

    def compiled(f: Function, _: str) -> Runner:
        attrs = {k: v for k, v in f.attrs.items() if k != DEVICE}
        exe = compile_main(IRModule({"main": replace(f, attrs=attrs)}), target)

        def run(values: Sequence[Any]) -> Sequence[Any]:
            arrays, dims = bind_inputs(list(exe.inputs.items()), tuple(values), {})
            return exe.run(arrays, dims)

        return run

    def missing() -> str:
        try:
            require(target)
        except UnsupportedError as e:
            return str(e)
        return ""

    return Device(name, compiled, missing=missing, doc=target.text)
