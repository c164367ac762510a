"""One cell at a time: what it computes, and the row it becomes."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from compiler.errors import ConfigError
from experiments.data.datasets import Dataset
from experiments.devices.client import device
from experiments.feeds import Examples, call_of, elements_of, sample_of
from experiments.gaps.chain import NothingBetween
from experiments.gaps.measuring import Subject, steps
from experiments.layers.gaps import gap_lines
from experiments.layers.long_file import Line
from experiments.layers.sequences import sequence_lines
from experiments.layers.table import layer_lines
from experiments.measure import disturbance, scoring
from experiments.measure.speedup import Protocol, Speedup, measure_speedup
from experiments.results.schema import COLUMNS, SCHEMA_VERSION, Value
from experiments.spec import own_code
from experiments.spec.cells import Cell, Workload
from experiments.systems import pipeline, rounding_seeds
from experiments.systems.engine_choice import EngineChoice, handed_text, names_in
from experiments.systems.schemes import Scheme
from experiments.user_code import activity, adapters
from experiments.zoo import model_files

from . import provenance
from .accuracy_columns import Accuracy, accuracy
from .batchwise import References, batches, in_batches, judged
from .hardware_columns import accumulator_columns, cost_columns
from .machine_columns import emulator_of, instructions_of, machine_columns
from .work import batch_of_tokens, evaluation_batch, gap_inputs

_FLOAT32 = Scheme("float32", "float32", "float32")


@dataclass(frozen=True)
class Outcome:
    """The row of a cell, and its lines of the files of layers, of sequences and of gaps (but for
    their `run_id`)."""

    row: dict[str, Value]
    layers: list[Line] = field(default_factory=list)
    sequences: list[Line] = field(default_factory=list)
    gaps: list[Line] = field(default_factory=list)


@dataclass
class Session:
    """Runs cells one after the other, keeping what consecutive ones share."""

    workload: Workload
    _key: object = None
    _fed: dict[tuple[object, ...], Dataset] = field(default_factory=dict, repr=False)
    _baseline: tuple[_Network, pipeline.Array | References] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        for adapter in self.workload.adapters:
            adapters.install(adapter)

    def _data(self, cell: Cell) -> Dataset:
        """The cell's data, with a row for every example of its model."""
        key = (cell.model.path, cell.dataset_sha256, model_files.importing_with())
        if key not in self._fed:
            data = self.workload.data[cell.dataset_sha256]
            self._fed = {key: data.for_model(cell.model.path)}
        return self._fed[key]

    def row(self, cell: Cell) -> dict[str, Value]:
        """The row of a cell; see `outcome`."""
        return self.outcome(cell).row

    def outcome(self, cell: Cell) -> Outcome:
        """What a cell gives; an exception while running it becomes status "error". The row keeps
        what was found before, and the others' columns where only the metric failed."""
        started = datetime.now(UTC)
        clock = time.perf_counter()
        row = _empty_row(cell)
        outcome = Outcome(row)
        try:
            with model_files.imported_with(names_in(cell.engine)):
                problem = self._measure(cell, outcome)
            row |= {"status": "error" if problem else "ok", "error": one_line(problem)}
        except MemoryError as error:
            if activity.is_watched():  # what is left of it should go with the process
                raise
            row |= {"status": "error", "error": one_line(activity.explained(error))}
        except Exception as error:
            # Formats, data and metrics may be a user's, and raise anything: the others still run,
            # and the row says what it was.
            row |= {"status": "error", "error": one_line(activity.explained(error))}
        row |= _where(cell)
        row["started_utc"] = started.isoformat(timespec="seconds")
        row["duration_s"] = time.perf_counter() - clock
        return outcome

    def _measure(self, cell: Cell, outcome: Outcome) -> str:
        """Fill the row of a cell, and its lines of other files; what kept its metric from doing
        so."""
        settings, data, row = cell.settings, self._data(cell), outcome.row
        baseline, reference = self._baseline_of(cell)
        subject = baseline
        if not cell.is_baseline:
            with _of_scheme(cell, "preparing"):
                subject = _Network(self._prepare(cell))
        variant = subject.variant
        row |= {name: getattr(variant, name) for name in _VARIANT_COLUMNS if name in COLUMNS}
        known = [variant.notes]
        for more, said in (cost_columns(cell, variant), accumulator_columns(cell, variant)):
            row |= more
            known.append(said)
        if isinstance(reference, References):
            found = self._batchwise(cell, subject, baseline, reference, outcome.sequences)
            row["lowering"] = subject.lowering
        else:
            reference = outputs = reference[: settings.n_eval]
            if subject is not baseline:
                with _of_scheme(cell, "computing"):
                    outputs = subject.outputs(data.x[: settings.n_eval])
            row["lowering"] = subject.lowering
            with activity.at("comparing outputs", users=False):
                found = accuracy(cell, data, outputs, reference)
        row |= found.columns
        row["notes"] = one_line("; ".join(filter(None, [*known, *found.notes])))
        row |= subject.where()
        if settings.runs:
            with _of_scheme(cell, "measuring latency"):
                row |= self._latency(cell, subject, baseline)
        if cell.layers.images and cell.scheme.kind != "float32":
            with _of_scheme(cell, "comparing layers"):
                errors = variant.layers(data.x[: cell.layers.images], cell.layers.events)
            outcome.layers.extend(layer_lines(row, cell.layers.images, errors))
        if cell.gap.inputs and cell.scheme.kind != "float32":
            self._gap(cell, variant, outcome)
        return found.problem

    def _gap(self, cell: Cell, variant: pipeline.Variant, outcome: Outcome) -> None:
        """The steps from the cell's simulation to its execution; a note where there are none."""
        data = self._data(cell)
        inputs, per = gap_inputs(cell, data, variant.fixed_batch)
        subject = Subject(
            path=cell.model.path,
            scheme=rounding_seeds.seeded(cell.scheme, cell.seed),
            data=data,
            inputs=inputs,
            batch=per,
            calibration=self._calibration(cell),
            metric=scoring.find(cell.metric, data.classes),
            output=cell.output,
            target=cell.target,
            threads=cell.threads,
            plan=variant.plan,
        )
        try:
            with _of_scheme(cell, "exchanging ingredients of"):
                outcome.gaps.extend(gap_lines(outcome.row, inputs, steps(subject)))
        except NothingBetween as error:
            notes = (outcome.row["notes"], f"no gap: {error}")
            outcome.row["notes"] = one_line("; ".join(str(n) for n in notes if n))

    def _batchwise(
        self,
        cell: Cell,
        subject: _Network,
        baseline: _Network,
        reference: References,
        sequences: list[Line],
    ) -> Accuracy:
        """What there is to say of outputs that are never there all at once."""
        data, count = self._data(cell), cell.settings.n_eval
        images = self.workload.images[cell.model.sha256, cell.dataset_sha256]
        per = batch_of_tokens(cell, data, baseline.variant.fixed_batch, images)

        def pairs() -> Iterator[tuple[int, pipeline.Array, pipeline.Array]]:
            for start, stop in batches(images, per):
                if start >= count:
                    return
                part = data.x[start:stop]
                exact = reference.parts.get(start)
                if exact is None:
                    with activity.at("float32", users=False):
                        exact = baseline.compiled(per).predict(part)
                    reference.keep(start, exact)
                own, stop = exact, min(stop, count)
                if subject is not baseline:
                    with _of_scheme(cell, "computing"):
                        own = subject.compiled(per).predict(data.x[start:stop])
                yield start, own[: stop - start], exact[: stop - start]

        found = judged(cell, data, pairs(), count)
        if found.sums is not None:
            sequences += sequence_lines(_identity(cell), found.sums)
        return found.accuracy

    def _prepare(self, cell: Cell) -> pipeline.Variant:
        given: dict[str, Any] = {"output": cell.output} if cell.output else {}
        given |= {"device": device(cell.device)} if cell.device else {}
        given |= {"engines": EngineChoice.parse(cell.engine)} if cell.engine else {}
        return pipeline.prepare(
            cell.model.path,
            rounding_seeds.seeded(cell.scheme, cell.seed),
            sample_shape=sample_of(self._data(cell).x),
            calibration=self._calibration(cell),
            target=cell.target,
            threads=cell.threads,
            **given,
        )

    def _calibration(self, cell: Cell) -> Examples:
        """What a calibrated scheme sees, else nothing."""
        data = self._data(cell)
        if cell.scheme.calibrated:
            return data.calibration_sample(cell.settings.n_calib, cell.seed)
        return data.x[:0]

    def _baseline_of(self, cell: Cell) -> tuple[_Network, pipeline.Array | References]:
        """The float32 network of the cell's model, target and threads, and its outputs; or what is
        kept of them, where they are judged a batch at a time."""
        apart = in_batches(cell, self._data(cell))
        model = (cell.model.path, model_files.importing_with())
        place = (*model, cell.reference_target, cell.threads, cell.device)
        key = (*place, cell.dataset_sha256, cell.output, apart)
        if self._baseline is None or self._key != key:
            images = self.workload.images[cell.model.sha256, cell.dataset_sha256]
            x = self._data(cell).x[:images]
            with activity.at("float32", users=False):
                here = replace(cell, target=cell.reference_target)
                network = _Network(self._prepare(replace(here, scheme=_FLOAT32, engine="")))
                outputs = References() if apart else network.outputs(x)
                self._baseline, self._key = (network, outputs), key
        return self._baseline

    def _latency(self, cell: Cell, subject: _Network, baseline: _Network) -> dict[str, Value]:
        settings, batch = cell.settings, cell.settings.batch
        inputs = self._data(cell).x[:batch]
        if len(inputs) < batch:
            raise ConfigError(f"latency batch {batch} needs as many examples, have {len(inputs)}")
        reference = baseline.compiled(batch)
        protocol = Protocol(settings.warmup, settings.runs, settings.precision, settings.budget_s)

        if emulator_of(subject.compiled(batch).executable):  # its times say nothing
            return _counted(subject.compiled(batch), inputs)
        if cell.device:
            from experiments.devices.executable import speedup

            own, other = subject.compiled(batch).executable, reference.executable
            beside = None if cell.is_baseline else other
            return _latency_columns(speedup(own, beside, [call_of(inputs)], protocol))

        def float32() -> pipeline.Array:
            return reference.call(inputs)

        # This thread's time at work says nothing of a machine beside this process, as of threads.
        threads = cell.threads if not subject.where()["machine"] else 2
        if cell.is_baseline:
            found = measure_speedup(float32, None, protocol, threads=threads)
        else:
            compiled = subject.compiled(batch)
            found = measure_speedup(
                lambda: compiled.call(inputs), float32, protocol, threads=threads
            )
        return _latency_columns(found)


