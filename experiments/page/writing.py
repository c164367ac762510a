"""Filling the page with the data of a results file."""

from __future__ import annotations

import html
import json
import math
import os
from collections.abc import Mapping
from dataclasses import asdict
from importlib import resources
from pathlib import Path, PosixPath
from typing import Any

from compiler.errors import ConfigError
from experiments import datasets
from experiments.files import atomic_path
from experiments.layer_table import EVENTS, layers_path, read_layers
from experiments.store import read_results

from .ranges import profile, ranges_at_hand

#: Inputs that the value ranges of a network are taken from.
RANGE_INPUTS = 8

_SHOWN = (
    *("config_hash", "status", "error", "model", "scheme", "dtype", "accumulate", "lowering"),
    *("metric", "metric_drop", "sqnr_db", "cosine", "top1_agreement", "size_bytes", "macs"),
    *("bit_operations", "activation_bytes", "energy_uj", "p_value"),
    *("metric_drop_low", "metric_drop_high"),
    *("latency_ms_median", "speedup_vs_fp32", "threads", "target"),
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
    "revision": "git_rev",
    "data set": "dataset",
    "inputs evaluated": "n_eval",
    "started": "started_utc",
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
    data = page_data(results)
    name = title or Path(results).stem
    filled = {
        "{{title}}": html.escape(name),
        "{{style}}": _part("style.css"),
        "{{script}}": _part("script.js"),
        # In a script element only "</" could end the data early.
        "{{data}}": json.dumps(data, allow_nan=False).replace("</", "<\\/"),
    }
    page = _part("page.html")
    for mark, text in filled.items():
        page = page.replace(mark, text)
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
    rows = [
        {name: _plain(row[name]) for name in _SHOWN}
        | {"command": f"dtypelab reproduce {results} --row {str(row['config_hash'])[:12]}"}
        for row in table.to_dict("records")
    ]
    models, failed = table["model"].nunique(), int((table["status"] != "ok").sum())
    summary = f"{len(rows)} cells: {models} networks in {table['scheme'].nunique()} number systems"
    ranges = {
        model: _ranges(model, dataset)
        for model, dataset in dict(zip(table["model"], table["dataset"], strict=True)).items()
    }
    return {
        "summary": summary + (f"; {failed} failed" if failed else ""),
        "rows": rows,
        "layers": _layers(results),
        "layers_hint": "No layers were recorded: give the specification a table [layers] with "
        "images = 2 and run it again.",
        "ranges": {model: found for model, found in ranges.items() if found},
        "profiles": {name: found for name in table["dtype"].unique() if (found := profile(name))},
        "provenance": {
            shown: sorted({str(_plain(v)) for v in table[column]} - {"", "None"})
            for shown, column in _PROVENANCE.items()
        },
    }


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


def _ranges(model: str, dataset: str) -> Mapping[str, Any] | None:
    if dataset not in datasets.names():
        return None
    found = ranges_at_hand(model, datasets.load(dataset).x[:RANGE_INPUTS])
    return asdict(found) if found else None


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
