"""Programs on several devices, as text: functions of the module that a device computes, and copies.

A function with the attribute `device` is computed on that device, from values that are there, and
its results are there. `main` is computed on the host; operators `device_copy` in it copy values
between the host and devices.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass, field

from compiler.errors import UnsupportedError
from compiler.ir.expr import Call, Function, GlobalVar, IRModule, Value

DEVICE = "device"
"""The attribute of a module's function that says which device computes it."""
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
        nodes: of the imported model, that it stands for.
    """

    name: str
    device: str
    nodes: tuple[str, ...] = ()

    def __str__(self) -> str:
        of = f": {', '.join(self.nodes)}" if self.nodes else ""
        return f"@{self.name} on {self.device}{of}"


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
    return tuple(
        Placement(name, str(f.attrs[DEVICE]), nodes_in(f))
        for name, f in mod.functions.items()
        if isinstance(f, Function) and DEVICE in f.attrs
    )


def refuse_devices(mod: IRModule, what: str) -> None:
    """Raise UnsupportedError if devices compute parts of a module, of which `what` says what cannot
    be done."""
    for p in placements(mod):
        raise UnsupportedError(
            f"@{p.name} is computed on device {p.device!r}, and cannot be {what}: use the module "
            "as it was before devices were planned"
        )


def nodes_in(f: Function) -> tuple[str, ...]:
    """The nodes of the imported model that the values of a function come from; without such, the
    names of the values."""
    return tuple(dict.fromkeys(_nodes(f)))


def _nodes(f: Function) -> Iterable[str]:
    for b in f.bindings:
        yield from b.origins or (b.var.name,)


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
