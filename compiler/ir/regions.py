"""Regions of a program that engines compute, as functions of its module."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from compiler.errors import UnsupportedError
from compiler.ir.expr import Call, Function, IRModule

ENGINE = "engine"
"""The attribute of a module's function that says which engine computes it."""
COMPOSITE = "composite"
"""The attribute of a function that is called where it is written, and that an engine takes as one:
`ENGINE.NAME`, of the engine and its pattern."""


@dataclass(frozen=True)
class Region:
    """A region of a program that an engine computes.

    Attributes:
        name: of the module's function.
        engine: the engine's name.
        nodes: of the imported model, that it stands for.
    """

    name: str
    engine: str
    nodes: tuple[str, ...] = ()

    def __str__(self) -> str:
        of = f": {', '.join(self.nodes)}" if self.nodes else ""
        return f"@{self.name} by {self.engine}{of}"


def regions(mod: IRModule) -> tuple[Region, ...]:
    """The regions of a module that are handed to engines."""
    return tuple(
        Region(name, str(f.attrs[ENGINE]), tuple(dict.fromkeys(_origins(f))))
        for name, f in mod.functions.items()
        if isinstance(f, Function) and ENGINE in f.attrs
    )


def _origins(f: Function) -> Iterable[str]:
    for b in f.bindings:
        yield from b.origins
        if isinstance(b.value, Call) and isinstance(b.value.op, Function):
            yield from _origins(b.value.op)


def refuse_regions(mod: IRModule, what: str) -> None:
    """Raise UnsupportedError if a module has regions, of which `what` says what cannot be done."""
    for r in regions(mod):
        raise UnsupportedError(
            f"region @{r.name} is computed by engine {r.engine!r}, in this process, and cannot be "
            f"{what}: use the module as it was before it was partitioned"
        )
