"""Results as a terminal table."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from compiler.files.printable import printable
from experiments.measure import disturbance
from experiments.measure.scoring import is_share

from .row_names import judged_outputs, system_names

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import RenderableType

_PERCENT = ("{:.2f}", "{:+.2f}")


def results_table(rows: pd.DataFrame) -> RenderableType:
    """Rows of `experiments.read_results` for `rich` to print: one line a cell, under their models.

    Top-1 and other shares are in percent and their drop in percentage points; a metric other than
    top-1 stands with the name of its network. SQNR is in dB against the float32 network, KiB the
    size of the parameters, ms the median latency, vs fp32 how many times as fast as float32 it is,
    with a star where something disturbed the measurement. Of a machine that is emulated it is the
    millions of instructions of a call, and no time. What it was, which outputs are NaN or
    infinite, other notes, and the messages of failed cells follow; before them, of language models,
    figures of tokens. Fits 80 columns with the shipped
    names.
    """
    from rich.console import Group
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("", overflow="fold")
    judged = _all_top1(rows)
    merits = {r["model"]: r["metric_name"] for r in rows.to_dict("records") if r["metric_name"]}
    for name in (
        "n_eval",
        "top-1%" if judged else "metric",
        "drop",
        "SQNR dB",
        "KiB",
        "ms",
        "vs fp32",
    ):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("status", no_wrap=True)
    failures, disturbed, not_finite = [], set(), []
    noted: dict[str, list[str]] = {}
    model = judged_output = None
    named = zip(rows.to_dict("records"), system_names(rows), judged_outputs(rows), strict=True)
    for row, system, output in named:
        if (row["model"], output) != (model, judged_output):
            model, judged_output = row["model"], output
            merit = row["metric_name"] or merits.get(model, "")  # failed cells have none
            by = f" ({merit})" if merit and not judged else ""
            by += f", output {output!r}" if output else ""
            table.add_row(Text(printable(model + by), "bold"))
        reasons = disturbance.read(row["latency_noise"])
        disturbed |= {*reasons}
        figures = [
            _number(row["n_eval"], "{:.0f}"),
            *_merit(row, "" if judged else "%"),
            _number(row["sqnr_db"], "{:.1f}"),
            _number(row["size_bytes"], "{:.1f}", 1 / 1024),
            _time(row),
            # Emulated formats are hundreds of times slower: keep two digits of that.
            _number(
                row["speedup_vs_fp32"], "{:.2f}x" if row["speedup_vs_fp32"] >= 0.1 else "{:.2g}x"
            )
            + ("*" if reasons else ""),
        ]
        ok = row["status"] == "ok"
        status = Text(printable(row["status"]), "green" if ok else "red")
        table.add_row(Padding(Text(printable(system)), (0, 0, 0, 2)), *map(Text, figures), status)
        if lost := not_finite_note(row):
            not_finite.append(Text(printable(f"{model} {system}: {lost}"), "yellow"))
        if row["notes"]:
            noted.setdefault(row["notes"], []).append(f"{model} {system}")
        if not ok:
            failures.append(Text(printable(f"{model} {system}: {row['error']}"), "red"))
    notes = [Text(f"* {disturbance.explained(disturbed)}", "yellow")] if disturbed else []
    told = [Text(printable(f"{', '.join(rows)}: {note}"), "yellow") for note, rows in noted.items()]
    by_tokens = [_token_table(rows)] if any(map(_is_count, rows["tokens"])) else []
    return Group(table, *by_tokens, *notes, *not_finite, *told, *failures)


def _token_table(rows: pd.DataFrame) -> RenderableType:
    """Figures of tokens with standard errors: divergences from float32 in nats."""
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("token by token", overflow="fold")
    for name in ("tokens", "metric ±", "KL to fp32", "±", "99 % below", "same top"):
        table.add_column(name, justify="right", no_wrap=True)
    for row, system in zip(rows.to_dict("records"), system_names(rows), strict=True):
        if not _is_count(row["tokens"]):
            continue
        figures = [
            _number(row["tokens"], "{:,.0f}"),
            _number(row["metric_se"], "{:.2g}"),
            _number(row["kl_float32"], "{:.4g}"),
            _number(row["kl_float32_se"], "{:.2g}"),
            _number(row["kl_float32_p99"], "{:.3g}"),
            _number(row["top_token_agreement"], "{:.2f}%", 100),
        ]
        named = Text(printable(f"{row['model']} {system}"))
        table.add_row(Padding(named, (0, 0, 0, 2)), *map(Text, figures))
    return table


def _is_count(value: Any) -> bool:
    """Whether a row has a figure here."""
    return isinstance(value, int | float) and not math.isnan(value)


def _all_top1(rows: pd.DataFrame) -> bool:
    """Whether all figures are top-1, also of results of earlier versions, which name none; of cells
    that failed there is neither name nor figure."""
    names = set(rows["metric_name"])
    return names <= {"", "top1"} and ("top1" in names or bool(rows["metric"].notna().any()))


def not_finite_note(row: Mapping[Any, Any]) -> str:
    """What a reader must know of a row whose outputs hold NaNs or infinities; empty of others."""
    count = row["outputs_not_finite"]
    if not count or math.isnan(count):
        return ""
    return f"{count:.0f} of {row['n_eval']:.0f} inputs have a NaN or an infinity in their outputs"


def _time(row: Mapping[Any, Any]) -> str:
    """Milliseconds, or millions of instructions or cycles of a machine whose time says nothing."""
    if row["emulated"] == "yes":
        if _is_count(row["cycles"]):
            return _number(row["cycles"], "{:.3f}M cyc", 1e-6)
        return _number(row["instructions"], "{:.2f}M ins", 1e-6) or "emulated"
    return _number(row["latency_ms_median"], "{:.3f}")


def _merit(row: Mapping[Any, Any], unit: str) -> list[str]:
    """The figure and its drop: of shares in percent, of others as they are."""
    figures = row["metric"], row["metric_drop"]
    if is_share(row["metric_name"]):
        return [_number(v, form + unit, 100) for v, form in zip(figures, _PERCENT, strict=True)]
    return [_number(v, form) for v, form in zip(figures, ("{:.4g}", "{:+.3g}"), strict=True)]


def _number(value: float, form: str, factor: float = 1) -> str:
    """`value` in `form`, empty when it is missing."""
    return "" if math.isnan(value) else form.format(value * factor)
