"""Programs on several devices, as text: functions of the module that a device computes, and copies.

A function with the attribute `device` is computed on that device, from values that are there, and
its results are there. `main` is computed on the host; operators `device_copy` in it copy values
between the host and devices.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass, field

from compiler.ir.expr import Call, GlobalVar, IRModule, Value
from compiler.ir.outside import DEVICE, listed, marked

HOST = "host"
"""The device that calls the others."""
ON_DEVICE = "annotation.on_device"
DEVICE_COPY = "device_copy"


@dataclass(frozen=True)
class Placement:
    """What a device computes of a program.

    Attributes:
        name: of the module's function.
        device: the device's name.
        nodes: of the imported model, that it stands for, and values that come
            from none.
    """

    name: str
    device: str
    nodes: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"@{self.name} on {self.device}{listed(self.nodes)}"


@dataclass
class Copied:
    """What a program has copied so far, in all threads.

    Attributes:
        count: values.
        bytes: of them.
    """

    count: int = 0
    bytes: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def add(self, size: int) -> None:
        """Note a copy."""
        with self._lock:
            self.count += 1
            self.bytes += size


def placements(mod: IRModule) -> tuple[Placement, ...]:
    """The functions of a module that devices compute."""
    return tuple(Placement(*found) for found in marked(mod, DEVICE, names=True))


def placed_function(value: Value, placed: Iterable[str]) -> str:
    """The function among `placed` that a value calls; empty: it calls none of them."""
    op = value.op if isinstance(value, Call) else None
    return op.name if isinstance(op, GlobalVar) and op.name in placed else ""


def is_called(value: Value, operator: str) -> bool:
    """Whether a value is a call of the operator of that name."""
    return (
        isinstance(value, Call)
        and getattr(value.op, "name", "") == operator
        and not isinstance(value.op, GlobalVar)
    )
