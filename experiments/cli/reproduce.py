"""dtypelab reproduce."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from .common import json_option, print_json

if TYPE_CHECKING:
    from experiments.store import Value

DIFFERENT = 1
"""Exit code when the row came out otherwise."""


@click.command(short_help="Run a recorded row again, and compare.")
@click.argument("results", type=click.Path(path_type=Path), metavar="NAME.csv")
@click.option(
    "--row",
    "row_id",
    required=True,
    metavar="ID",
    help="The start of its config_hash, or its number, counted from 1.",
)
@json_option
def reproduce(results: Path, row_id: str, as_json: bool) -> int:
    """Run one row of a results file again and say whether it matches.

    Accuracy and sizes must be exactly as recorded (exit code 1 if not); latency is compared with
    the noise of both runs, and only reported.

    Example: dtypelab reproduce quickstart.csv --row 3
    """
    from experiments.noise import explained, read
    from experiments.reproduction import reproduce as run_again

    found = run_again(results, row_id)
    if as_json:
        print_json(asdict(found) | {"matches": found.matches})
        return 0 if found.matches else DIFFERENT
    row = found.row
    click.echo(f"{row['model']} in {row['scheme']}, {row['n_eval']} inputs of {row['dataset']}")
    for difference in found.differences:
        click.echo(f"  {difference.column}: recorded {difference.recorded}, now {difference.now}")
    if found.latency_ratio is not None:
        noise = "within" if found.latency_within_noise else "outside"
        click.echo(
            f"  latency: recorded {row['latency_ms_median']:.4f} ms, "
            f"now {found.again['latency_ms_median']:.4f} ms, {_speedups(row, found.again)}"
            f"{noise} the noise of the two runs"
        )
        for when, measured in (("recorded", row), ("now", found.again)):
            if reasons := read(measured["latency_noise"]):
                click.echo(f"  latency {when} was disturbed: {explained(reasons)}")
    for change in found.environment:
        click.echo(f"  {change.column}: recorded {change.recorded}, now {change.now}")
    click.echo("matches" if found.matches else "does not match")
    return 0 if found.matches else DIFFERENT


def _speedups(*rows: dict[str, Value]) -> str:
    """How many times as fast as float32 two rows are; empty where one has no interval."""
    from experiments.reproduction import speedup_interval

    said = [
        f"{r['speedup_vs_fp32']:.3g} ({interval[0]:.3g} to {interval[1]:.3g})"
        for r in rows
        if (interval := speedup_interval(r))
    ]
    return f"speed-up {said[0]}, now {said[1]}, " if len(said) == len(rows) else ""
