"""The sweep: every cell of a specification becomes one row of the results file."""

from __future__ import annotations

import contextlib
import math
import os
import uuid
from collections.abc import Generator, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compiler.errors import ConfigError
from experiments.devices.client import device
from experiments.files import check_outputs
from experiments.layers.gaps import GapsFile, gaps_path
from experiments.layers.long_file import Line, LongFile
from experiments.layers.sequences import SequencesFile, sequences_path
from experiments.layers.table import LayersFile, layers_path
from experiments.measure.scoring import OF_TOKENS
from experiments.results.store import ResultsFile
from experiments.spec.cells import Cell, SweepSpec, Workload
from experiments.spec.identity import pass_context
from experiments.spec.specification import load_apart
from experiments.user_code import temporary

from .progress import sweep_progress
from .session import Outcome, Session
from .workers import Isolation, process_outcomes

if TYPE_CHECKING:
    import pandas as pd


@temporary.shared()
def sweep(
    spec: str | os.PathLike[str] | Mapping[str, Any] | SweepSpec,
    out: str | os.PathLike[str],
    resume: bool = False,
    jobs: int = 1,
    progress: bool | None = None,
    retry_failed: bool = False,
    scheduler: str | None = None,
    settings: Iterable[str] = (),
) -> pd.DataFrame:
    """Run every cell of `spec` (a TOML path, a shipped name, a dict) and append its row to `out`.

    Where the specification asks for layers, they go to `layers.table.layers_path(out)`, steps of
    simulations to `layers.gaps.gaps_path(out)`; what every sequence adds to figures of tokens goes
    to `layers.sequences.sequences_path(out)`.

    A cell that fails becomes a row with status "error", one that takes more than the
    specification's `timeout_s` a row with status "timeout" (its process is stopped). With `resume`,
    cells that have a row are left alone, except that `retry_failed` runs the failed ones again.
    `jobs` > 1 spreads cells over processes, `scheduler` (the address of a dask.distributed one)
    over the workers of its cluster, both for specifications that measure no latency (runs = 0).
    A `device` that the specification names runs all cells; one that is lost, or ends what it is
    running, makes rows with status "error" that name it.
    `progress` shows a bar on stderr, or a line in a notebook; by default where either is.
    `settings` KEY=VALUE replace what the specification says.

    Code of a user (adapters, metrics, registered functions, C libraries) runs in processes of its
    own, with what this one has defined. If it crashes, ends its process, gives no sign of life for
    half an hour or asks for more memory than there is (or `timeout_s` seconds, `memory_gib`), its
    cell is a row that says so, and the others go on. What it prints goes to stderr; its temporary
    files are removed when the sweep ends.

    Returns:
        The rows of this specification, in its order; the columns are `store.COLUMNS`.

    Raises:
        ConfigError: the specification is wrong, `out` exists and `resume` is false, or it cannot
            be written, or the scheduler does not answer.
        DeviceError: the device does not answer before the first cell.
    """
    checked, isolated = load_apart(spec, settings)
    if jobs < 1:
        raise ConfigError(f"jobs must be at least 1, not {jobs}")
    if jobs > 1 and scheduler:
        raise ConfigError("give either jobs or a scheduler, not both")
    beside = _beside(checked.cells, out)
    check_outputs([out, *beside.values()], checked.files)
    timeout_s = math.inf if checked.timeout_s is None else checked.timeout_s
    if scheduler and timeout_s < math.inf:
        raise ConfigError("leave out timeout_s: cells on a cluster are not timed")
    if (jobs > 1 or scheduler) and any(cell.settings.runs for cell in checked.cells):
        where = "a cluster" if scheduler else "jobs > 1"
        raise ConfigError(
            f"{where} would measure latency on a loaded machine: set runs = 0 under [latency], "
            "or use one job"
        )
    if (scheduler or (not isolated and (jobs > 1 or timeout_s < math.inf))) and pass_context():
        raise ConfigError(
            "other processes do not know this one's PassContext or tuning log: use one job, "
            "without a timeout"
        )
    if scheduler and any(cell.device for cell in checked.cells):
        raise ConfigError("give either a device or a scheduler, not both")
    cells = [cell if cell.settled_hash else cell.settled() for cell in checked.cells]
    results = ResultsFile(out, resume=resume or retry_failed)
    files: dict[type[LongFile], LongFile] = {}
    run_id = uuid.uuid4().hex
    try:
        for kind, path in beside.items():
            files[kind] = kind(path, resume=resume or retry_failed)
        known = results.status
        hashes = [cell.config_hash for cell in cells]
        retried = {h for h in hashes if retry_failed and known.get(h, "ok") != "ok"}
        todo = [c for c, h in zip(cells, hashes, strict=True) if h not in known or h in retried]
        for address in {cell.device for cell in todo if cell.device}:
            device(address).reach()  # one that is not there makes no rows
        with sweep_progress(progress, done=len(hashes) - len(todo), total=len(hashes)) as advance:
            part = checked.workload.part(todo)
            alone = Isolation(checked.memory, advance.say) if isolated else None
            for outcome in _outcomes(todo, part, jobs, scheduler, timeout_s, alone):
                row = outcome.row
                row["run_id"] = run_id
                lines = _lines(outcome)
                for kind, file in files.items():
                    of_run = [{"run_id": run_id, **line} for line in lines[kind]]
                    file.put(str(row["config_hash"]), of_run)
                if row["config_hash"] in retried:
                    results.replace(row)
                else:
                    results.append(row)
                advance(f"{row['model']} {row['scheme']}")
    except BaseException:
        # Files without a row would only keep a second attempt from writing them.
        if results.remove_if_empty():
            for file in files.values():
                file.remove_if_of(run_id)
        raise
    from experiments.page.notebook import Results

    table = Results(results.read()).set_index("config_hash", drop=False)
    return table.loc[hashes].reset_index(drop=True)


def _beside(cells: Iterable[Cell], out: str | os.PathLike[str]) -> dict[type[LongFile], Path]:
    """The files that cells write beside their results."""
    cells = tuple(cells)
    asked = {
        LayersFile: layers_path(out) if any(c.layers.images for c in cells) else None,
        SequencesFile: sequences_path(out) if any(c.metric in OF_TOKENS for c in cells) else None,
        GapsFile: gaps_path(out) if any(c.gap.inputs for c in cells) else None,
    }
    return {kind: path for kind, path in asked.items() if path is not None}


def _lines(outcome: Outcome) -> dict[type[LongFile], list[Line]]:
    return {
        LayersFile: outcome.layers,
        SequencesFile: outcome.sequences,
        GapsFile: outcome.gaps,
    }


def one_outcome(cell: Cell, spec: SweepSpec, isolated: bool) -> Outcome:
    """What a cell of `spec` gives; `isolated`: it runs code of a user."""
    alone = Isolation(spec.memory) if isolated else None
    with contextlib.closing(_outcomes([cell], spec.workload, 1, None, math.inf, alone)) as found:
        return next(found)


def _outcomes(
    todo: list[Cell],
    workload: Workload,
    jobs: int,
    scheduler: str | None,
    timeout_s: float,
    alone: Isolation | None,
) -> Generator[Outcome, None, None]:
    """What the cells give: in their order with one job, else as they are finished."""
    if scheduler and todo:
        from .cluster import cluster_outcomes

        yield from cluster_outcomes(todo, workload, scheduler)
        return
    if jobs == 1 and timeout_s == math.inf and alone is None:
        yield from map(Session(workload).outcome, todo)
        return
    found = process_outcomes(todo, workload, jobs, timeout_s, alone)
    with contextlib.closing(found) as outcomes:
        yield from outcomes
