"""Two runs side by side: what changed, and whether that is more than chance."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from compiler._html import escaped
from experiments.results.column_meanings import SYSTEM, meaning
from experiments.results.comparison import compare
from experiments.results.row_names import Merit, merits

from .figures import digits, shown
from .palette import Look
from .tables import Column, swatch, table

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = (
    Column("model", meaning("model").title, meaning("model").text, numeric=False),
    Column(SYSTEM, meaning(SYSTEM).title, meaning(SYSTEM).text, numeric=False),
    Column("metric_before", "before", "The figure of merit in the file compared with."),
    Column("metric_after", "now", "The figure of merit in the file that this page shows."),
    Column("change", "change", "The second less the first."),
    Column(
        "p_value",
        "p",
        "How likely so large a change is by chance, as if the two runs had seen different inputs; "
        "not corrected for there being several.",
    ),
    Column(
        "accuracy",
        "accuracy",
        "better or worse: significant at 5 % for all cells together (Holm's method); same: the "
        "very same figure; noise: neither; or that only one file has the cell, or it failed.",
        numeric=False,
    ),
    Column("sqnr_change_db", "SQNR change, dB", "How much the signal to noise ratio rose."),
    Column("speed", "latency ratio", "Median latency before over now: above 1 it got faster."),
    Column(
        "slower_or_faster",
        "latency",
        "noise: the ranges from the fastest call to the 90 % latency overlap, or others used the "
        "machine meanwhile.",
        numeric=False,
    ),
)


@dataclass(frozen=True)
class Compared:
    """A summary, the table as HTML, and what it sorts by: values a column, as the lines come."""

    summary: str
    table: str
    values: dict[str, list[Any]]


def compared(
    before: pd.DataFrame, now: pd.DataFrame, looks: Mapping[str, Look], names: tuple[str, str]
) -> Compared:
    """What changed from one results table to another.

    Args:
        looks: how number systems look; of one that is missing here no mark is shown.
        names: what the two tables are called.

    Raises:
        ConfigError: they have no cell in common, or one has several rows of one cell.
    """
    import pandas as pd

    found = compare(before, now).rename(columns={"scheme": SYSTEM})
    both = pd.concat([before, now], ignore_index=True)
    known, metric_of = merits(both), dict(zip(both["model"], both["metric_name"], strict=True))
    lines = found.to_dict("records")
    return Compared(
        summary=_summary(lines, names),
        table=table(
            "compared",
            COLUMNS,
            [_line(row, known[metric_of[row["model"]]], looks) for row in lines],
        ),
        values={c.key: [row[c.key] for row in lines] for c in COLUMNS},
    )


def _line(row: Mapping[Any, Any], merit: Merit, looks: Mapping[str, Look]) -> str:
    name = row[SYSTEM]
    mark = swatch(looks[name]) if name in looks else ""
    change = shown(row["change"], "metric_drop", merit)
    texts = {
        **{key: shown(row[key], "metric", merit) for key in ("metric_before", "metric_after")},
        "change": f"+{change}" if row["change"] > 0 else change,
        "p_value": _number(row["p_value"]),
        "sqnr_change_db": _number(row["sqnr_change_db"]),
        "speed": _number(row["speed"]),
    }
    cells = []
    for column in COLUMNS:
        content = escaped(texts.get(column.key, str(row.get(column.key, ""))))
        verdict = f" {row[column.key]}" if row[column.key] in _VERDICTS else ""
        names = ("" if column.numeric else "text") + ("" if column.key != SYSTEM else " stick")
        if column.key == SYSTEM:
            content = f"<div>{mark}{content}</div>"
        cells.append(f'<td class="{(names + verdict).strip()}">{content}</td>')
    return "".join(cells)


#: Also the classes of their cells.
_VERDICTS = ("better", "worse", "faster", "slower")


def _number(value: float) -> str:
    return "" if math.isnan(value) else digits(value)


def _summary(lines: list[dict[Any, Any]], names: tuple[str, str]) -> str:
    counts = Counter(row["accuracy"] for row in lines)
    speeds = Counter(row["slower_or_faster"] for row in lines)
    speeds.pop("", None)
    said = [f"{count} {verdict}" for verdict, count in sorted(counts.items())]
    summary = f"{names[1]} compared with {names[0]}, {len(lines)} cells: {', '.join(said)}"
    if speeds:
        timed = [f"{count} {verdict}" for verdict, count in sorted(speeds.items())]
        summary += f"; latency: {', '.join(timed)}"
    return summary
