"""Compiled graphs for people: what is called in which order, and how much there is of what."""

from __future__ import annotations

from collections.abc import Sequence

from compiler.codegen.steps import Pointer, Step
from compiler.runtime.program import Program


def instructions(p: Program) -> str:
    """One line for each native function, copy, or call of a registered function, in order."""
    externals = {e.constant: e.name for e in p.externals}
    return "\n".join(f"{k:4d}  {_line(s, p, externals)}" for k, s in enumerate(p.steps))


def _line(s: Step, p: Program, externals: dict[int, str]) -> str:
    places = [_place(q, p) for q in s.pointers]
    when = "" if s.when is None else f" if {_place(s.when, p)}"
    watch = "" if s.watch is None else f", {_place(s.watch, p)} if it rounds"
    if s.stage is not None:
        given = [*places, *map(str, s.dims)]
        tasks = "" if s.stage.extent is None else f", {s.stage.extent} tasks"
        return f"{s.stage.symbol}({', '.join(given)}){tasks}{watch}{when}"
    if s.function is not None:
        return f"{externals[s.function.index]}({', '.join(places)})"
    target, source = places
    return f"{target} = {source}, {s.size} bytes"


def _place(q: Pointer, p: Program) -> str:
    if q.base == "workspace":
        return f"workspace[{q.offset}]"
    if q.base == "constant":
        return f"constant{q.index}"
    names = p.inputs if q.base == "input" else p.outputs
    return f"{q.base} {names[q.index][0]}"


def counts(p: Program) -> list[str]:
    """Lines of figures."""
    symbols = {k.stages[0].symbol for k in p.kernels if k.stages}
    return [
        f"kernels: {len(p.kernels)}, {len(symbols)} of them distinct",
        f"instructions: {len(p.steps)}",
        f"constants: {len(p.constants)} with {sum(a.nbytes for a in p.constants)} bytes",
        f"workspace: {p.workspace} bytes",
        f"dimensions: {', '.join(map(str, p.dims)) or 'none'}",
        *_listed("registered functions", [e.name for e in p.externals]),
    ]


def _listed(what: str, names: Sequence[str]) -> list[str]:
    return [f"{what}: {', '.join(dict.fromkeys(names))}"] if names else []
