"""What a configuration is worth on data that it was not found with: a cell of a sweep."""

from __future__ import annotations

import tempfile
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compiler.errors import InputError

if TYPE_CHECKING:
    from quantize import QConfig

COLUMNS = (
    *("metric_name", "metric", "metric_fp32", "metric_drop", "metric_drop_low"),
    *("metric_drop_high", "sqnr_db", "kl_float32", "n_eval"),
)


def choices(config: QConfig) -> dict[str, Any]:
    """The fields of a configuration that are not as without one, as JSON-compatible data: what a
    file for `--config` or a scheme of a specification says."""
    given = config.to_dict()
    usual = type(config)().to_dict()
    return {f.name: given[f.name] for f in fields(config) if given[f.name] != usual[f.name]}


def scheme(config: QConfig) -> dict[str, Any]:
    """A scheme of a specification that is this configuration."""
    return {"scheme": "int8" if config.weight_dtype == "int8" else "scaled", **choices(config)}


def on_test_data(
    config: QConfig, model: str, data: str, n_calib: int, seed: int, metric: str, output: str
) -> dict[str, Any]:
    """Columns of results, as `COLUMNS` lists them, of the network in a configuration.

    Raises:
        InputError: the cell failed; says why.
    """
    from experiments.running.runner import sweep

    specification: dict[str, Any] = {
        "models": [model],
        "dataset": data,
        "schemes": [scheme(config)],
        "n_calib": n_calib,
        "seed": seed,
        "latency": {"runs": 0},
        **({"metric": metric} if metric else {}),
        **({"output": output} if output else {}),
    }
    with tempfile.TemporaryDirectory() as folder:
        rows = sweep(specification, Path(folder) / "cell.csv", progress=False)
    row = rows.iloc[0]
    if row["status"] != "ok":
        raise InputError(f"the configuration could not be judged on test data: {row['error']}")
    return {name: row[name] for name in COLUMNS}
