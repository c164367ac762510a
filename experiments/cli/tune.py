"""dtypelab tune."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

import compiler
from compiler.files.printable import printable
from compiler.transform.choose_outputs import choose_outputs
from compiler.tuning.cost_model import learns
from experiments.devices import client
from experiments.devices.tuning import DevicePlace
from experiments.files import check_outputs
from experiments.zoo import model_files

from . import tune_text
from .common import (
    batch_options,
    device_options,
    import_engine_option,
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
    from compiler.tuning.network import NetworkTrial, NetworkTuning
    from compiler.tuning.places import Place
    from compiler.tuning.session import Progress
    from compiler.tuning.tuner import Tuning

WHOLE = 0.25
"""Share of a budget for what is chosen for the network as a whole."""
_Shown = Callable[[float, str], None]


def _report(context: click.Context, _: click.Parameter, log: str | None) -> None:
    """Print what a log has, and no more."""
    if log is not None and not context.resilient_parsing:
        tune_text.report(log)
        context.exit()


@click.command(short_help="Measure faster schedules for a model on this machine.")
@model_argument
@click.option("--target", default="llvm", show_default=True, metavar="T")
@click.option(
    "--budget",
    type=click.FloatRange(min=0, min_open=True),
    metavar="S",
    help="Seconds; 60, unless --trials says when to stop. A quarter of them is --network's.",
)
@click.option(
    "--trials",
    type=click.IntRange(min=1),
    metavar="N",
    help="Stop after as many candidates a kernel, on average: more where they help more, fewer "
    "where there are no more.",
)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, metavar="N")
@batch_options
@int8_options
@outputs_option(text="Tune only what this output needs.")
@device_options
@click.option(
    "--transfer",
    multiple=True,
    metavar="LOG",
    help="Try first what a log of another CPU has. Repeatable.",
)
@click.option(
    "--network",
    "whole",
    is_flag=True,
    help="Then try blocks of channels, fusion and more for the network as a whole.",
)
@click.option("-o", "--output", required=True, metavar="LOG.jsonl", help="The log to append to.")
@import_engine_option
@json_option
@click.option(
    "--report",
    metavar="LOG",
    is_eager=True,
    expose_value=False,
    callback=_report,
    help="Only say what a log has: the best after so many trials.",
)
def tune(
    model: str,
    target: str,
    budget: float | None,
    trials: int | None,
    seed: int,
    batch: int,
    shapes: Sequence[str],
    calib: str | None,
    config_file: str | None,
    settings: Sequence[str],
    chosen: Sequence[str],
    device: str | None,
    token_file: Path | None,
    transfer: Sequence[str],
    whole: bool,
    output: str,
    as_json: bool,
) -> int:
    """Try schedules for the kernels of MODEL and log those that are faster here.

    The model is tuned in float32 or, with --calib, in int8. Results stay the same bit for bit, but
    for those of float32 with --network, which may add in another order.
    `bench --tuned LOG.jsonl` applies the log, as does compiler.apply_history_best in Python. With
    --device, kernels are compiled here and timed there, and the log is for that device. Every
    candidate is in the log as soon as it is measured: the same command goes on after Ctrl-C, which
    ends the search and keeps what was found (the exit status is 1 then), or after a crash.

    Example: dtypelab tune mnist_resnet8 --calib mnist1k --budget 60 -o tune.jsonl
    """
    if whole and device:
        raise click.UsageError("--network measures here what is to run here: not with --device")
    check_outputs([output], [*model_files.files_of(model), calib, config_file, *transfer])
    seconds = budget if budget is not None else 60.0 if trials is None else math.inf
    client.use_token_file(token_file)
    place = DevicePlace(client.device(device)) if device else None
    made_for = place.device.machine.target(target) if place else compiler.Target.parse(target)
    arrays = random_inputs(model, shapes, batch)
    module = int8_module(
        model, load_static(model, arrays), arrays, shapes, calib, config_file, settings
    )
    module = choose_outputs(module, chosen)
    with _bar() as bar:
        tuning = _kernels(
            bar, module, made_for, place, seconds, trials, seed, transfer, output, whole
        )
        network = None
        if whole and not tuning.interrupted:
            left = max(0.0, seconds - tuning.seconds)
            network = _whole(bar, module, made_for, output, seed, left)
    bounds = {} if place else tune_text.of_bounds(tuning.tasks, made_for)
    if as_json:
        facts: dict[str, Any] = {"model": model, "dtype": "int8" if calib else "float32"}
        facts |= {"target": target, "budget_s": seconds}
        facts |= {"device": device} if device else {}
        facts |= {"seed": seed, "log": output, "workloads": tuning.workloads}
        facts |= {"trials": len(tuning.trials), "seconds": tuning.seconds}
        facts |= {"resumed": tuning.resumed, "model_of_time": tuning.model}
        facts |= {"interrupted": tuning.interrupted, "curve_ms": tune_text.curve(tuning)}
        facts |= {"default_ms": tuning.default_ms, "tuned_ms": tuning.tuned_ms}
        tasks = [{**asdict(t), "bound": bounds.get(t.workload)} for t in tuning.tasks]
        records = [asdict(record) for record in tuning.records]
        if network is not None:
            facts["network"] = asdict(network)
            facts["interrupted"] = network.interrupted
        print_json({**facts, "tasks": tasks, "records": records})
        return int(facts["interrupted"])
    if tuning.tasks:
        show(tune_text.results(tuning, bounds))
    say(
        f"{len(tuning.records)} of {tuning.workloads} workloads faster, {len(tuning.trials)} "
        f"candidates in {tuning.seconds:.0f} s: {tuning.default_ms:.4f} ms -> "
        f"{tuning.tuned_ms:.4f} ms ({output})"
    )
    if network is not None:
        say(
            f"the network as a whole: {network.choice}, of {len(network.trials)} alternatives in "
            f"{network.seconds:.0f} s: {network.default_ms:.4f} ms -> {network.tuned_ms:.4f} ms"
        )
    if tuning.resumed:
        say(f"{tuning.resumed} candidates were in {output} and have not been measured again")
    if not learns():
        say("ranked without learning from what was measured: pip install 'dtypelab[tune]'")
    interrupted = tuning.interrupted or (network is not None and network.interrupted)
    if interrupted:
        say("interrupted: all candidates are in the log, and the same command goes on from there")
    return int(interrupted)


@contextmanager
def _bar() -> Iterator[_Shown]:
    """A bar on a terminal's stderr, and none elsewhere: what shows a share of all and a text."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (
        TextColumn("tuning"),
        BarColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[s]}"),
    )
    # Drawn between measurements only: a thread that redraws would be measured with them.
    hidden = not console.is_terminal
    with Progress(*columns, console=console, auto_refresh=False, disable=hidden) as bar:
        task = bar.add_task("", total=1.0, s="")
        yield lambda done, s: bar.update(
            task, completed=min(done, 1.0), s=printable(s), refresh=True
        )