def _of_scheme(cell: Cell, what: str) -> AbstractContextManager[None]:
    """A step of a cell; the user's where functions of theirs compute the scheme."""
    own = own_code.of_scheme(cell.scheme)
    return activity.at(own or f"{what} {cell.scheme.label}", users=bool(own))


def failed(cell: Cell, status: str, error: str) -> Outcome:
    """The outcome of a cell that ended without one: a row with `status` and the reason."""
    return Outcome(_empty_row(cell) | {"status": status, "error": one_line(error)})


@dataclass
class _Network:
    """A network in one scheme, and its executables by batch size, each compiled once."""

    variant: pipeline.Variant
    executables: dict[int, pipeline.Compiled] = field(default_factory=dict)

    def compiled(self, batch: int) -> pipeline.Compiled:
        if batch not in self.executables:
            self.executables[batch] = self.variant.compile(batch)
        return self.executables[batch]

    def outputs(self, x: Examples) -> pipeline.Array:
        """The result that counts for inputs [n, ...]: [n, ...]."""
        batch = evaluation_batch(self.variant.fixed_batch, len(x), elements_of(x))
        return self.compiled(batch).predict(x)

    def where(self) -> dict[str, Value]:
        """The columns of the machine that it ran on, and of what engines computed."""
        ran = next(iter(self.executables.values()), None)
        if ran is None:
            return {}
        return {**machine_columns(ran.executable), "engine_nodes": handed_text(ran.executable)}

    @property
    def lowering(self) -> str:
        """How custom datatypes are computed, as compiled; empty if there are none."""
        chosen = (compiled.lowering for compiled in self.executables.values())
        return next(filter(None, chosen), self.variant.lowering)


