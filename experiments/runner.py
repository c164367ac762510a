"""The sweep: every cell of a specification becomes one row of the results file."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import numpy as np

from compiler.errors import ConfigError, DtypelabError

from . import adapters, metrics, pipeline, provenance, scoring
from .cells import Cell, SweepSpec, Workload
from .datasets import Dataset
from .latency import LatencyStats, measure, measure_interleaved
from .layer_table import LayersFile, Line, layer_lines, layers_path
from .schemes import Scheme
from .spec import load_spec
from .statistics import paired_difference, paired_figures
from .store import COLUMNS, SCHEMA_VERSION, ResultsFile, Value

if TYPE_CHECKING:
    import pandas as pd

#: Inputs per call while accuracy is evaluated.
EVAL_BATCH = 100
#: Elements of the inputs of one call, where inputs are large.
EVAL_ELEMENTS = 2**20

_FLOAT32 = Scheme("float32", "float32", "float32")


def sweep(
    spec: str | os.PathLike[str] | Mapping[str, Any] | SweepSpec,
    out: str | os.PathLike[str],
    resume: bool = False,
    jobs: int = 1,
    progress: bool | None = None,
    retry_failed: bool = False,
    scheduler: str | None = None,
) -> pd.DataFrame:
    """Run every cell of `spec` (a TOML path, a shipped name, a dict) and append its row to `out`.

    Where the specification asks for layers, they go to `layer_table.layers_path(out)`.

    A cell that fails becomes a row with status "error". With `resume`, cells that have a row are
    left alone, except that `retry_failed` runs the failed ones again. `jobs` > 1 spreads cells over
    processes, `scheduler` (the address of a dask.distributed one) over the workers of its cluster,
    both for specifications that measure no latency (runs = 0). `progress` shows a bar on
    stderr; by default when that is a terminal.

    Returns:
        The rows of this specification, in its order; the columns are `store.COLUMNS`.

    Raises:
        ConfigError: the specification is wrong, `out` exists and `resume` is false, or it cannot
            be written, or the scheduler does not answer.
    """
    checked = load_spec(spec)
    if jobs < 1:
        raise ConfigError(f"jobs must be at least 1, not {jobs}")
    if jobs > 1 and scheduler:
        raise ConfigError("give either jobs or a scheduler, not both")
    if (jobs > 1 or scheduler) and any(cell.settings.runs for cell in checked.cells):
        where = "a cluster" if scheduler else "jobs > 1"
        raise ConfigError(
            f"{where} would measure latency on a loaded machine: set runs = 0 under [latency], "
            "or use one job"
        )
    results = ResultsFile(out, resume=resume or retry_failed)
    layers = None
    if any(cell.layers.images for cell in checked.cells):
        layers = LayersFile(layers_path(out), resume=resume or retry_failed)
    known = results.status
    hashes = [cell.config_hash for cell in checked.cells]
    retried = {h for h in hashes if retry_failed and known.get(h) == "error"}
    todo = [c for c, h in zip(checked.cells, hashes, strict=True) if h not in known or h in retried]
    run_id = uuid.uuid4().hex
    with _progress(progress, done=len(hashes) - len(todo), total=len(hashes)) as advance:
        for outcome in _outcomes(todo, checked.workload.part(todo), jobs, scheduler):
            row = outcome.row
            row["run_id"] = run_id
            if layers is not None:
                lines = [{"run_id": run_id, **line} for line in outcome.layers]
                layers.put(str(row["config_hash"]), lines)
            if row["config_hash"] in retried:
                results.replace(row)
            else:
                results.append(row)
            advance(f"{row['model']} {row['scheme']}")
    table = results.read().set_index("config_hash", drop=False)
    return table.loc[hashes].reset_index(drop=True)


@dataclass(frozen=True)
class Outcome:
    """The row of a cell, and its lines of the layers file (but for their `run_id`)."""

    row: dict[str, Value]
    layers: list[Line]


@dataclass
class Session:
    """Runs cells one after the other, keeping what consecutive ones share."""

    workload: Workload
    _key: object = None
    _baseline: _Baseline | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        for adapter in self.workload.adapters:
            adapters.install(adapter)

    def _data(self, cell: Cell) -> Dataset:
        return self.workload.data[cell.dataset_sha256]

    def row(self, cell: Cell) -> dict[str, Value]:
        """The row of a cell; see `outcome`."""
        return self.outcome(cell).row

    def outcome(self, cell: Cell) -> Outcome:
        """What a cell gives; an exception while running it becomes status "error"."""
        layers: list[Line] = []
        started = datetime.now(UTC)
        clock = time.perf_counter()
        row: dict[str, Value] = {**dict.fromkeys(COLUMNS), **_identity(cell)}
        try:
            row |= self._measure(cell, layers)
            row |= {"status": "ok", "error": ""}
        except DtypelabError as error:
            row |= {"status": "error", "error": _one_line(str(error))}
        except Exception as error:
            # Whatever breaks in one cell, the others still run; the row says what it was.
            row |= {"status": "error", "error": _one_line(f"{type(error).__name__}: {error}")}
        row["started_utc"] = started.isoformat(timespec="seconds")
        row["duration_s"] = time.perf_counter() - clock
        return Outcome(row, layers)

    def _measure(self, cell: Cell, layers: list[Line]) -> dict[str, Value]:
        settings, data, lowering = cell.settings, self._data(cell), ""
        baseline = self._baseline_of(cell)
        reference = baseline.outputs[: settings.n_eval]
        if cell.scheme.kind == "float32":
            variant, outputs = baseline.variant, reference
        else:
            variant = self._prepare(cell)
            compiled = variant.compile(_evaluation_batch(variant, data.x, settings.n_eval))
            outputs = compiled.predict(data.x[: settings.n_eval])
            lowering = compiled.lowering
        row: dict[str, Value] = {
            name: getattr(variant, name) for name in _VARIANT_COLUMNS if name in COLUMNS
        }
        row["lowering"] = lowering or variant.lowering
        if cell.energy:
            row["energy_uj"] = _energy(variant.macs_by_dtypes, dict(cell.energy))
        row |= _accuracy(cell, data, outputs, reference)
        if settings.runs:
            row |= self._latency(cell, variant, baseline)
        if cell.layers.images and cell.scheme.kind != "float32":
            errors = variant.layers(data.x[: cell.layers.images], cell.layers.events)
            layers += layer_lines({**_identity(cell), **row}, cell.layers.images, errors)
        return row

    def _prepare(self, cell: Cell) -> pipeline.Variant:
        data = self._data(cell)
        sample = data.x[:0]
        if cell.scheme.kind == "int8":
            sample = data.calibration_sample(cell.settings.n_calib, cell.seed)
        return pipeline.prepare(
            cell.model.path,
            cell.scheme,
            sample_shape=data.x.shape[1:],
            calibration=sample,
            target=cell.target,
            threads=cell.threads,
        )

    def _baseline_of(self, cell: Cell) -> _Baseline:
        """The compiled float32 network of the cell's model, target and threads."""
        key = (cell.model.path, cell.dataset_sha256, cell.target, cell.threads)
        if self._baseline is None or self._key != key:
            images = self.workload.images[cell.model.sha256, cell.dataset_sha256]
            x = self._data(cell).x[:images]
            variant = self._prepare(replace(cell, scheme=_FLOAT32))
            outputs = variant.compile(_evaluation_batch(variant, x, images)).predict(x)
            self._baseline, self._key = _Baseline(variant, outputs), key
        return self._baseline

    def _latency(
        self, cell: Cell, variant: pipeline.Variant, baseline: _Baseline
    ) -> dict[str, Value]:
        warmup, runs, batch = cell.settings.warmup, cell.settings.runs, cell.settings.batch
        inputs = self._data(cell).x[:batch]
        if len(inputs) < batch:
            raise ConfigError(f"latency batch {batch} needs as many images, have {len(inputs)}")
        reference = baseline.compiled_for(batch)
        if cell.scheme.kind == "float32":
            stats = measure(lambda: reference.call(inputs), warmup=warmup, runs=runs)
            return _latency_columns(stats, 1.0)
        compiled = variant.compile(batch)
        stats, base = measure_interleaved(
            [lambda: compiled.call(inputs), lambda: reference.call(inputs)],
            warmup=warmup,
            runs=runs,
        )
        return _latency_columns(stats, base.median / stats.median)