def _kernels(
    show: _Shown,
    module: Any,
    target: Target,
    place: Place | None,
    budget: float,
    trials: int | None,
    seed: int,
    transfer: Sequence[str],
    output: str,
    whole: bool,
) -> Tuning:
    """Tune the kernels; of a budget for the whole network, too, a share is left."""
    share = 1 - WHOLE if whole else 1.0

    def progress(p: Progress) -> None:
        done = p.seconds / p.budget_s
        if p.limit:
            done = max(done, p.tried / p.limit)
        state = f"{p.tried} candidates, {p.faster} workloads faster"
        if p.default_ms:
            gain = p.default_ms / p.best_ms
            state += f", {p.default_ms:.3f} -> {p.best_ms:.3f} ms ({gain:.2f}x)"
        state += f"; {p.workload.partition('(')[0]} {1 / p.best:.2f}x"
        show(share * min(done, 1.0), state)

    tuning: Tuning = compiler.tune(
        module, target, share * budget, seed, output, progress, trials, place, transfer
    )
    return tuning


def _whole(
    show: _Shown, module: Any, target: Target, output: str, seed: int, budget: float
) -> NetworkTuning:
    """Try what may be chosen for the network, in the seconds that are left."""
    from compiler.tuning.network import alternatives

    seen, every = 0, sum(len(choices) for _, choices in alternatives(target))
    start = time.perf_counter()

    def progress(t: NetworkTrial) -> None:
        nonlocal seen
        seen += 1
        done = max(seen / every, (time.perf_counter() - start) / max(budget, 1e-9))
        gain = t.reason or f"{t.before_ms / t.ms:.2f}x"
        show(1 - WHOLE * (1 - min(done, 1.0)), f"the network as a whole: {t.choice}: {gain}")

    network: NetworkTuning = compiler.choose_network(
        module, target, output, seed=seed, budget_s=budget, progress=progress
    )
    return network
