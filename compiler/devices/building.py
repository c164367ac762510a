"""Programs on several devices are planned, linked and compiled."""

from __future__ import annotations

from collections.abc import Mapping

from compiler.devices.device import Device
from compiler.devices.linking import linked
from compiler.devices.targets import Compile, devices_of
from compiler.errors import UnsupportedError
from compiler.ir.devices import HOST, placements
from compiler.ir.expr import IRModule
from compiler.runtime.executable import Executable
from compiler.runtime.loader import require
from compiler.target.registry import Target
from compiler.transform.plan_devices import PlanDevices
from compiler.transform.preparation import prepare

Targets = Mapping[str, str | Target | Device]
"""Name of a device, the host's among them -> what it is."""


def built_on_devices(mod: IRModule, targets: Targets, alone: Compile, rest: Compile) -> Executable:
    """Compile `main` of a module for several devices: what a target computes by `alone`, and what
    is the host's by `rest`.

    Raises:
        ConfigError, InputError, UnsupportedError, VerifyError: see PlanDevices, and `linked`.
    """
    parts: list[Executable] = []

    def part(mod: IRModule, target: Target) -> Executable:
        parts.append(alone(mod, target))
        return parts[-1]

    host, devices = devices_of(targets, part)
    require(host)
    if host.elsewhere:
        raise UnsupportedError(
            f"target {host.text!r} is another machine, and {HOST!r}, which calls the other "
            "devices, must be this one"
        )
    planned = _planned(mod, devices)
    main, holder = linked(planned, devices)
    exe = rest(main, host)
    exe.placements, exe.copied, exe.devices = placements(planned), holder.copied, holder
    every = [choice for e in (exe, *parts) for choice in e.lowerings]
    exe.lowerings = tuple(dict.fromkeys(every))
    return exe


def plan_devices(mod: IRModule, target: Targets | None = None) -> IRModule:
    """A module whose parts are functions of the devices that compute them, with the copies that
    they need, as `build` makes it for several targets: to be read, printed, or built. The module is
    simplified first, as `build` does.

    Args:
        mod: the module, with annotations (see `place`).
        target: as for `build`; devices that are registered need not be named.

    Raises:
        ConfigError, InputError, UnsupportedError: as `build`.
    """

    def nothing(part: IRModule, chosen: Target) -> Executable:
        raise AssertionError("nothing is compiled where devices are planned")

    return _planned(mod, devices_of(target or {HOST: "llvm"}, nothing)[1])


def _planned(mod: IRModule, devices: Mapping[str, Device]) -> IRModule:
    return PlanDevices({name: d.refuses for name, d in devices.items()})(prepare(mod))
