"""How long a sweep will take, before it runs: what its cells do (`work`), and what that costs.

A cell that some results file at hand has (the same configuration) takes what it took there. The
others are estimated: preparing and compiling, calibration images and layers through interpreters,
evaluation images and timed runs at the cost of a multiply-accumulate in their number system.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from compiler.errors import DtypelabError
from compiler.files.printable import printable
from experiments.data.datasets import Dataset
from experiments.feeds import Sample, sample_of
from experiments.measure.speedup import SETTLE_S
from experiments.spec.cells import Cell
from experiments.systems import number_systems
from experiments.systems.engine_choice import names_in
from experiments.zoo import model_batches, model_files

from .work import Work, work_of

if TYPE_CHECKING:
    from rich.console import RenderableType

#: Nanoseconds of a multiply-accumulate on one thread of an AVX-512 machine, as measured on the
#: zoo's networks; exactness is not the point.
FLOAT32_NS, INT8_NS, SCALED_NS = 0.025, 0.01, 0.06
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
#: Seconds to import and transform a network, and to compile an operator.
SETUP_S, FLOAT_OPERATOR_S, OPERATOR_S = 0.1, 0.02, 0.035
#: Milliseconds of a call, whatever it computes.
CALL_MS = 0.015
#: Calibration inputs are observed, and biases corrected, layer by layer: this many times what
#: computing them in float32 costs.
CALIBRATION = 5
#: Layers are interpreted by numpy, in float32 and in the scheme: nanoseconds of a
#: multiply-accumulate in the scheme (by its width, or where sums are exact), those that counting
#: events adds, and seconds of an operator, by scheme or in formats.
INTERPRETED_NS: dict[str | int, float] = {"other": 70.0, 8: 400.0, 16: 400.0, 32: 1600.0}
INTERPRETED_EXACT_NS, EVENTS_NS = 1500.0, 400.0
INTERPRETED_OPERATOR_S, INTERPRETED_FORMAT_OPERATOR_S = 0.02, 0.08


@dataclass(frozen=True)
class Estimate:
    """Seconds that a cell takes, and whether they are those of a recorded row; or why its network
    cannot be imported, which a row of the sweep will say."""

    cell: Cell
    seconds: float
    recorded: bool
    error: str = ""


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
        DtypelabError: a file is no results file.
    """
    known, cells = _recorded(results), list(cells)
    # What is recorded is not run again: the others start without what it would leave for them.
    wrong = {
        cell.config_hash: _error(cell, data) for cell in cells if cell.config_hash not in known
    }
    unknown = [cell for cell in cells if not wrong.get(cell.config_hash, "recorded")]
    seconds = {**dict.fromkeys(wrong, 0.0), **known}
    for cell, work in zip(unknown, work_of(unknown, data), strict=True):
        with model_files.imported_with(names_in(cell.engine)):
            sample = sample_of(data[cell.dataset_sha256].for_model(cell.model.path).x)
            seconds[cell.config_hash] = _seconds(cell, work, sample)
    return [
        Estimate(c, seconds[c.config_hash], c.config_hash in known, wrong.get(c.config_hash, ""))
        for c in cells
    ]


def _error(cell: Cell, data: Mapping[str, Dataset]) -> str:
    """Why the network of a cell cannot be imported for its data; empty: it can."""
    with model_files.imported_with(names_in(cell.engine)):
        try:
            sample = sample_of(data[cell.dataset_sha256].for_model(cell.model.path).x)
            model_batches.size_of(cell.model.path, sample)
        except DtypelabError as error:
            return str(error)
    return ""


def _seconds(cell: Cell, work: Work, sample: tuple[int, ...] | Sample) -> float:
    macs, operators = model_batches.size_of(cell.model.path, sample)
    s = cell.settings
    float_s = macs * FLOAT32_NS * 1e-9 / cell.threads + CALL_MS * 1e-3
    own_s = macs * _cost(cell) * 1e-9 / cell.threads + CALL_MS * 1e-3
    timed = work.timed * own_s + work.timed_float * float_s
    return (
        SETUP_S * (work.prepared + work.prepared_float)
        + operators * (OPERATOR_S * work.built + FLOAT_OPERATOR_S * work.built_float)
        + work.evaluated * own_s
        + work.evaluated_float * float_s
        + CALIBRATION * work.calibrated * float_s
        + (max(timed, min(SETTLE_S, s.budget_s)) if s.runs else 0.0)
        + work.interpreted * _interpreted(cell, macs, operators)
        + work.counted * macs * EVENTS_NS * 1e-9
    )


def _interpreted(cell: Cell, macs: int, operators: int) -> float:
    """Seconds of an input whose layers are compared."""
    if cell.scheme.kind != "format":
        return macs * INTERPRETED_NS["other"] * 1e-9 + operators * INTERPRETED_OPERATOR_S
    ns = INTERPRETED_NS[_width(number_systems.format_bits(cell.scheme.dtype))]
    if cell.scheme.option("accumulate") == "exact":
        ns = INTERPRETED_EXACT_NS
    return macs * ns * 1e-9 + operators * INTERPRETED_FORMAT_OPERATOR_S


def _cost(cell: Cell) -> float:
    """Nanoseconds of one multiply-accumulate on one thread."""
    scheme = cell.scheme
    if scheme.kind in ("float32", "int8"):
        return FLOAT32_NS if scheme.kind == "float32" else INT8_NS
    accumulate = str(scheme.option("accumulate") or "sequential")
    if accumulate in ACCUMULATE_NS:
        return ACCUMULATE_NS[accumulate]
    if scheme.kind == "scaled":
        return SCALED_NS
    bits = number_systems.format_bits(scheme.dtype)
    return FORMAT_NS.get(scheme.dtype, FORMAT_NS[_width(bits)])


def _width(bits: int) -> int:
    return next((w for w in (8, 16) if bits <= w), 32)


def _recorded(results: Iterable[str | os.PathLike[str]]) -> dict[str, float]:
    from experiments.results.store import read_rows

    found: dict[str, float] = {}
    for path in results:
        if os.path.isfile(path):
            rows = read_rows(path)
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
        varying += [cell.engine] if cell.engine else []
        varying += [f"seed={cell.seed}"] if cell.seed else []
        varying += [f"repeat={cell.repeat}"] if cell.repeat else []
        label = " ".join([cell.scheme.label, *(str(c) for c in chosen if c), *varying])
        calibrated = str(s.n_calib) if cell.scheme.calibrated else ""
        table.add_row(
            f"  {escape(printable(label))}",
            *(str(s.n_eval), calibrated, str(s.runs), str(cell.threads)),
            "" if e.error else f"{e.seconds:.1f}",
            "recorded" if e.recorded else "error" if e.error else "",
        )
    return table


def minutes(seconds: float) -> str:
    """A duration in words."""
    return f"{seconds:.0f} seconds" if seconds < 100 else f"{seconds / 60:.0f} minutes"
