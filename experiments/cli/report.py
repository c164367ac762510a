"""dtypelab report."""

from __future__ import annotations

from pathlib import Path

import click

from compiler.errors import ConfigError

from .common import json_option, print_json, say


@click.command(short_help="Write results as one self-contained HTML page, or a picture.")
@click.argument("results", type=click.Path(path_type=Path), metavar="NAME.csv")
@click.option(
    "-o",
    "--out",
    required=True,
    type=click.Path(path_type=Path),
    metavar="NAME.html",
    help="Page; or NAME.svg: the picture of what accuracy costs.",
)
@click.option(
    "--against", type=click.Path(path_type=Path), metavar="OLD.csv", help="Compare with this run."
)
@click.option("--title", help="Heading; by default the name of the results file.")
@click.option(
    "--model", "models", multiple=True, metavar="NAME", help="A network of the picture; repeatable."
)
@click.option("--cost", metavar="COLUMN", help="What the picture has across; default latency.")
@json_option
def report(
    results: Path, out: Path, title: str | None, against: Path | None, models: tuple[str, ...],
    cost: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Write a results file as an HTML page: what accuracy costs, every cell, layers and ranges.

    The page needs no other file and no network. With --against it also says of every cell what
    changed since an earlier run: the figure with its significance, and the latency. Runs of
    `dtypelab train` are a page of what every format comes to, with the curves of the losses.

    Example: dtypelab report quickstart.csv -o quickstart.html
    """
    if out.suffix == ".svg":
        if title is not None or against is not None:
            raise ConfigError("--title and --against are of pages: give a name that ends in .html")
        from experiments.page.sheet import sheet

        path = sheet(results, out, models, cost)
    else:
        if models or cost is not None:
            raise ConfigError("--model and --cost are of pictures: give a name that ends in .svg")
        path = _page(results, out, title, against)
    if as_json:
        print_json({"out": str(path), "bytes": path.stat().st_size})
        return
    say(f"{path}: {path.stat().st_size / 1024:.0f} KiB; open it in a browser")


def _page(results: Path, out: Path, title: str | None, against: Path | None) -> Path:
    """The page of a results file, or of runs of training."""
    from experiments.layers.trainings import is_runs

    if not is_runs(results):
        from experiments.page.writing import report as write

        return write(results, out, title, against)
    if against is not None:
        raise ConfigError("--against compares results of sweeps, not runs of training")
    from experiments.page.training_page import training_page

    return training_page(results, out, title)
