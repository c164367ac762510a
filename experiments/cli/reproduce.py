"""dtypelab reproduce."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path

import click

from .common import json_option, print_json, say, say_text

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
@click.option("--allow-code", is_flag=True, help="Run the Python files that the row names.")
@json_option
def reproduce(results: Path, row_id: str, allow_code: bool, as_json: bool) -> int:
    """Run one row of a results file again and say whether it matches.

    Accuracy and costs must be exactly as recorded (exit code 1 if not). On another processor only
    rows whose bits are the same everywhere must (column portable_bits), and figures that float32
    went into may differ within a tolerance; what was compared how is said. Latency is compared
    with the noise of both runs, and only reported.

    A row may name Python files (adapters, models, data, metrics), which would be run. They are
    listed, and you are asked; where nobody can be asked, --allow-code says yes.

    Example: dtypelab reproduce quickstart.csv --row 3
    """
    from experiments.running.reproduction import code_of
    from experiments.running.reproduction import reproduce as run_again

    if not allow_code and sys.stdin is not None and sys.stdin.isatty():
        files = code_of(results, row_id)
        if files:
            say(f"row {row_id} of {results} runs these Python files:", *files, err=True)
            click.confirm("Run them?", abort=True, err=True)
        allow_code = True
    found = run_again(results, row_id, allow_code)
    if as_json:
        print_json(asdict(found) | {"matches": found.matches, "compared": found.compared()})
        return 0 if found.matches else DIFFERENT
    say_text(found.summary())
    return 0 if found.matches else DIFFERENT
