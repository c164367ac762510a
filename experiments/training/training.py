"""Trainings: every run of a specification becomes a row of a file, with a curve and its weights."""

from __future__ import annotations

import datetime
import json
import os
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from compiler.errors import ConfigError, DtypelabError, UnsupportedError
from experiments.files import check_outputs
from experiments.layers.answers import Answers, AnswersFile, answers_path
from experiments.layers.curves import CurvesFile, curve_lines, curves_path
from experiments.layers.trainings import SCHEMA_VERSION, RunsFile, read_runs
from experiments.results.schema import Value
from experiments.running.provenance import collect

from .checkpoints import Checkpoint
from .loop import Pace, Tell, Trained, train_run
from .outcome import Outcome
from .programs import float32_scores, test_labels
from .spec import Run, TrainSpec, load_training

if TYPE_CHECKING:
    import pandas as pd


def train(
    spec: str | os.PathLike[str] | Mapping[str, Any] | TrainSpec,
    out: str | os.PathLike[str],
    resume: bool = False,
    retry_failed: bool = False,
    settings: Iterable[str] = (),
    progress: Tell | None = None,
) -> pd.DataFrame:
    """Train every run of `spec` (a TOML path or a dict) and write its row to `out`.

    How the loss went is in `layers.curves.curves_path(out)`; states of training, the last of which
    holds the weights, are in the folder `checkpoints_path(out)`. A training that was stopped, even
    killed, continues with `resume` from its last checkpoint, and ends in the same bits. A run that
    fails is a row with status "error"; `retry_failed` runs it again.

    Args:
        spec: what to train, see `spec.load_training`.
        out: the file of runs.
        resume: continue files that exist.
        retry_failed: continue, and run failed ones again.
        settings: KEY=VALUE in place of what the specification says.
        progress: is told what is being done, how many steps of all runs are, and of how many.

    Returns:
        The rows of this specification, in its order.

    Raises:
        ConfigError: the specification is wrong, `out` exists and `resume` is false, or it cannot be
            written.
    """
    checked = load_training(spec, settings)
    curves = curves_path(out)
    beside = [curves, answers_path(out)] if checked.quantized else [curves]
    sources: list[str | Path] = [checked.source]
    for run in checked.runs:
        sources += [run.path, *run.adapters]
    check_outputs([out, *beside], sources)
    again = resume or retry_failed
    rows_file, curves_file = RunsFile(Path(out), resume=again), CurvesFile(curves, resume=again)
    answers = AnswersFile(answers_path(out), resume=again) if checked.quantized else None
    folder = checkpoints_path(out)
    folder.mkdir(exist_ok=True)
    run_id, known = uuid.uuid4().hex, rows_file.status()
    hashes = [run.config_hash for run in checked.runs]
    done, total = 0, sum(run.steps for run in checked.runs)
    try:
        for run, key in zip(checked.runs, hashes, strict=True):
            if known.get(key) is None or (retry_failed and known[key] != "ok"):
                tell = _within(progress, run, done, total)
                row, trained = _outcome(run, checked, Checkpoint(folder / f"{key}.npz", key), tell)
                if trained and run.qat and run.qat.train:
                    row["error"] = _left(Outcome(models_path(out), key), run, checked, trained)
                points = trained.state.curve if trained else ()
                if answers and trained:
                    said = _answers(run, checked, trained)
                    answers.put(key, [said.line(run_id, key)])
                curves_file.put(key, curve_lines(run_id, key, points))
                rows_file.put(key, [{"run_id": run_id, "config_hash": key, **row}])
            done += run.steps
    except BaseException:
        # Files without a row would only keep a second attempt from writing them.
        if not rows_file.status():
            rows_file.remove_if_of(run_id)
            curves_file.remove_if_of(run_id)
            if answers:
                answers.remove_if_of(run_id)
        raise
    table = read_runs(out).set_index("config_hash", drop=False)
    return table.loc[hashes].reset_index(drop=True)


