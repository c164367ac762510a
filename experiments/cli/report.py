"""dtypelab report."""

from __future__ import annotations

from pathlib import Path

import click

from .common import json_option, print_json, say


@click.command(short_help="Write results as one self-contained HTML page.")
@click.argument("results", type=click.Path(path_type=Path), metavar="NAME.csv")
@click.option(
    "-o", "--out", required=True, type=click.Path(path_type=Path), metavar="NAME.html", help="Page."
)
@click.option(
    "--against", type=click.Path(path_type=Path), metavar="OLD.csv", help="Compare with this run."
)
@click.option("--title", help="Heading; by default the name of the results file.")
@json_option
def report(
    results: Path, out: Path, title: str | None, against: Path | None, as_json: bool
) -> None:
    """Write a results file as an HTML page: what accuracy costs, every cell, layers and ranges.

    The page needs no other file and no network. With --against it also says of every cell what
    changed since an earlier run: the figure with its significance, and the latency.

    Example: dtypelab report quickstart.csv -o quickstart.html
    """
    from experiments.page.writing import report as write

    path = write(results, out, title, against)
    if as_json:
        print_json({"out": str(path), "bytes": path.stat().st_size})
        return
    say(f"{path}: {path.stat().st_size / 1024:.0f} KiB; open it in a browser")
