"""Filling the page with the data of a results file."""

from __future__ import annotations

import html
import json
import math
import os
import re
import shlex
from dataclasses import asdict
from importlib import resources
from pathlib import Path, PosixPath
from typing import TYPE_CHECKING, Any

from compiler._html import escaped
from compiler.errors import ConfigError
from experiments import noise
from experiments.files import atomic_path, check_outputs
from experiments.layer_table import EVENTS, layers_path, read_layers
from experiments.multiplicity import HOLM, adjusted, warning
from experiments.recorded_config import code_files, config_of
from experiments.row_names import merits, metric_label, system_names
from experiments.store import read_results

from .ranges import Ranges, profile, ranges_at_hand

if TYPE_CHECKING:
    import pandas as pd

#: Inputs that the value ranges of a network are taken from, and their elements at most.
RANGE_INPUTS, RANGE_ELEMENTS = 8, 2**18
_SCRIPTS = ("base.js", "scales.js", "pareto.js", "cells.js", "values.js", "start.js")

_SHOWN = (
    *("config_hash", "status", "error", "model", "scheme", "dtype", "accumulate", "lowering"),
    *("metric_name", "metric", "metric_fp32", "metric_drop", "metric_drop_low"),
    *("metric_drop_high", "p_value", "n_eval", "sqnr_db", "cosine", "top1_agreement"),
    *("size_bytes", "activation_bytes", "traffic_bytes", "macs", "bit_operations"),
    *("energy_uj", "energy_memory_uj"),
    *("latency_ms_median", "speedup_vs_fp32", "speedup_low", "speedup_high"),
    *("threads", "target", "outputs_not_finite", "portable_bits", "detectable_drop"),
)
_PROVENANCE = {
    "processor": "cpu",
    "cores": "cores",
    "target": "target",
    "instruction set": "isa",
    "system": "os",
    "Python": "python",
    "numpy": "numpy",
    "llvmlite": "llvmlite",
    "dtypelab": "dtypelab_version",
}


class Page(PosixPath):
    """The path of a page that has been written; a notebook shows the page itself."""

    def _repr_html_(self) -> str:
        text = html.escape(self.read_text(encoding="utf-8"))
        return f'<iframe srcdoc="{text}" style="width: 100%; height: 48em; border: 0"></iframe>'


