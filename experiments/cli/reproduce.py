"""dtypelab reproduce."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from .common import json_option, print_json, say_text

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

    Accuracy and costs must be exactly as recorded (exit code 1 if not). On another processor only
    rows whose bits are the same everywhere must (column portable_bits), and figures that float32
    went into may differ within a tolerance; what was compared how is said. Latency is compared
    with the noise of both runs, and only reported.

    Example: dtypelab reproduce quickstart.csv --row 3
    """
    from experiments.reproduction import reproduce as run_again

    found = run_again(results, row_id)
    if as_json:
        print_json(asdict(found) | {"matches": found.matches, "compared": found.compared()})
        return 0 if found.matches else DIFFERENT
    say_text(found.summary())
    return 0 if found.matches else DIFFERENT
