"""dtypelab tune."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

import compiler
from compiler.transform.choose_outputs import choose_outputs
from experiments.devices import client
from experiments.devices.tuning import DevicePlace
from experiments.files import check_outputs
from experiments.zoo import model_files

from .common import (
    batch_options,
    cell,
    device_options,
    json_option,
    load_static,
    model_argument,
    outputs_option,
    print_json,
    random_inputs,
    say,
    show,
)
from .int8 import int8_module, int8_options

if TYPE_CHECKING:
    from pathlib import Path

    from compiler.target.registry import Target
    from compiler.tuning.places import Place
    from compiler.tuning.tuner import Progress, Tuning


@click.command(short_help="Measure faster schedules for a model on this machine.")
@model_argument
@click.option("--target", default="llvm", show_default=True, metavar="T")
@click.option(
    "--budget",
    type=click.FloatRange(min=0, min_open=True),
    default=60.0,
    show_default=True,
    metavar="S",
    help="Seconds.",
)
@click.option("--seed", type=int, default=0, show_default=True, metavar="N")
@batch_options
@int8_options
@outputs_option(text="Tune only what this output needs.")
@device_options
@click.option("-o", "--output", required=True, metavar="LOG.jsonl", help="The log to append to.")
@json_option
def tune(
    model: str,
    target: str,
    budget: float,
    seed: int,
    batch: int,
    shapes: Sequence[str],
    calib: str | None,
    config_file: str | None,
    settings: Sequence[str],
    chosen: Sequence[str],
    device: str | None,
    token_file: Path | None,
    output: str,
    as_json: bool,
) -> None:
    """Try register tiles for the kernels of MODEL and log those that are faster here.

    The model is tuned in float32 or, with --calib, in int8. Results stay the same bit for bit.
    `bench --tuned LOG.jsonl` applies the log, as does compiler.apply_history_best in Python. With
    --device, kernels are compiled here and timed there, and the log is for that device.

    Example: dtypelab tune mnist_resnet8 --calib mnist1k --budget 60 -o tune.jsonl
    """
    check_outputs([output], [*model_files.files_of(model), calib, config_file])
    client.use_token_file(token_file)
    place = DevicePlace(client.device(device)) if device else None
    made_for = place.device.machine.target(target) if place else compiler.Target.parse(target)
    arrays = random_inputs(model, shapes, batch)
    module = int8_module(
        model, load_static(model, arrays), arrays, shapes, calib, config_file, settings
    )
    module = choose_outputs(module, chosen)
    tuning = _with_bar(module, made_for, place, budget, seed, output)
    if as_json:
        facts: dict[str, Any] = {"model": model, "dtype": "int8" if calib else "float32"}
        facts |= {"target": target, "budget_s": budget}
        facts |= {"device": device} if device else {}
        facts |= {"seed": seed, "log": output, "workloads": tuning.workloads}
        facts |= {"trials": len(tuning.trials), "seconds": tuning.seconds}
        facts |= {"default_ms": tuning.default_ms, "tuned_ms": tuning.tuned_ms}
        print_json({**facts, "records": [asdict(record) for record in tuning.records]})
        return
    if tuning.records:
        show(_table(tuning))
    say(
        f"{len(tuning.records)} of {tuning.workloads} workloads faster, {len(tuning.trials)} "
        f"candidates in {tuning.seconds:.0f} s: {tuning.default_ms:.4f} ms -> "
        f"{tuning.tuned_ms:.4f} ms ({output})"
    )


def _with_bar(
    module: Any, target: Target, place: Place | None, budget: float, seed: int, output: str
) -> Tuning:
    """Tune with a bar on a terminal's stderr, and without one elsewhere."""
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    console = Console(stderr=True)
    columns = (
        TextColumn("tuning"),
        BarColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[s]}"),
    )
    # Drawn between measurements only: a thread that redraws would be measured with them.
    with Bar(*columns, console=console, auto_refresh=False, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=budget, s="")

        def progress(p: Progress) -> None:
            state = f"{p.tried} candidates, {p.faster} workloads faster"
            bar.update(task, completed=min(p.seconds, budget), s=state, refresh=True)

        tuning: Tuning = compiler.tune(module, target, budget, seed, output, progress, place=place)
    return tuning


def _table(tuning: Tuning) -> Any:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("workload", "default ms", "tuned ms", "faster"):
        table.add_column(
            column, justify="left" if column == "workload" else "right", overflow="fold"
        )
    for record in tuning.records:
        gain = f"{record.default_ms / record.best_ms:.2f}x"
        table.add_row(cell(record.text), f"{record.default_ms:.5f}", f"{record.best_ms:.5f}", gain)
    return table