@dataclass
class _Baseline:
    """The float32 network, its outputs, and its executables by batch size."""

    variant: pipeline.Variant
    outputs: pipeline.Array
    compiled: dict[int, pipeline.Compiled] = field(default_factory=dict)

    def compiled_for(self, batch: int) -> pipeline.Compiled:
        if batch not in self.compiled:
            self.compiled[batch] = self.variant.compile(batch)
        return self.compiled[batch]


_VARIANT_COLUMNS = tuple(pipeline.Variant.__dataclass_fields__)


def _identity(cell: Cell) -> dict[str, Value]:
    """The columns that are known before a cell runs."""
    settings = cell.settings
    return {
        "schema_version": SCHEMA_VERSION,
        "config_hash": cell.config_hash,
        "model": cell.model.name,
        "model_sha256": cell.model.sha256,
        "dataset": cell.dataset,
        "dataset_sha256": cell.dataset_sha256,
        "repeat": cell.repeat,
        "n_eval": settings.n_eval,
        "n_calib": settings.n_calib if cell.scheme.kind == "int8" else 0,
        "seed": cell.seed,
        "scheme": cell.scheme.label,
        "dtype": cell.scheme.dtype,
        "batch": settings.batch,
        "threads": cell.threads,
        "warmup": settings.warmup,
        "runs": settings.runs,
        "target": cell.target,
        "config": json.dumps(cell.specification()),
        **asdict(provenance.collect()),
    }


