"""Tables of accuracy: `python -m experiments.accuracy TABLE [OPTIONS]`.

Rows with targets print PASS or FAIL, and a FAIL makes the exit status 1.
"""

from __future__ import annotations

import sys
from pathlib import Path

import click

from compiler.errors import DtypelabError
from experiments.accuracy import networks as table
from experiments.accuracy.tasks import TASKS


@click.group()
def main() -> None:
    """Measure what quantization costs in accuracy, against float32 and onnxruntime."""


@main.command()
@click.option(
    "--model",
    "selected",
    multiple=True,
    type=click.Choice(list(TASKS)),
    help="Measure this network only; may be repeated.",
)
@click.option(
    "--data",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Folder with the models and data that are not shipped.",
)
@click.option("--model-file", "given", multiple=True, metavar="NAME=PATH", help="A network's file.")
@click.option("--csv", type=click.Path(path_type=Path), metavar="FILE", help="Save the table.")
@click.option(
    "--rounds",
    type=click.IntRange(min=1),
    default=3,
    show_default=True,
    metavar="N",
    help="How often each calibration is timed.",
)
@click.option(
    "--with-onnxruntime/--recorded",
    "with_peer",
    default=None,
    help="Measure onnxruntime, or show its recorded figures (default: measure if installed).",
)
@click.option("--quick", is_flag=True, help="Few inputs and settings: rough figures.")
def networks(
    selected: tuple[str, ...],
    data: Path | None,
    given: tuple[str, ...],
    csv: Path | None,
    rounds: int,
    with_peer: bool | None,
    quick: bool,
) -> None:
    """8 bits after training: our default and best settings, onnxruntime's best, targets.

    Example: python -m experiments.accuracy networks --model mnist_resnet8 --csv table.csv
    """
    from experiments.benchmarks import peer
    from experiments.benchmarks.__main__ import named_file

    if with_peer is None:
        with_peer = peer.installed()
    try:
        files = dict(map(named_file, given))
        passed = table.run(selected, data, files, csv, rounds, with_peer, quick)
    except DtypelabError as error:
        raise click.UsageError(str(error)) from error
    sys.exit(0 if passed else 1)


if __name__ == "__main__":
    main()
