"""How long a sweep will take, before it runs: from multiply-accumulates and what they cost.

A cell that some results file at hand has (the same configuration) takes what it took there. The
others are estimated: preparing and compiling, calibration images through the float32 interpreter,
evaluation images and timed runs at the cost of a multiply-accumulate in their number system.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from . import pipeline
from .cells import Cell
from .datasets import Dataset

if TYPE_CHECKING:
    from rich.console import RenderableType

#: Nanoseconds of a multiply-accumulate on one thread of an AVX-512 machine, as recorded for the
#: zoo's networks; exactness is not the point.
FLOAT32_NS, INT8_NS = 0.03, 0.015
FORMAT_NS = ((8, 0.2), (16, 0.25), (32, 2.0))
#: Accumulations that cost less or more than rounding every operation, as factors of that.
ACCUMULATE = {"exact": 0.6, "float32": 0.4, "float64": 0.5}
#: Seconds to import, transform and compile (a network, and one of its convolutions or products).
SETUP_S, LAYER_S = 0.3, 0.02
#: Milliseconds of a call, whatever it computes.
CALL_MS = 0.02


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
        shape = data[cell.dataset_sha256].x.shape[1:]
        found.append(
            Estimate(cell, _seconds(cell, shape), False)
            if seconds is None
            else Estimate(cell, seconds, True)
        )
    return found


def _seconds(cell: Cell, shape: tuple[int, ...]) -> float:
    macs, layers = _size(cell.model.path, shape)
    s, scheme = cell.settings, cell.scheme
    float_ms = macs * FLOAT32_NS * 1e-6 + CALL_MS
    ms = macs * _cost(cell) * 1e-6 / cell.threads + CALL_MS
    calls = (s.warmup + s.runs) * s.batch if s.runs else 0
    timed = calls * (ms + (0 if scheme.kind == "float32" else float_ms))
    calibrated = 0.0
    if scheme.calibrated:
        calibrated = s.n_calib * 10 * float_ms
    builds = 2 if s.runs else 1
    return builds * (SETUP_S + layers * LAYER_S) + (s.n_eval * ms + timed + calibrated) * 1e-3


def _cost(cell: Cell) -> float:
    """Nanoseconds of one multiply-accumulate on one thread."""
    scheme = cell.scheme
    if scheme.kind != "format":
        return FLOAT32_NS if scheme.kind == "float32" else INT8_NS
    bits = pipeline.format_bits(scheme.dtype)
    ns = next((cost for width, cost in FORMAT_NS if bits <= width), FORMAT_NS[-1][1])
    return ns * ACCUMULATE.get(str(scheme.option("accumulate")), 1.0)


@cache
def _size(path: Path, shape: tuple[int, ...]) -> tuple[int, int]:
    """Multiply-accumulates of one input, and operators."""
    return pipeline.size_of(path, shape)


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
            table.add_row(f"[bold]{model}[/] on {cell.dataset}, {cell.metric}")
        chosen = [cell.scheme.option(name) for name in ("calibrate", "accumulate")]
        varying = [cell.target] if cell.target != "llvm" else []
        varying += [f"seed={cell.seed}"] if cell.seed else []
        varying += [f"repeat={cell.repeat}"] if cell.repeat else []
        label = " ".join([cell.scheme.label, *(str(c) for c in chosen if c), *varying])
        calibrated = str(s.n_calib) if cell.scheme.calibrated else ""
        table.add_row(
            f"  {escape(label)}",
            *(str(s.n_eval), calibrated, str(s.runs), str(cell.threads), f"{e.seconds:.1f}"),
            "recorded" if e.recorded else "",
        )
    return table


def minutes(seconds: float) -> str:
    """A duration in words."""
    return f"{seconds:.0f} seconds" if seconds < 100 else f"{seconds / 60:.0f} minutes"
