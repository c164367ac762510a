"""Functions of a module that something else than our own code computes, as an attribute says."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from compiler.errors import UnsupportedError
from compiler.ir.expr import Call, Function, IRModule

ENGINE = "engine"
"""The attribute of a module's function that says which engine computes it, in this process."""
DEVICE = "device"
"""The attribute of a module's function that says which device computes it, in its own memory."""
SHOWN = 6
"""Nodes that a function is printed with."""


def marked(
    mod: IRModule, attribute: str, names: bool = False
) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """The functions of a module that have an attribute: name, what it says, and nodes (`names`: see
    `nodes_in`)."""
    for name, f in mod.functions.items():
        if isinstance(f, Function) and attribute in f.attrs:
            yield name, str(f.attrs[attribute]), nodes_in(f, names)


def nodes_in(f: Function, names: bool = False) -> tuple[str, ...]:
    """The nodes of the imported model that the values of a function come from, also in the
    composites that it calls; `names`: of values that come from none, their own names."""
    return tuple(dict.fromkeys(_nodes(f, names)))


def _nodes(f: Function, names: bool) -> Iterable[str]:
    for b in f.bindings:
        yield from b.origins or ((b.var.name,) if names else ())
        if isinstance(b.value, Call) and isinstance(b.value.op, Function):
            yield from _nodes(b.value.op, names)


def listed(nodes: tuple[str, ...]) -> str:
    """Nodes as they follow a function's name, in one line."""
    more = f" and {len(nodes) - SHOWN} more" if len(nodes) > SHOWN else ""
    return f": {', '.join(nodes[:SHOWN])}{more}" if nodes else ""


def refuse_outside(mod: IRModule, what: str) -> None:
    """Raise UnsupportedError if engines or devices compute parts of a module, of which `what` says
    what cannot be done."""
    for name, engine, _ in marked(mod, ENGINE):
        raise UnsupportedError(
            f"region @{name} is computed by engine {engine!r}, in this process, and cannot be "
            f"{what}: use the module as it was before it was partitioned"
        )
    for name, device, _ in marked(mod, DEVICE):
        raise UnsupportedError(
            f"@{name} is computed on device {device!r}, and cannot be {what}: use the module "
            "as it was before devices were planned"
        )
