"""What configurations are worth on data that they were not found with: cells of a sweep."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compiler.errors import InputError
from experiments.measure import scoring
from experiments.systems import schemes

from .bound import DROP, Bound

if TYPE_CHECKING:
    from quantize import QConfig

COLUMNS = (
    *("metric_name", "metric", "metric_fp32", "metric_drop", "metric_drop_low"),
    *("metric_drop_high", "sqnr_db", "kl_float32", "top1_agreement", "n_eval"),
)
NAMED = {"sqnr": "sqnr_db", "kl": "kl_float32", "agreement": "top1_agreement", DROP: "metric_drop"}
"""Figures of bounds -> their columns, other figures being the metric."""


def choices(config: QConfig) -> dict[str, Any]:
    """The fields of a configuration that are not as without one, as JSON-compatible data: what a
    file for `--config` or a scheme of a specification says."""
    given = config.to_dict()
    usual = type(config)().to_dict()
    return {f.name: given[f.name] for f in fields(config) if given[f.name] != usual[f.name]}


def scheme(config: QConfig) -> dict[str, Any]:
    """A scheme of a specification that is this configuration."""
    given = choices(config)
    return {"scheme": schemes.of_config(given), **given}


def on_test_data(
    configs: Sequence[QConfig],
    model: str,
    data: str,
    n_calib: int,
    seed: int,
    metric: str,
    output: str,
    n_eval: int | None,
    threads: int,
) -> list[dict[str, Any]]:
    """Columns of results, as `COLUMNS` lists them, of the network in every configuration, for the
    first `n_eval` inputs (None: all).

    Raises:
        InputError: a cell failed; says why.
    """
    from experiments.running.runner import sweep

    specification: dict[str, Any] = {
        "models": [model],
        "dataset": data,
        "schemes": [scheme(config) for config in configs],
        "n_calib": n_calib,
        "seed": seed,
        "latency": {"runs": 0},
        "threads": [threads],
        **({} if n_eval is None else {"n_eval": n_eval}),
        **({"metric": metric} if metric else {}),
        **({"output": output} if output else {}),
    }
    with tempfile.TemporaryDirectory() as folder:
        rows = sweep(specification, Path(folder) / "cells.csv", progress=False)
    found = []
    for row in rows.to_dict("records"):
        if row["status"] != "ok":
            raise InputError(f"a configuration could not be judged on test data: {row['error']}")
        found.append({name: row[name] for name in COLUMNS})
    return found


def holds(bounds: Sequence[Bound], test: Mapping[str, Any]) -> bool:
    """Whether bounds hold of columns of results."""
    percent = 100.0 if scoring.is_share(test["metric_name"]) else 1.0
    figures = {b.figure: test[NAMED.get(b.figure, "metric")] for b in bounds}
    if DROP in figures:
        figures[DROP] *= percent
    return all(b.holds(figures) for b in bounds)
