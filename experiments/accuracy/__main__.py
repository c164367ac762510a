"""Tables of accuracy: `python -m experiments.accuracy TABLE [OPTIONS]`.

Rows with targets print PASS or FAIL, and a FAIL makes the exit status 1.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import click

from compiler.errors import DtypelabError
from experiments.accuracy import bits4 as bits4_table
from experiments.accuracy import formats as formats_table
from experiments.accuracy import methods, tasks
from experiments.accuracy import networks as table
from experiments.accuracy import target as target_run

DATA = click.option(
    "--data",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Folder with the models and data that are not shipped.",
)
MODEL_FILE = click.option(
    "--model-file", "given", multiple=True, metavar="NAME=PATH", help="A network's file."
)
CSV = click.option("--csv", type=click.Path(path_type=Path), metavar="FILE", help="Save the table.")


@click.group()
def main() -> None:
    """Measure what quantization costs in accuracy, against float32 and onnxruntime."""


@main.command()
@click.option(
    "--model",
    "selected",
    multiple=True,
    type=click.Choice(list(table.TARGETS)),
    help="Measure this network only; may be repeated.",
)
@DATA
@MODEL_FILE
@CSV
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


def _comparison(name: str, table: ModuleType, text: str) -> None:
    """Add a command that compares the methods of `table` on its networks."""

    def run(
        selected: tuple[str, ...],
        data: Path | None,
        given: tuple[str, ...],
        csv: Path | None,
        quick: bool,
    ) -> None:
        from experiments.benchmarks.__main__ import named_file

        try:
            files = dict(map(named_file, given))
            methods.run(selected or table.NETWORKS, data, files, csv, table.METHODS, quick)
        except DtypelabError as error:
            raise click.UsageError(str(error)) from error

    model = click.option(
        "--model",
        "selected",
        multiple=True,
        type=click.Choice(table.NETWORKS),
        help="Measure this network only; may be repeated.",
    )
    rough = click.option("--quick", is_flag=True, help="Few inputs: rough figures.")
    example = f"python -m experiments.accuracy {name} --model mnist_resnet8 --csv table.csv"
    documented = main.command(name, help=f"{text}\n\nExample: {example}")
    documented(model(DATA(MODEL_FILE(CSV(rough(run))))))


_comparison(
    "bits4",
    bits4_table,
    "4-bit weights and 8-bit activations: nearest, GPTQ, AdaRound, mixed precision.",
)
_comparison(
    "formats",
    formats_table,
    "Scaled formats and block formats of 8 bits and less beside integers.",
)


@main.command()
@click.option(
    "--model",
    "name",
    type=click.Choice(list(tasks.TASKS)),
    default="pp_ocrv4_rec",
    show_default=True,
    help="The network.",
)
@DATA
@MODEL_FILE
@click.option(
    "--config",
    "config_file",
    type=click.Path(path_type=Path),
    metavar="C.toml",
    help="Fields of a quantize.QConfig, target and float_macs among them.",
)
@click.option(
    "--target", "least", type=float, metavar="A", help="Least agreement on calibration data."
)
@click.option(
    "--float-macs", type=float, metavar="F", help="Share of multiply-accumulates allowed in float."
)
@click.option("--answers", is_flag=True, help="Agreement of answers (words), not of scores.")
@click.option("--quick", is_flag=True, help="Few inputs: rough figures.")
def target(
    name: str,
    data: Path | None,
    given: tuple[str, ...],
    config_file: Path | None,
    least: float | None,
    float_macs: float | None,
    answers: bool,
    quick: bool,
) -> None:
    """Leave as little in float as it takes to agree with float32 on calibration data.

    Example: python -m experiments.accuracy target --data DIR --target 0.97 --float-macs 0.05
    """
    from experiments.benchmarks.__main__ import named_file
    from quantize.config.file import read_toml

    try:
        task = tasks.load(name, data, dict(map(named_file, given)))
        if isinstance(task, str):
            raise click.UsageError(f"{name}: {task}")
        options = {"target": least, "float_macs": float_macs}
        fields = {} if config_file is None else read_toml(config_file)
        fields |= {key: value for key, value in options.items() if value is not None}
        held = target_run.run(task.shortened(40, 3) if quick else task, fields, answers)
    except DtypelabError as error:
        raise click.UsageError(str(error)) from error
    sys.exit(0 if held else 1)


if __name__ == "__main__":
    main()