_VARIANT_COLUMNS = tuple(pipeline.Variant.__dataclass_fields__)


def _identity(cell: Cell) -> dict[str, Value]:
    """The columns that are known before a cell runs."""
    settings, sums = cell.settings, cell.scheme.option("accumulate")
    return {
        "schema_version": SCHEMA_VERSION,
        "config_hash": cell.config_hash,
        "model": cell.model.name,
        "model_sha256": cell.model.sha256,
        "dataset": cell.dataset,
        "dataset_sha256": cell.dataset_sha256,
        "repeat": cell.repeat,
        "n_eval": settings.n_eval,
        "n_calib": settings.n_calib if cell.scheme.calibrated else 0,
        "seed": cell.seed,
        "scheme": cell.scheme.label,
        "dtype": cell.scheme.dtype,
        "accumulate": sums if isinstance(sums, str) else "",
        "batch": settings.batch,
        "threads": cell.threads,
        "warmup": settings.warmup,
        "runs": settings.runs,
        "target": cell.target,
        "engine": cell.engine,
        "config": json.dumps(cell.specification()),
        **asdict(provenance.collect()),
        **_where(cell),
    }


def _where(cell: Cell) -> dict[str, Value]:
    """The columns of the machine that a cell runs on, where that is not this one; empty as long as
    the device has not been reached."""
    if not cell.device:
        return {}
    known = device(cell.device).known
    if known is None:
        return dict.fromkeys(("cpu", "cores", "os"))
    return {"cpu": known.cpu, "cores": known.cores, "os": known.os}


def _empty_row(cell: Cell) -> dict[str, Value]:
    return {**dict.fromkeys(COLUMNS), **_identity(cell)}


def _latency_columns(found: Speedup) -> dict[str, Value]:
    columns: dict[str, Value] = {
        f"latency_ms_{name}": getattr(found.latency, name)
        for name in ("min", "median", "mean", "p90", "p99", "stdev")
    }
    return {
        **columns,
        "speedup_vs_fp32": found.ratio,
        "speedup_low": found.low,
        "speedup_high": found.high,
        "latency_rounds": found.latency.runs,
        "latency_lost": found.lost,
        "latency_load": found.load,
        "latency_noise": disturbance.written(found.noise),
    }


def _counted(compiled: pipeline.Compiled, inputs: Examples) -> dict[str, Value]:
    """The column of instructions of a call, where it has been counted."""
    compiled.call(inputs)
    return {"instructions": instructions_of(compiled.executable)}


def one_line(text: str, limit: int = 500) -> str:
    """A text for a field of the results."""
    line = " ".join(text.split())
    return line if len(line) <= limit else line[: limit - 3] + "..."