def report(
    results: str | os.PathLike[str], out: str | os.PathLike[str], title: str | None = None
) -> Page:
    """Write a results file as one HTML page that needs nothing else, no network either.

    Args:
        results: a results CSV.
        out: the page.
        title: its heading; by default the name of the results file.

    Returns:
        The path of the page, which a notebook shows.

    Raises:
        ConfigError: `results` is no results file or has no row, or `out` cannot be written.
    """
    check_outputs([out], [results, layers_path(results)])
    data = page_data(results)
    name = title or Path(results).stem
    filled = {
        "title": escaped(name),
        "style": _part("style.css"),
        "script": "".join(map(_part, _SCRIPTS)),
        # In a script element "<" may begin its end, or a comment.
        "data": json.dumps(data, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c"),
    }
    page = re.sub(r"\{\{(\w+)\}\}", lambda mark: filled[mark[1]], _part("page.html"))
    with atomic_path(out) as temporary:
        temporary.write_text(page, encoding="utf-8")
    return Page(out)


def page_data(results: str | os.PathLike[str]) -> dict[str, Any]:
    """Everything the page shows, as plain JSON values.

    Raises:
        ConfigError: no results file, or one without rows.
    """
    table = read_results(results)
    if table.empty:
        raise ConfigError(f"{results} has no rows yet; run its sweep first")
    command = f"dtypelab reproduce {shlex.quote(str(results))} --row "
    rows = [
        {name: _plain(row[name]) for name in _SHOWN}
        | {"system": system, "command": command + str(row["config_hash"])[:12], HOLM: _plain(p)}
        | {"outputs_not_finite": _plain(row["outputs_not_finite"]) or None}
        | _disturbance(row["latency_noise"])
        for row, system, p in zip(
            table.to_dict("records"), system_names(table), adjusted(table), strict=True
        )
    ]
    ranges = {str(row["model"]): _ranges(row) for row in _one_a_model(table)}
    return {
        "summary": _summary(rows),
        "p_values": warning(table),
        "rows": rows,
        "metrics": {name: asdict(merit) for name, merit in merits(table).items()},
        "layers": _layers(results),
        "layers_hint": "No layers were recorded: give the specification a table [layers] with "
        "images = 2 and run it again.",
        "ranges": {name: _plain_ranges(r) for name, r in ranges.items() if not isinstance(r, str)},
        "ranges_missing": {name: why for name, why in ranges.items() if isinstance(why, str)},
        "profiles": {name: found for name in table["dtype"].unique() if (found := profile(name))},
        "networks": [_network(row) for row in _one_a_model(table)],
        "provenance": _provenance(table),
    }


def _disturbance(latency_noise: str) -> dict[str, str]:
    reasons = noise.read(latency_noise)
    return {"disturbed": ", ".join(reasons), "disturbance": noise.explained(reasons)}


def _summary(rows: list[dict[str, Any]]) -> str:
    networks, systems = (len({row[name] for row in rows}) for name in ("model", "system"))
    failed = sum(row["status"] != "ok" for row in rows)
    lost = sum(bool(row["outputs_not_finite"]) for row in rows)
    summary = f"{len(rows)} cells: {networks} networks in {systems} number systems"
    summary += f"; {failed} failed" if failed else ""
    return summary + (f"; {lost} with NaN or infinity in outputs" if lost else "")


def _one_a_model(table: pd.DataFrame) -> list[dict[Any, Any]]:
    """A row of every network, one that did not fail if there is any."""
    ordered = table.sort_values("status", key=lambda s: s != "ok", kind="stable")
    first = ordered.drop_duplicates("model").set_index("model", drop=False)
    return first.loc[table["model"].unique()].to_dict("records")


def _network(row: dict[Any, Any]) -> dict[str, Any]:
    """The line of a network in the table of networks."""
    return {
        "network": row["model"],
        "file (SHA-256)": row["model_sha256"][:12],
        "data": row["dataset"],
        "inputs": _plain(row["n_eval"]),
        "judged by": metric_label(row["metric_name"]),
        "float32": _plain(row["metric_fp32"]),
        "multiply-accumulates": _plain(row["macs"]),
    }


def _provenance(table: pd.DataFrame) -> dict[str, list[str]]:
    found = {
        shown: sorted({str(_plain(v)) for v in table[column]} - {"", "None"})
        for shown, column in _PROVENANCE.items()
    }
    revisions = zip(table["git_rev"], table["git_dirty"], strict=True)
    changed = {"true": " with uncommitted changes"}
    found["revision"] = sorted({rev + changed.get(dirty, "") for rev, dirty in revisions if rev})
    times = sorted(set(table["started_utc"]) - {""})
    found["measured"] = [" to ".join(dict.fromkeys((times[0], times[-1])))] if times else []
    return {shown: values for shown, values in found.items() if values}


def _layers(results: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """The cells of the layers file beside the results; none if there is no such file."""
    path = layers_path(results)
    if not path.exists():
        return []
    cells: dict[str, list[dict[str, Any]]] = {}
    for line in read_layers(path).to_dict("records"):
        shown = {name: _plain(line[name]) for name in ("value", "operator", "sqnr_db", "cosine")}
        events = {name: _plain(line[name]) for name in EVENTS}
        cells.setdefault(line["config_hash"], []).append({**shown, "events": events})
    return [{"config_hash": key, "values": values} for key, values in cells.items()]


def _ranges(row: dict[Any, Any]) -> Ranges | str:
    """The values of a row's network, or why there are none."""
    try:
        config = config_of(row)
    except ConfigError as error:
        return str(error)
    models, dataset = config.get("models", [row["model"]]), config.get("dataset", row["dataset"])
    model = models[0] if isinstance(models, list) and len(models) == 1 else None
    if not isinstance(model, str) or not isinstance(dataset, str):
        return "the row's configuration names no network and data set of its own"
    if files := code_files({"dataset": dataset}):
        return f"the data are made by {files[0]}, which a report does not run"
    return ranges_at_hand(model, dataset, row["model_sha256"], RANGE_INPUTS, RANGE_ELEMENTS)


def _plain_ranges(ranges: Ranges) -> list[dict[str, Any]]:
    return [asdict(h) for h in (ranges.weights, ranges.activations, *ranges.tensors)]


def _plain(value: Any) -> Any:
    """JSON has no NaN and no infinities: null, "inf" and "-inf" stand for them."""
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float):
        if math.isnan(value):
            return None
        return str(value) if math.isinf(value) else value
    return value


def _part(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")
