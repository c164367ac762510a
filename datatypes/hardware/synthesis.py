"""What circuits cost by Yosys' synthesis: gates and depth; a technology's area and delay."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any

from compiler.errors import DtypelabError
from datatypes.hardware import tools
from datatypes.hardware.generate import Design
from datatypes.hardware.liberty import Cells, cells_of
from datatypes.hardware.netlist import Circuit, Steps

NAND2_TRANSISTORS = 4
Watch = Callable[[str, int, int], None]
"""Told what is being done, how much of all is done, and how much that is."""
_MAP = "+strash;ifraig;scorr;dc2;dch,-f;map;topo"
"""ABC's commands, commas for blanks. Those that Yosys has for liberty files fail in WebAssembly."""


@dataclass(frozen=True)
class Cost:
    """One module after synthesis.

    Attributes:
        module: what it does: add, mul, mac, round, decode or encode.
        cells: generic gates: two-input NAND and NOR, and NOT; registers beside them.
        nand2: transistors of these gates and registers in CMOS over the four of a NAND2.
        depth: most gates in a row.
        area_um2: of a technology's cells, registers included; None without a liberty file.
        delay_ps: of the slowest way through those cells (see `liberty.Gate`), without wires.
    """

    module: str
    cells: int
    nand2: float
    depth: int
    area_um2: float | None = None
    delay_ps: float | None = None


def synthesized(
    design: Design,
    only: Sequence[str] | None = None,
    liberty: str | Path | None = None,
    *,
    time_limit: float = tools.TIMEOUT,
    watch: Watch | None = None,
) -> list[Cost]:
    """The cost of every module of a design; of large ones, that of their parts.

    Args:
        design: the circuits.
        only: which modules; all unless given.
        liberty: a file of a technology's cells.
        time_limit: seconds that a module may take; twice as many with a liberty file.
        watch: told before each module: its name, how many are done, and of how many.

    Raises:
        DtypelabError: Yosys is missing or failed, a module took too long, or the liberty file
            lacks cells.
    """
    if not time_limit > 0:
        raise DtypelabError(f"time_limit is {time_limit:g}: it is seconds, and more than 0")
    known: dict[str, Cost] = {}
    wanted = [what for what in design.circuits if only is None or what in only]
    needed = {part for what in wanted for step in design.parts.get(what, ()) for part, _ in step}
    registers = any(circuit.cuts for circuit in design.circuits.values())
    cells = None if liberty is None else cells_of(Path(liberty), registers)
    whole = [w for w in design.circuits if w in {*wanted, *needed} and w not in design.parts]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "design.v").write_text(design.verilog)
        for done, what in enumerate(whole):
            circuit = design.circuits[what]
            if watch is not None:
                watch(circuit.name, done, len(whole))
            try:
                cost = _cost(folder, what, circuit, time_limit)
                if cells is not None:
                    cost = _mapped(folder, cost, circuit, cells, time_limit)
            except tools.TookTooLongError as error:
                raise DtypelabError(
                    f"{error} to synthesize {circuit.name}; allow more (time_limit), or leave it "
                    "unsynthesized"
                ) from None
            known[what] = cost
    for what in set(wanted) & set(design.parts):
        known[what] = _composed(what, design.parts[what], known)
    return [known[what] for what in wanted]


def _composed(module: str, steps: Steps, known: Mapping[str, Cost]) -> Cost:
    """The cost of steps that are passed one after the other."""
    parts = [(known[part], times) for step in steps for part, times in step]
    slowest = [[known[part] for part, _ in step] for step in steps]
    mapped = None not in [part.area_um2 for part, _ in parts]
    return Cost(
        module,
        sum(times * part.cells for part, times in parts),
        sum(times * part.nand2 for part, times in parts),
        sum(max(part.depth for part in step) for step in slowest),
        sum(times * (part.area_um2 or 0.0) for part, times in parts) if mapped else None,
        sum(max(part.delay_ps or 0.0 for part in step) for step in slowest) if mapped else None,
    )


def _cost(folder: Path, what: str, circuit: Circuit, limit: float) -> Cost:
    tools.yosys(
        f"read_verilog design.v\nsynth -flatten -top {circuit.name}\nabc -g cmos2\n"
        "opt_clean\ntee -o stat.txt stat -tech cmos\ntee -o path.txt ltp -noff\n",
        folder,
        limit,
    )
    report = (folder / "stat.txt").read_text()
    cells = sum(int(n) for n in re.findall(r"^\s*(\d+)\s+\$_\w+_\s*$", report, re.MULTILINE))
    transistors = re.search(r"transistors:\s+(\d+)", report)
    path = re.search(r"length=(\d+)", (folder / "path.txt").read_text())
    nand2 = int(transistors[1]) / NAND2_TRANSISTORS if transistors else 0.0
    depth = max(int(path[1]), 0) if path else 0
    return Cost(what, cells, nand2, depth)


def _mapped(folder: Path, cost: Cost, circuit: Circuit, cells: Cells, limit: float) -> Cost:
    """The cost with the area and the delay of a technology's cells."""
    (folder / "cells.genlib").write_text(cells.genlib)
    tools.yosys(
        f"read_verilog design.v\nsynth -flatten -top {circuit.name}\n"
        f"abc -genlib cells.genlib -script {_MAP}\nopt_clean\nwrite_json mapped.json\n",
        folder,
        limit,
    )
    netlist = json.loads((folder / "mapped.json").read_text())
    placed = netlist["modules"][circuit.name]["cells"]
    area = 0.0
    for cell in placed.values():
        gate = cells.gates.get(cell["type"])
        area += gate.area if gate else 0.0
        if cell["type"].startswith("$_"):  # a register
            area += cells.register_area or 0.0
    return replace(cost, area_um2=area, delay_ps=_slowest(placed, cells))


def _slowest(placed: Mapping[str, Mapping[str, Any]], cells: Cells) -> float:
    """Picoseconds of the slowest way through gates, from inputs or registers on."""
    drivers: dict[Any, str] = {}
    for name, cell in placed.items():
        gate = cells.gates.get(cell["type"])
        if gate is not None:
            drivers[cell["connections"][gate.output][0]] = name
    before = {
        name: [
            drivers[bits[0]]
            for port, bits in placed[name]["connections"].items()
            if port != cells.gates[placed[name]["type"]].output and bits[0] in drivers
        ]
        for name in drivers.values()
    }
    arrival: dict[str, float] = {}
    for name in TopologicalSorter(before).static_order():
        start = max((arrival[other] for other in before[name]), default=0.0)
        arrival[name] = start + cells.gates[placed[name]["type"]].delay_ps
    return max(arrival.values(), default=0.0)
