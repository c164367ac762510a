"""Results as a terminal table."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd
    from rich.table import Table


def results_table(rows: pd.DataFrame) -> Table:
    """A `rich` table of results rows (see `read_results`): one line per cell, models set apart.

    Top-1 and its drop are in percent and percentage points, SQNR in dB against the float32 network,
    size in KiB of parameters, latency the median in milliseconds.
    """
    from rich.table import Table
    from rich.text import Text

    shown_targets = rows["target"].nunique() > 1
    shown_threads = rows["threads"].nunique() > 1
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("model", no_wrap=True)
    table.add_column("scheme", overflow="fold")
    for name, shown in (("target", shown_targets), ("threads", shown_threads)):
        if shown:
            table.add_column(name)
    for name in ("n_eval", "top-1 %", "drop", "SQNR dB", "size KiB", "median ms", "speed-up"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("status", overflow="fold")
    previous = None
    for row in rows.to_dict("records"):
        if previous not in (None, row["model"]):
            table.add_section()
        ok = row["status"] == "ok"
        cells = ["" if row["model"] == previous else row["model"], _scheme(row)]
        cells += [row["target"]] * shown_targets + [str(row["threads"])] * shown_threads
        cells += [
            _number(row["n_eval"], "{:.0f}"),
            _number(row["metric"], "{:.2f}", 100),
            _number(row["metric_drop"], "{:+.2f}", 100),
            _number(row["sqnr_db"], "{:.1f}"),
            _number(row["size_bytes"], "{:.1f}", 1 / 1024),
            _number(row["latency_ms_median"], "{:.3f}"),
            _number(row["speedup_vs_fp32"], "{:.2f}x"),
        ]
        status = Text("ok", "green") if ok else Text(f"error: {row['error']}", "red")
        table.add_row(*map(Text, cells), status)
        previous = row["model"]
    return table


def _scheme(row: dict[Any, Any]) -> str:
    """The scheme with what tells two rows of it apart."""
    extras = [row[name] for name in ("calibrator", "lowering", "accumulate")]
    return " ".join([str(row["scheme"]), *(str(extra) for extra in extras if extra)])


def _number(value: float | None, form: str, factor: float = 1) -> str:
    """`value` in `form`, empty when it is missing."""
    if value is None or math.isnan(value):
        return ""
    return form.format(value * factor)
