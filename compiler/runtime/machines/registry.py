"""Which machines run which architectures here."""

from __future__ import annotations

from collections.abc import Callable

from compiler.errors import UnsupportedError, unknown
from compiler.runtime.machines.machine import Machine
from compiler.target.registry import Target


def _wasmtime() -> Machine:
    from compiler.runtime.machines.wasmtime import WASMTIME

    return WASMTIME


def _node() -> Machine:
    from compiler.runtime.machines.node import NODE

    return NODE


def _qemu_arm() -> Machine:
    from compiler.runtime.machines.qemu_arm import QEMU_ARM

    return QEMU_ARM


def _qemu_user() -> Machine:
    from compiler.runtime.machines.qemu_user import QEMU_USER

    return QEMU_USER


_MACHINES: dict[str, dict[str, Callable[[], Machine]]] = {
    "wasm32": {"wasmtime": _wasmtime, "node": _node},
    "thumb": {"qemu-system-arm": _qemu_arm},
    "aarch64": {"qemu-user": _qemu_user},
    "riscv64": {"qemu-user": _qemu_user},
}
"""Architecture -> machines by name, the preferred one first; each is imported when it is wanted."""


def machines_of(target: Target) -> list[Machine]:
    """The machines that run a target's architecture, the preferred one first, installed or not."""
    return [machine() for machine in _MACHINES.get(target.architecture.name, {}).values()]


def machine_of(target: Target) -> Machine:
    """The machine that a target names (`-runner=`), or the first that is installed.

    Raises:
        UnsupportedError: there is no such machine, or none is installed; says what to install.
    """
    known = {m.name: m for m in machines_of(target)}
    if not known:
        raise UnsupportedError(
            f"nothing runs code for {target.triple} here: export the model and run it there"
        )
    if target.runner:
        if target.runner not in known:
            of = f"machine for {target.triple}"
            raise UnsupportedError(f"target {str(target)!r}: {unknown(of, target.runner, known)}")
        known = {target.runner: known[target.runner]}
    lacking = []
    for machine in known.values():
        why = machine.missing(target)
        if not why:
            return machine
        lacking.append(why)
    raise UnsupportedError(f"target {str(target)!r} does not run here: {'; or '.join(lacking)}")


def missing(target: Target) -> str:
    """Why code for a target does not run here, in one sentence; empty: it does."""
    if not target.elsewhere:
        return "" if target.runnable else f"this CPU has not all that {str(target)!r} needs"
    try:
        machine_of(target)
    except UnsupportedError as error:
        return str(error)
    return ""


def register_machine(architecture: str, name: str, machine: Callable[[], Machine]) -> None:
    """Let code for an architecture (see `compiler.target.cpus.Architecture`) run on another
    machine, which is tried after those that are there.

    Raises:
        UnsupportedError: there is one of that name.
    """
    known = _MACHINES.setdefault(architecture, {})
    if name in known:
        raise UnsupportedError(f"there is a machine {name!r} for {architecture} already")
    known[name] = machine


def remove_machine(architecture: str, name: str) -> None:
    """Forget a machine, if there is one of that name."""
    _MACHINES.get(architecture, {}).pop(name, None)
