"""Regions of a program that engines compute, as functions of its module."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from compiler.ir.expr import Call, Function, IRModule, Value
from compiler.ir.outside import ENGINE, listed, marked

COMPOSITE = "composite"
"""The attribute of a function that is called where it is written, and that an engine takes as one:
`ENGINE.NAME`, of the engine and its pattern."""
REGION = "region"
"""The attribute of a composite that says, as a number, which region of its function it is in."""

THREADS = "threads"
"""The attribute of a region, as its engine is given it, that says how many threads it may use."""


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
        return f"@{self.name} by {self.engine}{listed(self.nodes)}"


DECISIONS = "engine_decisions"
"""The attribute of a module that says what was measured before it was partitioned."""


@dataclass(frozen=True)
class Decision:
    """Whether a region was handed to an engine, and the times that it was measured to take alone.

    Attributes:
        region: the name that its function has, or would have had.
        engine: the engine's name.
        nodes: of the imported model, that it stands for.
        ours_ms, engine_ms: milliseconds.
        handed: whether the engine computes it.
        between: the interval of `engine_ms / ours_ms`, if it was measured.
    """

    region: str
    engine: str
    nodes: tuple[str, ...]
    ours_ms: float
    engine_ms: float
    handed: bool
    between: tuple[float, float] | None = None

    @staticmethod
    def of(row: Mapping[str, Any]) -> Decision:
        """What `row` made data of."""
        between = row.get("between")
        if between is not None:
            low, high = map(float, between)
            between = low, high
        return Decision(**{**row, "nodes": tuple(row["nodes"]), "between": between})

    def row(self) -> dict[str, Any]:
        """As data that JSON has."""
        between = None if self.between is None else list(self.between)
        return {**asdict(self), "nodes": list(self.nodes), "between": between}

    def __str__(self) -> str:
        who = self.engine if self.handed else "ours"
        times = f"{self.engine_ms:.4f} ms, ours {self.ours_ms:.4f} ms"
        if self.between is not None and self.between[0] < self.between[1]:
            times += ", {:.2f} to {:.2f} of ours".format(*self.between)
        return f"@{self.region}: {who} ({self.engine} {times})"


def decisions(mod: IRModule) -> tuple[Decision, ...]:
    """What was measured of the regions of a module that was partitioned by costs; else nothing."""
    rows = mod.attrs.get(DECISIONS, {}).get("regions", ())
    return tuple(map(Decision.of, rows))


def program_times(mod: IRModule) -> dict[str, float]:
    """The milliseconds of the whole programs that were compared then; none, if none were."""
    return dict(mod.attrs.get(DECISIONS, {}).get("programs", {}))


def composite_of(value: Value | None) -> Function | None:
    """The function of a composite that `value` calls; None for anything else."""
    op = value.op if isinstance(value, Call) else None
    return op if isinstance(op, Function) and COMPOSITE in op.attrs else None


def engine_of(f: Function | None) -> str:
    """The engine that computes a region or a composite; empty for anything else."""
    if f is None:
        return ""
    return str(f.attrs.get(ENGINE) or str(f.attrs.get(COMPOSITE, "")).partition(".")[0])


def regions(mod: IRModule) -> tuple[Region, ...]:
    """The regions of a module that are handed to engines."""
    return tuple(Region(*found) for found in marked(mod, ENGINE))
