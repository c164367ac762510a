"""The tables of the page, whole without script: the script only sorts and hides their lines."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from compiler._html import escaped
from experiments.measure.statistics import HOLM
from experiments.results.column_meanings import COMPUTED, MEANINGS, SYSTEM, meaning
from experiments.results.row_names import Merit

from .figures import IN_HEADING, heading, shown
from .palette import FORMS, Look

Row = Mapping[str, Any]
Cell = Callable[[Row], str]


@dataclass(frozen=True)
class Column:
    """A column of a table: its key, heading, explanation, whether it holds numbers, and the unit
    of its exact values."""

    key: str
    title: str
    tip: str
    numeric: bool = True
    sorts: bool = True
    unit: str = ""


_CELLS = (
    *("model", SYSTEM, "metric_name", "metric", "metric_drop", "interval", "p_value", HOLM),
    *("detectable_drop", "outputs_not_finite", "sqnr_db", "cosine", "top1_agreement"),
    *("kl_float32", "kl_float32_p99", "top_token_agreement"),
    *("size_bytes", "activation_bytes", "traffic_bytes", "macs", "bit_operations", "energy_uj"),
    *("energy_memory_uj", "energy_mac_uj", "energy_other_uj", "mac_gates", "mac_area_um2"),
    *(
        "cost_source",
        "accumulator_bits",
        "latency_ms_median",
        "speedup_vs_fp32",
        "speed_interval",
        "disturbed",
    ),
    *("threads", "portable_bits", "notes", "status", "command"),
)
#: Columns that are there whatever the rows hold.
_ALWAYS = {"model", SYSTEM, "metric", "metric_drop", "status", "command"}
_TEXTS = {
    "model",
    SYSTEM,
    "metric_name",
    "disturbed",
    "portable_bits",
    "cost_source",
    "notes",
    "status",
    "command",
}
_NARROW = 14
"""Characters that fit into the narrowest column of names."""
#: Columns of the page alone: heading, explanation.
_OWN = {
    "interval": ("95 % interval", "Of what was lost: its ends as metric_drop_low and _high."),
    "speed_interval": ("95 % interval", "Of the speed-up: its ends as speedup_low and _high."),
    "disturbed": (meaning("latency_noise").title, meaning("latency_noise").text),
    "command": ("run again", "dtypelab reproduce runs the cell with this name again."),
}


def cell_columns(rows: Sequence[Row]) -> list[Column]:
    """The columns of the table of cells: those that tell something of its rows."""

    def tells(key: str) -> bool:
        if key == "metric_name":
            return len({row[key] for row in rows}) > 1
        source = {"interval": "metric_drop_low", "speed_interval": "speedup_low"}.get(key, key)
        return key in _ALWAYS or any(row[source] not in (None, "") for row in rows)

    return [_column(key) for key in _CELLS if tells(key)]


def _column(key: str) -> Column:
    title, tip = _OWN[key] if key in _OWN else (heading(key), meaning(key).text)
    unit = "" if key in _OWN else meaning(key).unit
    return Column(key, title, tip, key not in _TEXTS, key != "command", unit)


def cells(rows: Sequence[Row], merits: Mapping[str, Merit], looks: Mapping[str, Look]) -> str:
    """The table of cells, one line a row.

    What went wrong in a failed one takes the place of all figures; where there are some, it stands
    below the name.
    """
    columns = cell_columns(rows)
    lines = []
    for row in rows:
        merit = merits[row["metric_name"] or ""]
        parts = {c.key: _cell(c, text(row, c.key, merit, looks)) for c in columns}
        if row["status"] != "ok" and not has_figures(row):
            kept = ("model", SYSTEM, "command")
            why = _why(row)
            span = len(columns) - len(kept)
            parts = {key: parts[key] for key in kept}
            command = parts.pop("command")
            parts["why"] = f'<td colspan="{span}" class="text failed"><div>{why}</div></td>'
            parts["command"] = command
        lines.append("".join(parts.values()))
    return table("table", columns, lines)


def has_figures(row: Row) -> bool:
    """Whether anything came out: a cell may fail in its metric alone."""
    return any(row[key] not in (None, "") for key in ("metric", "sqnr_db", "size_bytes"))


def _why(row: Row) -> str:
    return escaped(f"{row['status']}: {row['error']}")


def text(row: Row, key: str, merit: Merit, looks: Mapping[str, Look]) -> str:
    """What stands in a cell, as HTML."""
    if key == SYSTEM:
        name = f"{swatch(looks[row[SYSTEM]])}{escaped(row[SYSTEM])}"
        if row["status"] == "ok" or not has_figures(row):
            return name
        return f'{name}<span class="failed">{_why(row)}</span>'
    if key == "command":
        return f"<code>{escaped(str(row['config_hash'])[:12])}</code>"
    if key == "metric_name":
        return escaped(merit.label)
    if key == "interval":
        return _interval(row, "metric_drop_low", "metric_drop_high", merit)
    if key == "speed_interval":
        # Of float32 itself there is none.
        alike = row["speedup_low"] == row["speedup_high"]
        return "" if alike else _interval(row, "speedup_low", "speedup_high", merit)
    if key in _OWN:
        return escaped(str(row[key] or ""))
    return escaped(shown(numbers(row[key]), key, merit))


def numbers(value: Any) -> Any:
    """The number of a plain JSON value, in which names stand for infinities."""
    return {"inf": math.inf, "-inf": -math.inf}.get(value, value) if value else value


def _interval(row: Row, low: str, high: str, merit: Merit) -> str:
    ends = [shown(numbers(row[end]), end, merit) for end in (low, high)]
    return f"{ends[0]} to {ends[1]}" if all(ends) else ""


def _cell(column: Column, content: str) -> str:
    # A name is as wide as it is, up to a limit: cells know no such limits.
    wrap = column.key == SYSTEM or (not column.numeric and len(content) > _NARROW)
    inner = f"<div>{content}</div>" if wrap else content
    return f"<td{_class(column)}>{inner}</td>"


def _class(column: Column) -> str:
    names = ["text"] * (not column.numeric) + ["stick"] * (column.key == SYSTEM)
    return f' class="{" ".join(names)}"' if names else ""


def table(name: str, columns: Sequence[Column], lines: Iterable[str]) -> str:
    """A table whose headings the script turns into buttons that sort.

    Args:
        name: its `id`.
        lines: the cells of each line, as HTML.
    """
    head = "".join(
        f'<th scope="col"{_class(c)} data-column="{c.key}"{" data-sorts" * c.sorts} '
        f'data-unit="{c.unit}" title="{escaped(c.tip)}">{escaped(c.title)}</th>'
        for c in columns
    )
    body = "".join(f"<tr>{line}</tr>\n" for line in lines)
    return f'<table id="{name}"><thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody></table>'


def swatch(look: Look) -> str:
    """A mark beside a name."""
    inner = f'<use href="#form{look.form}"/>'
    return (
        f'<svg viewBox="-7 -7 14 14" class="swatch {look.classes}" aria-hidden="true">{inner}</svg>'
    )


def forms() -> str:
    """The outlines that `swatch` refers to, once a page."""
    paths = "".join(f'<path id="form{k}" d="{form}"/>' for k, form in enumerate(FORMS))
    return f'<svg class="forms" aria-hidden="true"><defs>{paths}</defs></svg>'


def legend() -> str:
    """What every column of a results file means."""
    lines = []
    for name, m in {**MEANINGS, **COMPUTED}.items():
        unit = f", {m.unit}" if m.unit in IN_HEADING | {"B"} else ""
        about = f"<code>{name}</code> {escaped(m.title + unit)}"
        lines.append(f"<div><dt>{about}</dt><dd>{_marked(m.text)}</dd></div>")
    return f'<dl class="meanings">{"".join(lines)}</dl>'


def _marked(sentence: str) -> str:
    """A sentence in which backticks mark code."""
    parts = escaped(sentence).split("`")
    return "".join(f"<code>{p}</code>" if k % 2 else p for k, p in enumerate(parts))


_NETWORK = ("model", "model_sha256", "dataset", "n_eval", "metric_name", "metric_fp32", "macs")


def networks(rows: Sequence[Row], merits: Mapping[str, Merit]) -> str:
    """The table of networks, of a row of each."""
    texts = {"model", "model_sha256", "dataset", "metric_name"}
    columns = [Column(k, heading(k), meaning(k).text, k not in texts) for k in _NETWORK]
    lines = []
    for row in rows:
        merit = merits[row["metric_name"] or ""]
        own = {"model_sha256": str(row["model_sha256"] or "")[:12], "metric_name": merit.label}
        line = [own.get(k) or shown(numbers(row[k]), k, merit) for k in _NETWORK]
        lines.append("".join(_cell(c, escaped(t)) for c, t in zip(columns, line, strict=True)))
    return table("networks", columns, lines)
