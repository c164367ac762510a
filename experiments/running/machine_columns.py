"""Columns of the machine that a cell's code ran on, where that is none of this processor's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from compiler.target.accelerator import KIND
from experiments.results.schema import Value

if TYPE_CHECKING:
    from compiler.runtime.executable import Executable


def emulator_of(executable: Executable) -> str:
    """What emulates the machine that it runs on; empty: nothing does. What stands in for an
    executable, a function say, runs here."""
    return str(getattr(executable, "emulated", ""))


def machine_columns(executable: Executable) -> dict[str, Value]:
    """`machine` and `emulated`: what runs the code, and whether its times say nothing; of an
    accelerator also `cycles` and `utilization`."""
    from compiler.runtime.elsewhere import ElsewhereExecutable
    from experiments.devices.executable import DeviceExecutable

    emulator = emulator_of(executable)
    name = emulator
    if isinstance(executable, ElsewhereExecutable):
        name = executable.machine.name
    elif isinstance(executable, DeviceExecutable):
        name = executable.machine
    columns: dict[str, Value] = {"machine": name, "emulated": "yes" if emulator else "no"}
    return {**columns, **_cost_columns(executable)}


def _cost_columns(executable: Executable) -> dict[str, Value]:
    """`cycles` and `utilization`, of an accelerator; none of others."""
    if getattr(getattr(executable, "target", None), "kind", "") != KIND:
        return {}
    from compiler.engines.accelerator import cost

    found = cost(executable)
    return {} if found is None else {"cycles": found.cycles, "utilization": found.utilization}


def instructions_of(executable: Executable) -> int | None:
    """How many instructions the last call took; None, where nobody counts them."""
    from compiler.runtime.elsewhere import ElsewhereExecutable
    from experiments.devices.executable import DeviceExecutable

    if isinstance(executable, ElsewhereExecutable | DeviceExecutable):
        return executable.instructions
    return None
