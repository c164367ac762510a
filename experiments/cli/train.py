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
@click.option("-o", "--out", type=click.Path(path_type=Path), metavar="OUT.csv",
              help="A row for each run; curves and checkpoints lie beside it.")  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Only check SPEC.toml, and list the runs.")
@click.option("--resume", is_flag=True, help="Continue what exists, from the last checkpoints.")
@click.option("--retry-failed", is_flag=True, help="Continue, and run failed runs again.")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE",
              help="Replace what SPEC.toml says, as epochs=2; repeatable.")  # fmt: skip
@json_option
def train(
    spec: str,
    out: Path | None,
    dry_run: bool,
    resume: bool,
    retry_failed: bool,
    settings: Sequence[str],
    as_json: bool,
) -> int:
    """Train every combination of models, formats, learning rates and seeds in SPEC.toml.

    Forward pass, gradients and the update of the weights are one program, each part in a format of
    its own. A training that was stopped, even killed, continues with --resume from its last
    checkpoint, and ends in the same weights, bit for bit.

    Example: dtypelab train train.toml -o trained.csv
    """
    import experiments

    if dry_run:
        _list(spec, settings, as_json)
        return 0
    if out is None:
        raise click.UsageError("name the results: -o OUT.csv (or only list runs: --dry-run)")
    with progress_bar("", not as_json) as tell:
        rows = experiments.train(
            spec, out, resume=resume, retry_failed=retry_failed, settings=settings, progress=tell
        )
    failed = int((rows["status"] != "ok").sum())
    if as_json:
        print_json({"out": str(out), "rows": json.loads(rows.to_json(orient="records"))})
    else:
        show(_table(rows))
        _show_gains(rows, out)
        say(f"{len(rows)} runs in {out}" + (f", {failed} of them failed" if failed else ""))
    for error in dict.fromkeys(e for e in rows["error"] if isinstance(e, str) and e):
        say(f"dtypelab: {error}", err=True)
    return ALL_FAILED if failed == len(rows) else 0


def _list(spec: str, settings: Sequence[str], as_json: bool) -> None:
    """What would be trained."""
    from experiments.training.spec import load_training
    from experiments.training.training import label

    runs = load_training(spec, settings).runs
    if as_json:
        found = [{"run": label(r), "config_hash": r.config_hash, "steps": r.steps} for r in runs]
        print_json({"runs": found})
        return
    for run in runs:
        say(f"{label(run)}, rate {run.schedule.rate:g}, loss x {run.rules.loss_scale}")
    say(f"{len(runs)} runs of {sum(run.steps for run in runs)} steps together")


def _loss(value: float) -> str:
    return "" if value != value else f"{value:.4f}"


def _show_gains(rows: pd.DataFrame, out: Path) -> None:
    """What training with quantization gains over the best without, where both were done."""
    from experiments.layers.answers import answers_path, gains, read_answers

    if not answers_path(out).is_file():
        return
    for g in gains(rows, read_answers(answers_path(out))):
        percent = g.measure == "top1"
        by, what = (100, "top-1 %") if percent else (1000, "millinats from float32")
        say(
            f"{g.model}: {g.system}: {what} {by * g.mean:.2f} over {g.seeds} seeds, the best "
            f"{g.best}: {by * g.reached:.2f}; better by {by * g.gain:+.2f} "
            f"[{by * g.low:+.2f}, {by * g.high:+.2f}]"
        )


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
            *start, f"{100 * row['metric']:.2f}", _loss(row["loss"]),
            f"{row['skipped_steps']:.0f}", f"{row['seconds']:.1f}",
        )  # fmt: skip
    return table
