"""Filling the page with the data of a results file."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import math
import os
import re
import shlex
from collections.abc import Mapping
from dataclasses import asdict
from importlib import resources
from pathlib import Path, PosixPath
from typing import TYPE_CHECKING, Any

from compiler._html import escaped
from compiler.errors import ConfigError
from compiler.files.printable import printable
from experiments.files import atomic_path, check_outputs
from experiments.layers.gaps import gaps_path
from experiments.layers.sequences import sequences_path
from experiments.layers.table import EVENTS, layers_path, read_layers
from experiments.measure import disturbance
from experiments.measure.statistics import HOLM, adjusted, warning
from experiments.results.column_meanings import meaning
from experiments.results.row_names import merits, system_names
from experiments.results.store import read_rows
from experiments.spec.recorded_config import code_files, config_of

from . import palette, tables, value_pictures
from .compared import Compared, compared
from .gap_section import gap_section
from .palette import Look, looks
from .picture import panel_svg, panels
from .ranges import Ranges, profile, ranges_at_hand
from .token_table import by_tokens

if TYPE_CHECKING:
    import pandas as pd

#: Inputs that the value ranges of a network are taken from, and their elements at most.
RANGE_INPUTS, RANGE_ELEMENTS = 8, 2**18
_SCRIPTS = (
    *("base.js", "scales.js", "labels.js", "pareto.js", "sorting.js", "cells.js", "values.js"),
    "start.js",
)

#: What the script knows of a row.
_SHOWN = (
    *("config_hash", "status", "error", "model", "system", "scheme", "dtype", "accumulate"),
    *("lowering", "metric_name", "metric", "metric_fp32", "metric_drop", "metric_drop_low"),
    *("metric_drop_high", "p_value", HOLM, "n_eval", "sqnr_db", "cosine", "top1_agreement"),
    *("size_bytes", "activation_bytes", "traffic_bytes", "macs", "bit_operations"),
    *("energy_uj", "energy_memory_uj", "energy_mac_uj", "energy_other_uj", "mac_gates"),
    *("mac_area_um2", "cost_source", "accumulator_bits"),
    *("latency_ms_median", "speedup_vs_fp32", "speedup_low", "speedup_high", "disturbed"),
    *("disturbance", "threads", "target", "outputs_not_finite", "portable_bits"),
    *("detectable_drop", "notes"),
    *("kl_float32", "kl_float32_p99", "top_token_agreement"),
)
_AXES = (
    *("latency_ms_median", "speedup_vs_fp32", "size_bytes", "activation_bytes", "traffic_bytes"),
    *("energy_memory_uj", "macs", "bit_operations", "energy_uj", "metric", "metric_drop"),
    *("sqnr_db", "cosine", "top1_agreement", "kl_float32", "top_token_agreement"),
    *("mac_gates", "mac_area_um2", "accumulator_bits"),
)
_PROVENANCE = (
    *("cpu", "cores", "target", "isa", "os", "python", "numpy", "llvmlite", "dtypelab_version"),
)


class Page(PosixPath):
    """The path of a page that has been written; a notebook shows the page itself."""

    def _repr_html_(self) -> str:
        text = html.escape(self.read_text(encoding="utf-8"))
        return f'<iframe srcdoc="{text}" style="width: 100%; height: 48em; border: 0"></iframe>'


def report(
    results: str | os.PathLike[str],
    out: str | os.PathLike[str],
    title: str | None = None,
    against: str | os.PathLike[str] | None = None,
) -> Page:
    """Write a results file as one HTML page that needs nothing else, no network either.

    Args:
        results: a results CSV.
        out: the page.
        title: its heading; by default the name of the results file.
        against: an earlier results file, with which the page compares every cell.

    Returns:
        The path of the page, which a notebook shows.

    Raises:
        ConfigError: `results` or `against` is no results file or has no row, the two have no cell
            in common, or `out` cannot be written.
    """
    beside = (layers_path(results), sequences_path(results), gaps_path(results))
    check_outputs([out], [results, *beside, against])
    table = _rows(results)
    systems = list(system_names(_printable(table)))
    look_of = looks(systems)
    changed = None
    if against is not None:
        names = (Path(against).name, Path(results).name)
        changed = compared(_printable(_rows(against)), _printable(table), look_of, names)
    data = page_data(results)
    if changed is not None:
        data["compared"] = {key: list(map(_plain, v)) for key, v in changed.values.items()}
    judged = by_tokens(_printable(table), sequences_path(results), look_of)
    if judged is not None:
        data["tokens"] = {key: list(map(_plain, v)) for key, v in judged.values.items()}
    script, style = "".join(map(_part, _SCRIPTS)), _part("style.css") + palette.style()
    filled = {
        "title": escaped(title or Path(results).stem),
        "policy": f"default-src 'none'; img-src data:; {_allowed('script', script)}; "
        f"{_allowed('style', style)}",
        "style": style,
        "script": script,
        "forms": tables.forms(),
        "summary": escaped(data["summary"]),
        "pareto": _pictures(table),
        "cells": tables.cells(data["rows"], merits(table), look_of),
        "p_values": escaped(data["p_values"]),
        "layers": value_pictures.layers(data["layers"], data["rows"], look_of, data["layers_hint"]),
        **_values(data, look_of),
        "compared": _comparison(changed),
        "tokens": "" if judged is None else judged.section,
        "gaps": gap_section(
            dict(zip(table["config_hash"], systems, strict=True)), gaps_path(results), look_of
        ),
        "command": escaped(data["command"]),
        "networks": tables.networks(data["networks"], merits(table)),
        "provenance": _terms(data.pop("provenance")),
        "legend": tables.legend(),
        # In a script element "<" may begin its end, or a comment.
        "data": json.dumps(_packed(data), allow_nan=False, separators=(",", ":")).replace(
            "<", "\\u003c"
        ),
    }
    page = re.sub(r"\{\{(\w+)\}\}", lambda mark: filled[mark[1]], _part("page.html"))
    with atomic_path(out) as temporary:
        temporary.write_text(page, encoding="utf-8")
    return Page(out)


def _rows(results: str | os.PathLike[str]) -> pd.DataFrame:
    """The rows of a results file, of which there must be some."""
    table = read_rows(results)
    if table.empty:
        raise ConfigError(f"{results} has no rows yet; run its sweep first")
    return table


def _printable(table: pd.DataFrame) -> pd.DataFrame:
    texts = [str(name) for name in table if table[name].dtype.kind not in "biuf"]
    return table.assign(**{name: table[name].map(_seen) for name in texts})


def _seen(value: Any) -> Any:
    """A text as it may be shown; other values as they are."""
    return printable(value) if isinstance(value, str) else value


def _allowed(kind: str, content: str) -> str:
    """The directive of a content security policy that allows one inline element, by its digest
    (Content Security Policy Level 3): no attribute of an element is a script or a style."""
    digest = hashlib.sha256(f"\n{content}\n".encode()).digest()
    return f"{kind}-src 'sha256-{base64.b64encode(digest).decode()}'"


def _pictures(table: pd.DataFrame) -> str:
    """What accuracy costs, for readers without script."""
    return "".join(
        f"<figure><figcaption>{escaped(model)}</figcaption>{panel_svg(model, inner)}</figure>"
        for model, inner in panels(_printable(table)).items()
    )


def _values(data: dict[str, Any], look_of: Mapping[str, Look]) -> dict[str, str]:
    """Values and formats for readers without script: pictures, keys of their lines, what lacks."""
    first = {row["dtype"]: look_of[row["system"]] for row in reversed(data["rows"])}
    colours = {name: first[name].colour for name in data["profiles"]}
    drawn = list(data["profiles"])[: value_pictures.MOST_FORMATS]
    keys = "".join(f"<span>{tables.swatch(first[f])} {escaped(f)}</span>" for f in drawn)
    lacks = "; ".join(f"{model}: {why}" for model, why in data["ranges_missing"].items())
    told = f"Not at hand when this page was written: {lacks}."
    return {
        "ranges": value_pictures.ranges(data["ranges"], data["profiles"], colours),
        "formats": keys,
        "missing": escaped(told) if lacks else "",
    }


def _comparison(changed: Compared | None) -> str:
    if changed is None:
        return ""
    return (
        '<section aria-labelledby="compared-title"><h2 id="compared-title">What changed</h2>'
        f'<p class="hint">{escaped(changed.summary)}</p><div class="scroll" tabindex="0" '
        f'role="region" aria-label="Table of changes">{changed.table}</div></section>'
    )


def _terms(found: dict[str, list[str]]) -> str:
    lines = [
        f'<dt title="{escaped(meaning(name).text)}">'
        f"{escaped(meaning(name).title)}</dt><dd>{escaped(', '.join(values))}</dd>"
        for name, values in found.items()
    ]
    return f'<dl id="provenance">{"".join(lines)}</dl>'


def _packed(data: dict[str, Any]) -> dict[str, Any]:
    """The same with rows as lists, in the order of `columns`."""
    rows = [[row[name] for name in _SHOWN] for row in data["rows"]]
    dropped = ("rows", "networks", "summary", "p_values")
    kept = {name: value for name, value in data.items() if name not in dropped}
    return {"columns": _SHOWN, "rows": rows, **kept}


def page_data(results: str | os.PathLike[str]) -> dict[str, Any]:
    """Everything the page shows, as plain JSON values.

    Raises:
        ConfigError: no results file, or one without rows.
    """
    table = _rows(results)
    shown = _printable(table)
    rows = [
        {name: _plain(row[name]) for name in _SHOWN if name in row}
        | {"system": system, HOLM: _plain(p)}
        | {"outputs_not_finite": _plain(row["outputs_not_finite"]) or None}
        | _disturbance(row["latency_noise"])
        for row, system, p in zip(
            shown.to_dict("records"), system_names(shown), adjusted(table), strict=True
        )
    ]
    ranges = {str(printable(row["model"])): _ranges(row) for row in _one_a_model(table)}
    return {
        "summary": _summary(rows),
        "p_values": warning(table),
        "rows": rows,
        "command": printable(f"dtypelab reproduce {shlex.quote(str(results))} --row "),
        "axes": {name: _axis(name) for name in _AXES},
        "forms": palette.FORMS,
        "looks": {s: asdict(own) for s, own in looks(row["system"] for row in rows).items()},
        "metrics": {name: asdict(merit) for name, merit in merits(shown).items()},
        "layers": _layers(results),
        "layers_hint": "No layers were recorded: give the specification a table [layers] with "
        "images = 2 and run it again.",
        "ranges": {name: _plain_ranges(r) for name, r in ranges.items() if not isinstance(r, str)},
        "ranges_missing": {
            name: printable(why) for name, why in ranges.items() if isinstance(why, str)
        },
        "profiles": {name: found for name in table["dtype"].unique() if (found := profile(name))},
        "networks": [{name: _plain(v) for name, v in r.items()} for r in _one_a_model(shown)],
        "provenance": _provenance(shown),
    }


def _axis(column: str) -> dict[str, Any]:
    m = meaning(column)
    return {"title": m.title, "unit": m.unit, "lower_is_better": m.lower_is_better}


def _disturbance(latency_noise: str) -> dict[str, str]:
    reasons = disturbance.read(latency_noise)
    return {"disturbed": ", ".join(reasons), "disturbance": disturbance.explained(reasons)}


def _summary(rows: list[dict[str, Any]]) -> str:
    networks, systems = (len({row[name] for row in rows}) for name in ("model", "system"))
    failed = sum(row["status"] != "ok" for row in rows)
    lost = sum(bool(row["outputs_not_finite"]) for row in rows)
    summary = f"{_count(len(rows), 'cell')}: {_count(networks, 'network')} in "
    summary += _count(systems, "number system")
    summary += f"; {failed} failed" if failed else ""
    return summary + (f"; {lost} with NaN or infinity in outputs" if lost else "")


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _one_a_model(table: pd.DataFrame) -> list[dict[Any, Any]]:
    """A row of every network, one that did not fail if there is any."""
    ordered = table.sort_values("status", key=lambda s: s != "ok", kind="stable")
    first = ordered.drop_duplicates("model").set_index("model", drop=False)
    return first.loc[table["model"].unique()].to_dict("records")


def _provenance(table: pd.DataFrame) -> dict[str, list[str]]:
    found = {
        column: sorted({str(_plain(v)) for v in table[column]} - {"", "None"})
        for column in _PROVENANCE
    }
    revisions = zip(table["git_rev"], table["git_dirty"], strict=True)
    changed = {"true": " with uncommitted changes"}
    found["git_rev"] = sorted({rev + changed.get(dirty, "") for rev, dirty in revisions if rev})
    times = sorted(set(table["started_utc"]) - {""})
    found["started_utc"] = [" to ".join(dict.fromkeys((times[0], times[-1])))] if times else []
    return {column: values for column, values in found.items() if values}


def _layers(results: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """The cells of the layers file beside the results; none if there is no such file."""
    path = layers_path(results)
    if not os.path.exists(path):
        return []
    cells: dict[str, list[dict[str, Any]]] = {}
    for line in read_layers(path).to_dict("records"):
        named = ("value", "operator", "sqnr_db", "cosine")
        shown = {name: _seen(_plain(line[name])) for name in named}
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
    return [
        asdict(h) | {"name": printable(h.name)}
        for h in (ranges.weights, ranges.activations, *ranges.tensors)
    ]


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