def _evaluation_batch(variant: pipeline.Variant, x: pipeline.Array, images: int) -> int:
    """Inputs per call: what the network takes, else as many as stay small, `EVAL_BATCH` at most."""
    if variant.fixed_batch is not None:
        return variant.fixed_batch
    fitting = EVAL_ELEMENTS // max(1, int(x[0].size))
    return max(1, min(EVAL_BATCH, images, fitting))


def _accuracy(
    cell: Cell, data: Dataset, outputs: pipeline.Array, reference: pipeline.Array
) -> dict[str, Value]:
    labels = data.y[: cell.settings.n_eval] if data.labelled else reference
    metric = scoring.find(cell.metric, data.classes)
    before, after = metric.statistics(reference, labels), metric.statistics(outputs, labels)
    figure, figure_fp32 = (float(metric.value(s.mean(axis=0))) for s in (after, before))
    worse = 1.0 if metric.higher_is_better else -1.0
    if before.shape[1] == 1 and np.isin((before, after), (0, 1)).all():
        paired = paired_difference(before[:, 0] == 1, after[:, 0] == 1)
    else:
        paired = paired_figures(lambda means: worse * metric.value(means), before, after)
    agreement = None
    if metric.answers is not None:
        both = metric.answers(outputs) == metric.answers(reference)
        agreement = float(np.mean(both))
    return {
        "metric_name": metric.name + ("" if data.labelled else scoring.OF_FLOAT32),
        "metric": figure,
        "metric_fp32": figure_fp32,
        "metric_drop": worse * (figure_fp32 - figure),
        "metric_drop_low": paired.low,
        "metric_drop_high": paired.high,
        "p_value": paired.p_value,
        "sqnr_db": metrics.sqnr_db(outputs, reference),
        "cosine": metrics.cosine(outputs, reference),
        "top1_agreement": agreement,
    }


def _energy(macs: Mapping[str, int], picojoules: Mapping[str, float]) -> float | None:
    """Microjoules of the multiply-accumulates of one input, from a table per operand dtypes.

    A pair that the table does not have costs what its second operand's dtype (the weights') does;
    None if the table has neither.
    """
    prices = {pair: picojoules.get(pair, picojoules.get(pair.split(" x ")[1])) for pair in macs}
    if None in prices.values():
        return None
    return sum(count * (prices[pair] or 0.0) for pair, count in macs.items()) * 1e-6


def _latency_columns(stats: LatencyStats, speedup: float) -> dict[str, Value]:
    columns: dict[str, Value] = {
        f"latency_ms_{name}": getattr(stats, name)
        for name in ("min", "median", "mean", "p90", "p99", "stdev")
    }
    return {**columns, "speedup_vs_fp32": speedup}


def _outcomes(
    todo: list[Cell], workload: Workload, jobs: int, scheduler: str | None
) -> Iterator[Outcome]:
    """What the cells give: in their order with one job, else as they are finished."""
    if scheduler and todo:
        from .cluster import cluster_outcomes

        yield from cluster_outcomes(todo, workload, scheduler)
        return
    if jobs == 1 or len(todo) < 2:
        yield from map(Session(workload).outcome, todo)
        return
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor, as_completed

    # A forked copy of a process that runs LLVM and thread pools is not safe: spawn.
    with ProcessPoolExecutor(
        min(jobs, len(todo)),
        mp_context=multiprocessing.get_context("spawn"),
        initializer=_start_worker,
        initargs=(workload,),
    ) as workers:
        pending = [workers.submit(_worker_outcome, cell) for cell in todo]
        try:
            for done in as_completed(pending):
                yield done.result()
        finally:
            workers.shutdown(wait=False, cancel_futures=True)


_worker_session: Session | None = None


def _start_worker(workload: Workload) -> None:
    global _worker_session
    _worker_session = Session(workload)


def _worker_outcome(cell: Cell) -> Outcome:
    assert _worker_session is not None, "the pool's initializer has run"
    return _worker_session.outcome(cell)


def _one_line(text: str, limit: int = 500) -> str:
    line = " ".join(text.split())
    return line if len(line) <= limit else line[: limit - 3] + "..."


@contextlib.contextmanager
def _progress(wanted: bool | None, *, done: int, total: int) -> Iterator[Any]:
    """A function to call after each row, which moves a bar when one is wanted."""
    if not (sys.stderr.isatty() if wanted is None else wanted):
        yield lambda _label: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    shown: Iterable[Any] = (
        TextColumn("sweep"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*shown, console=Console(stderr=True)) as bar:
        task = bar.add_task("", total=total, completed=done)
        yield lambda label: bar.update(task, advance=1, description=label)
