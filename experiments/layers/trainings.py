"""The file of runs: a CSV line for each training, with what it was and what came of it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from compiler.errors import DtypelabError
from compiler.files.reading import open_file
from experiments.results.parquet import is_parquet, read_parquet

from .long_file import Kind, LongFile, read_long

if TYPE_CHECKING:
    import pandas as pd

_TEXT = (
    *("run_id", "config_hash", "status", "error", "model", "model_sha256", "dataset"),
    *("dataset_sha256", "initial", "optimizer", "schedule", "system", "forward", "backward"),
    *("update", "loss_format", "statistics", "loss_scaling", "metric_name", "weights_sha256"),
    *("cpu", "os", "python", "numpy", "llvmlite", "dtypelab_version", "git_rev", "git_dirty"),
    *("started_utc", "config"),
)
RUN_COLUMNS = (
    *("run_id", "schema_version", "config_hash", "status", "error"),
    *("model", "model_sha256", "dataset", "dataset_sha256", "n_train", "n_test"),
    *("system", "forward", "backward", "update", "loss_format", "statistics", "loss_scaling"),
    *("optimizer", "schedule", "rate", "weight_decay", "clip_norm"),
    *("seed", "initial", "epochs", "batch", "steps"),
    *("metric_name", "metric", "loss", "test_loss", "skipped_steps", "finite", "weights_sha256"),
    *("threads", "cpu", "cores", "os", "python", "numpy", "llvmlite", "dtypelab_version"),
    *("git_rev", "git_dirty", "started_utc", "seconds", "config"),
)
SHOWN_COLUMNS = (
    *("model", "system", "loss_scaling", "rate", "seed", "metric", "loss", "skipped_steps"),
    *("finite", "seconds", "status"),
)
"""What is shown where nobody names columns."""
SCHEMA_VERSION = 1
_KIND = Kind("file of training runs", RUN_COLUMNS, _TEXT, "dtypelab train")


class RunsFile(LongFile):
    """A CSV of trainings, a line each."""

    kind = _KIND

    def status(self) -> dict[str, str]:
        """`config_hash` -> "ok" or "error" of every run in the file."""
        key, status = (self.kind.columns.index(n) for n in ("config_hash", "status"))
        return {r[key]: r[status] for r in self._records()}


def is_runs(path: str | os.PathLike[str]) -> bool:
    """Whether a file is one of training runs, by its columns."""
    try:
        if is_parquet(path):
            return tuple(read_parquet(path).columns) == RUN_COLUMNS
        head = ",".join(RUN_COLUMNS).encode()
        with open_file(path, "the results", most=None) as file:  # no FIFO and no device
            return file.readline(len(head) + 2).strip() == head
    except (OSError, DtypelabError):
        return False


def read_runs(path: str | os.PathLike[str]) -> pd.DataFrame:
    """A file of runs as a table; missing numbers are NaN; see `read_long`."""
    return read_long(path, _KIND)
