"""How long a sweep will take, before it runs: from multiply-accumulates and what they cost.

A cell that some results file at hand has (the same configuration) takes what it took there. The
others are estimated: preparing and compiling, calibration images through the float32 interpreter,
evaluation images and timed runs at the cost of a multiply-accumulate in their number system.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from compiler.printable import printable

from . import model_files, number_systems
from .cells import Cell
from .datasets import Dataset
from .feeds import Sample, sample_of
from .speedup import SETTLE_S

if TYPE_CHECKING:
    from rich.console import RenderableType

#: Nanoseconds of a multiply-accumulate on one thread of an AVX-512 machine, as measured on the
#: zoo's networks; exactness is not the point.
FLOAT32_NS, INT8_NS = 0.025, 0.01
#: Formats that are rounded after every operation, by name or by width.
FORMAT_NS: dict[str | int, float] = {
    "bfloat16": 0.12,
    "fixed16_8": 0.12,
    "fixed8_4": 0.12,
    "posit8_es0": 0.15,
    "takum16": 14.0,
    "takum8": 1.8,
    "posit8_es2": 1.8,
    8: 0.2,
    16: 0.22,
    32: 1.2,
}
#: Accumulations that round sums once, or hold them in another format.
ACCUMULATE_NS = {"exact": 0.08, "float32": 0.03, "float64": 0.08}
#: Seconds to import and transform, and to compile an operator; of what is quantized, both of the
#: network that is observed and of the one it becomes.
SETUP_S, FLOAT_OPERATOR_S, OPERATOR_S = 0.2, 0.02, 0.075
#: Milliseconds of a call, whatever it computes.
CALL_MS = 0.015


@dataclass(frozen=True)
class Estimate:
    """Seconds that a cell takes, and whether they are those of a recorded row."""

    cell: Cell
    seconds: float
    recorded: bool


def estimates(
    cells: Iterable[Cell],
    data: Mapping[str, Dataset],
    results: Iterable[str | os.PathLike[str]] = (),
) -> list[Estimate]:
    """What each of the cells takes.

    Args:
        cells: of one specification.
        data: their data sets by SHA-256.
        results: results files whose recorded durations count, where they exist.

    Raises:
        DtypelabError: a model cannot be imported, or a file is no results file.
    """
    known = _recorded(results)
    found = []
    for cell in cells:
        seconds = known.get(cell.config_hash)
        shape = sample_of(data[cell.dataset_sha256].for_model(cell.model.path).x)
        found.append(
            Estimate(cell, _seconds(cell, shape), False)
            if seconds is None
            else Estimate(cell, seconds, True)
        )
    return found


def _seconds(cell: Cell, shape: tuple[int, ...] | Sample) -> float:
    macs, operators = model_files.size_of(cell.model.path, shape)
    s, scheme = cell.settings, cell.scheme
    float_ms = macs * FLOAT32_NS * 1e-6 + CALL_MS
    ms = macs * _cost(cell) * 1e-6 / cell.threads + CALL_MS
    calls = (s.warmup + s.runs) * s.batch if s.runs else 0
    timed = calls * (ms + (0 if scheme.kind == "float32" else float_ms))
    timed = max(timed, 1e3 * min(SETTLE_S, s.budget_s) if s.runs else 0.0)
    # Observed, and corrected, layer by layer.
    calibrated = s.n_calib * 5 * float_ms if scheme.calibrated else 0.0
    compiled = operators * (FLOAT_OPERATOR_S if scheme.kind == "float32" else OPERATOR_S)
    return SETUP_S + compiled + (s.n_eval * ms + timed + calibrated) * 1e-3


def _cost(cell: Cell) -> float:
    """Nanoseconds of one multiply-accumulate on one thread."""
    scheme = cell.scheme
    if scheme.kind in ("float32", "int8"):
        return FLOAT32_NS if scheme.kind == "float32" else INT8_NS
    accumulate = str(scheme.option("accumulate") or "sequential")
    if accumulate in ACCUMULATE_NS:
        return ACCUMULATE_NS[accumulate]
    bits = number_systems.format_bits(scheme.dtype) if scheme.kind == "format" else 16
    width = next((w for w in (8, 16) if bits <= w), 32)
    return FORMAT_NS.get(scheme.dtype, FORMAT_NS[width])


def _recorded(results: Iterable[str | os.PathLike[str]]) -> dict[str, float]:
    from .store import read_results

    found: dict[str, float] = {}
    for path in results:
        if Path(path).is_file():
            rows = read_results(path)
            rows = rows[rows["status"] == "ok"]
            found.update(zip(rows["config_hash"], rows["duration_s"].astype(float), strict=True))
    return found


def grid_table(found: Iterable[Estimate]) -> RenderableType:
    """Estimates for `rich` to print: one line a cell, under their models."""
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column("", overflow="fold")
    for name in ("n_eval", "n_calib", "runs", "threads", "seconds"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("")
    model = None
    for e in found:
        cell, s = e.cell, e.cell.settings
        if cell.model.name != model:
            model = cell.model.name
            judged = printable(f"{cell.dataset}, {cell.metric}")
            table.add_row(f"[bold]{escape(printable(model))}[/] on {escape(judged)}")
        chosen = [cell.scheme.option(name) for name in ("calibrate", "accumulate")]
        varying = [cell.target] if cell.target != "llvm" else []
        varying += [f"seed={cell.seed}"] if cell.seed else []
        varying += [f"repeat={cell.repeat}"] if cell.repeat else []
        label = " ".join([cell.scheme.label, *(str(c) for c in chosen if c), *varying])
        calibrated = str(s.n_calib) if cell.scheme.calibrated else ""
        table.add_row(
            f"  {escape(printable(label))}",
            *(str(s.n_eval), calibrated, str(s.runs), str(cell.threads), f"{e.seconds:.1f}"),
            "recorded" if e.recorded else "",
        )
    return table


def minutes(seconds: float) -> str:
    """A duration in words."""
    return f"{seconds:.0f} seconds" if seconds < 100 else f"{seconds / 60:.0f} minutes"
