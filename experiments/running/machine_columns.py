"""Columns of the machine that a cell's code ran on, where that is none of this processor's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from experiments.results.schema import Value

if TYPE_CHECKING:
    from compiler.runtime.executable import Executable


def machine_columns(executable: Executable) -> dict[str, Value]:
    """`machine` and `emulated`: what runs the code, and whether its times say nothing."""
    from compiler.runtime.elsewhere import ElsewhereExecutable
    from experiments.devices.executable import DeviceExecutable

    name = executable.emulated
    if isinstance(executable, ElsewhereExecutable):
        name = executable.machine.name
    elif isinstance(executable, DeviceExecutable):
        name = executable.machine
    return {"machine": name, "emulated": "yes" if executable.emulated else "no"}


def instructions_of(executable: Executable) -> int | None:
    """How many instructions the last call took; None, where nobody counts them."""
    from compiler.runtime.elsewhere import ElsewhereExecutable
    from experiments.devices.executable import DeviceExecutable

    counting = isinstance(executable, ElsewhereExecutable | DeviceExecutable)
    return executable.instructions if counting else None
