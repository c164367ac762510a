"""dtypelab train."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from .common import cell, json_option, print_json, progress_bar, say, show

if TYPE_CHECKING:
    import pandas as pd
    from rich.table import Table

ALL_FAILED = 1
"""Exit code when no run came to an end."""


@click.command(short_help="Train networks in number formats.")
@click.argument("spec", metavar="SPEC.toml")
@click.option("-o", "--out", required=True, type=click.Path(path_type=Path), metavar="OUT.csv",
              help="A row for each run; curves and checkpoints lie beside it.")  # fmt: skip
@click.option("--resume", is_flag=True, help="Continue what exists, from the last checkpoints.")
@click.option("--retry-failed", is_flag=True, help="Continue, and run failed runs again.")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE",
              help="Replace what SPEC.toml says, as epochs=2; repeatable.")  # fmt: skip
@json_option
def train(
    spec: str, out: Path, resume: bool, retry_failed: bool, settings: Sequence[str], as_json: bool
) -> int:
    """Train every combination of models, formats, learning rates and seeds in SPEC.toml.

    Forward pass, gradients and the update of the weights are one program, each part in a format of
    its own. A training that was stopped, even killed, continues with --resume from its last
    checkpoint, and ends in the same weights, bit for bit.

    Example: dtypelab train train.toml -o trained.csv
    """
    import experiments

    with progress_bar("", not as_json) as tell:
        rows = experiments.train(
            spec, out, resume=resume, retry_failed=retry_failed, settings=settings, progress=tell
        )
    failed = int((rows["status"] != "ok").sum())
    if as_json:
        print_json({"out": str(out), "rows": json.loads(rows.to_json(orient="records"))})
    else:
        show(_table(rows))
        say(f"{len(rows)} runs in {out}" + (f", {failed} of them failed" if failed else ""))
    for error in dict.fromkeys(rows["error"][rows["status"] != "ok"]):
        say(f"dtypelab: {error}", err=True)
    return ALL_FAILED if failed == len(rows) else 0


def _table(rows: pd.DataFrame) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("model")
    table.add_column("formats", overflow="fold")
    for column in ("rate", "seed", "top-1 %", "loss", "skipped", "seconds"):
        table.add_column(column, justify="right", no_wrap=True)
    for row in rows.to_dict("records"):
        start = (cell(row["model"]), cell(row["system"]), f"{row['rate']:g}", f"{row['seed']}")
        if row["status"] != "ok":
            table.add_row(*start, "error", "", "", "")
            continue
        table.add_row(
            *start, f"{100 * row['metric']:.2f}", f"{row['loss']:.4f}",
            f"{row['skipped_steps']:.0f}", f"{row['seconds']:.1f}",
        )  # fmt: skip
    return table
