"""Results as a pandas table that a notebook shows as a reader wants them."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import Any

import pandas as pd

from compiler._html import escaped
from experiments.measure.statistics import adjusted, warning
from experiments.results.row_names import Merit, merits, system_names
from experiments.results.schema import COLUMNS
from experiments.results.store import read_rows
from experiments.results.terminal import not_finite_note

_HEAD = (
    "",
    "figure",
    "lost",
    "95 % interval",
    "p",
    "p (Holm)",
    "SQNR dB",
    "bytes",
    "ms",
    "vs float32",
)
_CELL = 'style="text-align:{};padding:1px 9px;white-space:nowrap"'


class Results(pd.DataFrame):
    """Rows of a results file: a `pandas.DataFrame` in every respect, with its columns.

    A notebook shows whole rows as one table a network and a picture of what accuracy costs; a
    selection of columns as pandas does.
    """

    @property
    def _constructor(self) -> type[Results]:
        return Results

    def _repr_html_(self) -> str:
        if self.empty or not set(self.columns) >= set(COLUMNS):
            return pd.DataFrame(self).to_html(max_rows=20, max_cols=20, show_dimensions=True)
        from .picture import pareto_svg

        return f"{_table(self)}{pareto_svg(self)}"


def read_results(path: str | os.PathLike[str]) -> Results:
    """The rows of a results file; see `experiments.results.store.read_rows`.

    Raises:
        ConfigError: as that does.
    """
    return Results(read_rows(path))


def _table(rows: pd.DataFrame) -> str:
    known = merits(rows)
    lines = [_line([(text, "th") for text in _HEAD])]
    model = None
    names, corrected = system_names(rows), adjusted(rows)
    notes = [note] if (note := warning(rows)) else []
    for row, system, p in zip(rows.to_dict("records"), names, corrected, strict=True):
        merit = known[row["metric_name"]]
        if row["model"] != model:
            model = row["model"]
            title = escaped(f"{model}, {row['n_eval']} inputs, judged by {merit.label}")
            lines.append(f'<tr><th colspan="{len(_HEAD)}" {_CELL.format("left")}>{title}</th></tr>')
        if lost := not_finite_note(row):
            notes.append(f"{model}, {system}: {lost}")
        cells = _figures(row, merit, p)
        failed = row["status"] != "ok"
        if any(cells) or not failed:
            lines.append(_line([(text, "td") for text in (system, *cells)]))
        if failed:
            name = "" if any(cells) else system
            lines.append(_failure(name, f"{row['status']}: {row['error']}"))
    table = f"<table><tbody>{''.join(lines)}</tbody></table>"
    said = "".join(f"<p>{escaped(note)}</p>" for note in notes)
    return f'<div style="max-height:36em;overflow:auto">{table}</div>{said}'


def _figures(row: Mapping[Any, Any], merit: Merit, corrected: float) -> list[str]:
    low, high = (_merit(row[f"metric_drop_{end}"], merit) for end in ("low", "high"))
    return [
        _merit(row["metric"], merit),
        _merit(row["metric_drop"], merit),
        f"{low} to {high}" if low else "",
        _number(row["p_value"], ".2g"),
        _number(corrected, ".2g"),
        _number(row["sqnr_db"], ".1f"),
        _number(row["size_bytes"], ",.0f"),
        _number(row["latency_ms_median"], ".3f"),
        _number(row["speedup_vs_fp32"], ".3g"),
    ]


def _merit(value: float, merit: Merit) -> str:
    if math.isnan(value):
        return ""
    # Adding zero makes a negative one positive.
    return f"{round(100 * value, 2) + 0.0:.2f} %" if merit.share else f"{value:.4g}"


def _number(value: float, form: str) -> str:
    if math.isnan(value):
        return ""
    return "∞" if value == math.inf else format(value, form)


def _failure(system: str, why: str) -> str:
    """A line the reason of which takes the place of all figures; below them, where some are."""
    span = f'colspan="{len(_HEAD) - 1}" style="text-align:left;padding:1px 9px"'
    reason = f'<td {span}><div style="max-width:90ch">{escaped(why)}</div></td>'
    return _line([(system, "td")]).replace("</tr>", f"{reason}</tr>")


def _line(cells: list[tuple[str, str]]) -> str:
    return "".join(
        [
            "<tr>",
            *(
                f"<{tag} {_CELL.format('right' if place else 'left')}>{escaped(text)}</{tag}>"
                for place, (text, tag) in enumerate(cells)
            ),
            "</tr>",
        ]
    )
