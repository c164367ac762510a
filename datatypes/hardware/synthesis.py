"""What circuits cost: gates, and how many are in a row, by Yosys' synthesis."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from datatypes.hardware import tools
from datatypes.hardware.generate import Design
from datatypes.hardware.netlist import Circuit

CELLS = ("NAND", "NOR", "NOT")
"""What the generic gates are: Yosys' `abc -g cmos2`."""
NAND2_TRANSISTORS = 4


@dataclass(frozen=True)
class Cost:
    """One module after synthesis.

    Attributes:
        module: what it does: add, mul, mac, round, decode or encode.
        cells: generic gates: two-input NAND and NOR, and NOT; registers beside them.
        nand2: transistors of these gates and registers in CMOS over the four of a NAND2.
        depth: most gates in a row.
    """

    module: str
    cells: int
    nand2: float
    depth: int


def synthesized(design: Design, only: Sequence[str] | None = None) -> list[Cost]:
    """The cost of every module of a design.

    Args:
        design: the circuits.
        only: which modules; all unless given.

    Raises:
        DtypelabError: Yosys is missing or failed.
    """
    costs = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "design.v").write_text(design.verilog)
        for what, circuit in design.circuits.items():
            if only is None or what in only:
                costs.append(_cost(folder, what, circuit))
    return costs


def _cost(folder: Path, what: str, circuit: Circuit) -> Cost:
    tools.yosys(
        f"read_verilog design.v\nsynth -flatten -top {circuit.name}\nabc -g cmos2\n"
        "opt_clean\ntee -o stat.txt stat -tech cmos\ntee -o path.txt ltp -noff\n",
        folder,
    )
    report = (folder / "stat.txt").read_text()
    cells = sum(int(n) for n in re.findall(r"^\s*(\d+)\s+\$_\w+_\s*$", report, re.MULTILINE))
    transistors = re.search(r"transistors:\s+(\d+)", report)
    path = re.search(r"length=(\d+)", (folder / "path.txt").read_text())
    nand2 = int(transistors[1]) / NAND2_TRANSISTORS if transistors else 0.0
    depth = max(int(path[1]), 0) if path else 0
    return Cost(what, cells, nand2, depth)
