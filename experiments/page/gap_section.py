"""Simulations in float32 beside execution on the page: what every ingredient costs, as a table and
as bars of SQNR, in both orders of their exchange."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compiler._html import escaped
from experiments.gaps.chain import INTEGERS, ORDERS, SCALES, SIMULATION
from experiments.layers.gaps import read_gaps
from experiments.results.column_meanings import SYSTEM, meaning

from .figures import digits
from .palette import Look
from .tables import Column, swatch, table
from .value_pictures import figure, svg

if TYPE_CHECKING:
    import pandas as pd

Line = Mapping[Any, Any]

INGREDIENTS = (*ORDERS["forward"], SCALES, INTEGERS)
"""Each has a colour of its own; there are eight."""


def _column(key: str, title: str, tip: str, numeric: bool = True) -> Column:
    return Column(key, title, tip, numeric, sorts=False)


COLUMNS = (
    _column("model", meaning("model").title, meaning("model").text, False),
    _column(SYSTEM, meaning(SYSTEM).title, meaning(SYSTEM).text, False),
    _column("inputs", "inputs", "How many were simulated and executed."),
    _column("metric", meaning("metric_name").title, meaning("metric_name").text, False),
    _column("simulated", "simulated", "What it grows by in the simulation, from float32."),
    _column("simulated_interval", "95 % interval", "Of that: paired, input by input."),
    _column("executed", "executed", "What it grows by in the execution, from float32."),
    _column("gap", "difference", "From the simulation to the execution."),
    _column("gap_interval", "95 % interval", "Of the difference: paired, input by input."),
    _column(
        "verdict",
        "execution is",
        "Within the interval of the simulation, or outside of it by more than chance.",
        False,
    ),
    _column("sqnr", "SQNR, dB", "Of the simulation, and of the execution."),
    _column("kl", "KL", "Nats an answer: of the simulation, and of the execution."),
    _column("forward", "costs most", "In SQNR, exchanged in the forward order.", False),
    _column("reverse", "in reverse", "In SQNR, exchanged in the reverse order.", False),
)
_WIDTH, _LEFT, _HEIGHT = 520, 190, 14


@dataclass(frozen=True)
class Cell:
    """The steps of one cell: those of every order, and from the one end to the other."""

    model: str
    system: str
    orders: Mapping[str, Sequence[Line]]
    whole: Line

    @property
    def first(self) -> Line:
        """The simulation beside float32."""
        return self.orders["forward"][0]

    @property
    def executed(self) -> float:
        """What the metric grows by from float32 to the execution."""
        return float(self.first["delta"] + self.whole["delta"])

    @property
    def outside(self) -> bool | None:
        """Whether the execution lies outside of what the simulation's interval says, and differs
        from it by more than chance; None where a figure is not finite."""
        ends = (self.first["low"], self.first["high"], self.whole["low"], self.whole["high"])
        if not all(map(math.isfinite, (*ends, self.executed))):
            return None
        chance = self.whole["low"] <= 0 <= self.whole["high"]
        return not (self.first["low"] <= self.executed <= self.first["high"]) and not chance


def cells_of(lines: pd.DataFrame, systems: Mapping[str, str]) -> list[Cell]:
    """The cells of a file of gaps.

    Args:
        lines: as `read_gaps` has them.
        systems: config hash -> what the cell's number system is called; others are left out.
    """
    found = []
    for key, own in lines.groupby("config_hash", sort=False):
        if str(key) not in systems:
            continue
        orders: dict[str, Sequence[Line]] = {
            str(order): part.to_dict("records") for order, part in own.groupby("order", sort=False)
        }
        (whole,) = orders.pop("whole")
        found.append(Cell(str(whole["model"]), systems[str(key)], orders, whole))
    return found


def gap_section(
    systems: Mapping[str, str], gaps: str | os.PathLike[str], looks: Mapping[str, Look]
) -> str:
    """The section about gaps; empty where no file of them lies beside the results.

    Raises:
        ConfigError: that file is none.
    """
    if not os.path.exists(gaps):
        return ""
    cells = cells_of(read_gaps(gaps), systems)
    if not cells:
        return ""
    drawn = "".join(
        figure(model, _bars(model, [c for c in cells if c.model == model]))
        for model in dict.fromkeys(c.model for c in cells)
    )
    used = {line["ingredient"] for c in cells for part in c.orders.values() for line in part}
    keys = "".join(
        f"<span>{swatch(Look(k, 1, 0))} {escaped(name)}</span>"
        for k, name in enumerate(INGREDIENTS)
        if name in used
    )
    return (
        '<section aria-labelledby="gaps-title"><h2 id="gaps-title">Simulation and execution</h2>'
        f'<p class="hint">From {escaped(Path(gaps).name)}: a simulation rounds factors of products '
        "and computes in float32; one ingredient after the other becomes that of the execution. "
        "What one costs depends on those before it: the upper bar of a number system is the "
        "forward order, the lower one the reverse. Bars are decibels of SQNR that are lost.</p>"
        f'<div class="chips">{keys}</div><div class="panels wide" id="gaps">{drawn}</div>'
        '<div class="scroll" tabindex="0" role="region" aria-label="Table of simulations">'
        f"{table('gap-table', COLUMNS, (_line(c, looks) for c in cells))}</div></section>"
    )


def _line(cell: Cell, looks: Mapping[str, Look]) -> str:
    first, whole = cell.first, cell.whole
    last = cell.orders["forward"][-1]
    said = {None: "", True: "outside", False: "within"}[cell.outside]
    texts = {
        "model": cell.model,
        "inputs": str(int(whole["inputs"])),
        "metric": whole["metric"],
        "simulated": _number(first["delta"]),
        "simulated_interval": _interval(first["low"], first["high"]),
        "executed": _number(cell.executed),
        "gap": _number(whole["delta"]),
        "gap_interval": _interval(whole["low"], whole["high"]),
        "verdict": said,
        "sqnr": _pair(first["sqnr_db"], last["sqnr_db"]),
        "kl": _pair(first["kl"], last["kl"]),
        **{order: most_costly(cell, order) for order in ORDERS},
    }
    parts = []
    for c in COLUMNS:
        if c.key == SYSTEM:
            mark = swatch(looks[cell.system]) if cell.system in looks else ""
            parts.append(f'<td class="text stick"><div>{mark}{escaped(cell.system)}</div></td>')
        else:
            name = "" if c.numeric else ' class="text"'
            parts.append(f"<td{name}>{escaped(texts[c.key])}</td>")
    return "".join(parts)


def most_costly(cell: Cell, order: str) -> str:
    """The ingredient that takes most SQNR in an order, with how much; empty where none takes more
    than chance, or it is not known."""
    known = [s for s in cell.orders.get(order, ())[1:] if s["sqnr_high"] < 0]
    if not known:
        return ""
    worst = min(known, key=lambda s: float(s["sqnr_delta"]))
    ends = _interval(worst["sqnr_low"], worst["sqnr_high"])
    return f"{worst['ingredient']} {digits(worst['sqnr_delta'])} dB [{ends}]"


def _bars(model: str, cells: Sequence[Cell]) -> str:
    """Two bars a cell: decibels that ingredients take, one behind the other."""
    most = max((sum(_lost(part)) for c in cells for part in c.orders.values()), default=0.0) or 1.0
    parts, y = [], 4
    for cell in cells:
        name = cell.system if len(cell.system) <= 30 else f"{cell.system[:29]}…"
        parts.append(
            f'<text x="{_LEFT - 8}" y="{y + 12}" text-anchor="end">{escaped(name)}'
            f"<title>{escaped(cell.system)}</title></text>"
        )
        for order, steps in cell.orders.items():
            parts.append(_bar(order, steps, y, (_WIDTH - _LEFT - 8) / most))
            y += _HEIGHT
        y += 6
    about = f"SQNR that ingredients of execution take, {model}"
    return svg(_WIDTH, y + 4, about, "".join(parts))


def _bar(order: str, steps: Sequence[Line], y: int, scale: float) -> str:
    x, parts = float(_LEFT), []
    for step, lost in zip(steps, _lost(steps), strict=True):
        if lost <= 0:
            continue
        colour, width = INGREDIENTS.index(step["ingredient"]), lost * scale
        ends = _interval(step["sqnr_low"], step["sqnr_high"])
        about = f"{order}: {step['ingredient']} {digits(step['sqnr_delta'])} dB [{ends}]"
        parts.append(
            f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{_HEIGHT - 3}" '
            f'class="bar c{colour}"><title>{escaped(about)}</title></rect>'
        )
        x += width
    if any(math.isnan(s["sqnr_db"]) for s in steps):
        parts.append(f'<text x="{x + 4:.1f}" y="{y + 10}">not finite</text>')
    return "".join(parts)


def _lost(steps: Iterable[Line]) -> list[float]:
    """Decibels that each step takes; 0 where it gives some, is the simulation, or is unknown."""
    found = []
    for step in steps:
        lost = -float(step["sqnr_delta"])
        counts = step["ingredient"] != SIMULATION and math.isfinite(lost)
        found.append(max(0.0, lost) if counts else 0.0)
    return found


def _number(value: float) -> str:
    return "" if math.isnan(value) else digits(value)


def _interval(low: float, high: float) -> str:
    ends = _number(low), _number(high)
    return f"{ends[0]} to {ends[1]}" if all(ends) else ""


def _pair(before: float, after: float) -> str:
    ends = _number(before), _number(after)
    return f"{ends[0] or 'NaN'} → {ends[1] or 'NaN'}" if any(ends) else ""