def checkpoints_path(out: str | os.PathLike[str]) -> Path:
    """The folder `x.checkpoints` for the runs in `x.csv`; a run's file is named by its hash."""
    return Path(out).with_suffix(".checkpoints")


def models_path(out: str | os.PathLike[str]) -> Path:
    """The folder `x.models` of the quantized networks of `x.csv`; see `outcome`."""
    return Path(out).with_suffix(".models")


def label(run: Run) -> str:
    """A run in a few words."""
    return f"{run.model} {run.system} seed {run.seed}"


def _left(outcome: Outcome, run: Run, spec: TrainSpec, trained: Trained) -> str:
    """Writes what a run leaves; or says what cannot be written."""
    try:
        outcome.write(run, spec.data, trained)
    except UnsupportedError as error:
        return f"trained, but not written as ONNX: {error}"
    return ""


def _answers(run: Run, spec: TrainSpec, trained: Trained) -> Answers:
    """What came of a run, example by example."""
    known = float32_scores(run.path, run.model_sha256, spec.data, spec.threads)
    labels = test_labels(run, spec.data, spec.threads)
    groups = spec.data.group_test
    groups = None if groups is None else groups[: run.n_test]
    return Answers.of(trained.scores, known[: run.n_test], labels, groups)


def _within(progress: Tell | None, run: Run, before: int, total: int) -> Tell:
    """What tells of a run as a part of all of them."""

    def tell(what: str, done: int, _: int) -> None:
        if progress is not None:
            progress(f"{label(run)} {what}", before + done, total)

    return tell


def _outcome(
    run: Run, spec: TrainSpec, kept: Checkpoint, tell: Tell
) -> tuple[dict[str, Value], Trained | None]:
    """The row of a run, but for what names it, and what came of it."""
    started = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    pace = Pace(spec.checkpoint_steps, spec.curve_steps, spec.threads, spec.judge_epochs)
    facts: dict[str, Value] = dict.fromkeys(
        ("metric", "loss", "test_loss", "skipped_steps", "weights_sha256", "seconds", "finite")
    )
    trained = None
    try:
        trained = train_run(run, spec.data, pace, kept, tell)
    except ConfigError:
        raise
    except DtypelabError as error:
        facts |= {"status": "error", "error": str(error)}
    else:
        arrays = trained.state.arrays.values()
        facts |= {
            "status": "ok",
            "error": "",
            "metric": trained.metric,
            "loss": trained.loss,
            "test_loss": trained.test_loss,
            "skipped_steps": trained.state.scale.skipped,
            "finite": int(all(bool(np.isfinite(a).all()) for a in arrays)),
            "weights_sha256": trained.weights_sha256,
            "seconds": round(trained.state.seconds, 3),
        }
    return {**_described(run, spec), **facts, "started_utc": started}, trained


def _described(run: Run, spec: TrainSpec) -> dict[str, Value]:
    """What a run is, as columns."""
    f, rules = run.formats, run.rules
    made = asdict(collect())
    return {
        **made,
        "schema_version": SCHEMA_VERSION,
        "model": run.model,
        "model_sha256": run.model_sha256,
        "dataset": run.dataset,
        "dataset_sha256": run.dataset_sha256,
        "n_train": run.n_train,
        "n_test": run.n_test,
        "system": run.system,
        "forward": str(f.forward),
        "backward": str(f.backward),
        "update": str(f.update),
        "loss_format": str(f.loss),
        "statistics": str(f.statistics),
        "loss_scaling": str(rules.loss_scale),
        "optimizer": rules.optimizer.name,
        "schedule": run.schedule.name,
        "rate": run.schedule.rate,
        "weight_decay": rules.optimizer.weight_decay,
        "clip_norm": rules.clip_norm,
        "seed": run.seed,
        "initial": run.initial,
        "epochs": run.epochs,
        "batch": run.batch,
        "steps": run.steps,
        "metric_name": "top1" if spec.data.y_test is not None else "agreement",
        "threads": spec.threads,
        "config": json.dumps(run.content(), sort_keys=True, default=list),
    }
