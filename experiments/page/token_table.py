"""Language models on the page: perplexity, divergence from float32, and which differences between
cells are more than the choice of sequences."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from compiler._html import escaped
from experiments.layers.paired import Cell, by_network, cells_of, difference
from experiments.measure import tokens
from experiments.measure.statistics import ratio_of_sums
from experiments.results.column_meanings import SYSTEM, meaning

from .figures import digits
from .palette import Look
from .tables import Column, swatch, table

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = (
    Column("model", meaning("model").title, meaning("model").text, numeric=False),
    Column(SYSTEM, meaning(SYSTEM).title, meaning(SYSTEM).text, numeric=False),
    Column("perplexity", "perplexity", "exp of the mean loss of all tokens that count."),
    Column("more_loss", "more loss", "Loss of a token less that of float32, in nats."),
    Column("more_loss_interval", "95 % interval", "Of that: paired, sequence by sequence."),
    Column("kl_float32", meaning("kl_float32").title, meaning("kl_float32").text),
    Column("kl_interval", "95 % interval", "Of the divergence."),
    Column("kl_float32_p99", meaning("kl_float32_p99").title, meaning("kl_float32_p99").text),
    Column(
        "top_token_agreement",
        meaning("top_token_agreement").title,
        meaning("top_token_agreement").text,
    ),
    Column("above", "more KL than the line above", "In nats; lines are in the order of KL."),
    Column(
        "above_interval",
        "95 % interval",
        "Of that: paired, sequence by sequence; one that holds 0 does not tell the two apart.",
    ),
)


@dataclass(frozen=True)
class Judged:
    """The section of the page, and what its table sorts by: values a column, as the lines come."""

    section: str
    values: dict[str, list[Any]]


def by_tokens(
    rows: pd.DataFrame, sequences: str | os.PathLike[str], looks: Mapping[str, Look]
) -> Judged | None:
    """The section about tokens; None where no row was judged by tokens, or no file says how much
    every sequence added.

    Raises:
        ConfigError: that file is none, or lacks a row.
    """
    if not os.path.exists(sequences) or rows["tokens"].isna().all():
        return None
    recorded = {row["config_hash"]: row for row in rows.to_dict("records")}
    lines = []
    for members in by_network(cells_of(rows, sequences)):
        ranked = sorted(members, key=lambda c: (math.isnan(c.kl), c.kl))
        for k, cell in enumerate(ranked):
            better = ranked[k - 1] if k else None
            lines.append(_figures(cell, better, recorded[cell.config_hash]))
    shown = table("tokens", COLUMNS, [_line(line, looks) for line in lines])
    section = (
        '<section aria-labelledby="tokens-title"><h2 id="tokens-title">Token by token</h2>'
        f'<p class="hint">From {escaped(Path(sequences).name)}; losses and divergences in nats a '
        "token. Intervals take sequences for what is drawn, one cell or pair at a time.</p>"
        '<div class="scroll" tabindex="0" role="region" aria-label="Table of language models">'
        f"{shown}</div></section>"
    )
    return Judged(section, {c.key: [line[c.key] for line in lines] for c in COLUMNS})


def _figures(cell: Cell, better: Cell | None, row: Mapping[Any, Any]) -> dict[str, Any]:
    """What there is to say of a cell beside the one with the next smaller divergence."""
    sums = cell.sums
    with np.errstate(invalid="ignore"):
        loss = ratio_of_sums(sums["loss"] - sums["loss_fp32"], sums["tokens"])
    means = np.array([sums["loss"].mean(), sums["tokens"].mean()])
    kl = ratio_of_sums(sums["kl_float32"], sums["tokens"])
    above = (math.nan,) * 3
    if better is not None:
        found = difference(cell, better)
        above = (found.kl_difference, found.kl_low, found.kl_high)
    return {
        "model": cell.model,
        SYSTEM: cell.system,
        "perplexity": float(tokens.perplexity(means)),
        "more_loss": loss[0],
        "more_loss_interval": loss[1],
        "kl_float32": kl[0],
        "kl_interval": kl[1],
        "kl_float32_p99": row["kl_float32_p99"],
        "top_token_agreement": row["top_token_agreement"],
        "above": above[0],
        "above_interval": above[1],
        "ends": {
            "more_loss_interval": loss[1:],
            "kl_interval": kl[1:],
            "above_interval": above[1:],
        },
    }


def _line(line: Mapping[str, Any], looks: Mapping[str, Look]) -> str:
    cells = []
    for column in COLUMNS:
        key = column.key
        if key == SYSTEM:
            mark = swatch(looks[line[key]]) if line[key] in looks else ""
            content = f"<div>{mark}{escaped(line[key])}</div>"
        elif key in line["ends"]:
            low, high = map(_number, line["ends"][key])
            content = escaped(f"{low} to {high}" if low and high else "")
        elif key == "top_token_agreement":
            content = escaped("" if math.isnan(line[key]) else f"{100 * line[key]:.2f} %")
        else:
            content = escaped(_number(line[key]) if column.numeric else line[key])
        names = ("" if column.numeric else "text") + ("" if key != SYSTEM else " stick")
        cells.append(f'<td class="{names.strip()}">{content}</td>')
    return "".join(cells)


def _number(value: float) -> str:
    return "" if math.isnan(value) else digits(value)
