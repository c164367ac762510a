"""dtypelab bench."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import click

import compiler
from compiler.errors import ConfigError, UnsupportedError
from compiler.target.registry import Target
from compiler.transform.choose_outputs import choose_outputs
from experiments.devices import client
from experiments.devices import executable as on_device
from experiments.measure.latency import LatencyStats, measure_interleaved
from experiments.running import provenance
from experiments.systems import pipeline, schemes
from experiments.zoo import model_files

from .common import (
    batch_options,
    chosen_engines,
    device_options,
    echo_engines,
    echo_lowering,
    engine_facts,
    engine_options,
    format_options,
    json_option,
    load_static,
    lowering_facts,
    model_argument,
    outputs_option,
    print_json,
    random_inputs,
    say,
    show,
    target_options,
)
from .int8 import int8_module, int8_options

PEERS = ("onnxruntime", "openvino")


@click.command(short_help="Measure the latency of a model.")
@model_argument
@format_options
@target_options
@engine_options
@click.option(
    "--vs",
    type=click.Choice(PEERS),
    multiple=True,
    help="Measure another runtime as well; may be repeated.",
)
@click.option("--warmup", type=click.IntRange(min=0), default=5, show_default=True, metavar="N")
@click.option("--runs", type=click.IntRange(min=1), default=50, show_default=True, metavar="N")
@batch_options
@int8_options
@outputs_option(text="Compute only this output.")
@click.option("--tuned", metavar="LOG", help="Apply a log that `dtypelab tune` wrote.")
@device_options
@json_option
def bench(
    model: str,
    dtype: str,
    accumulate: str | None,
    lowering: str | None,
    target: str,
    threads: int,
    engines: Sequence[str],
    engine_costs: str,
    vs: Sequence[str],
    batch: int,
    warmup: int,
    runs: int,
    shapes: Sequence[str],
    calib: str | None,
    config_file: str | None,
    settings: Sequence[str],
    chosen: Sequence[str],
    tuned: str | None,
    device: str | None,
    token_file: Path | None,
    as_json: bool,
) -> None:
    """Time MODEL on random inputs, taking turns with float32 and, with --vs, other runtimes.

    A symbolic first dimension becomes --batch; others need --shape. With --calib, int8 is timed,
    and --vs also times the other runtimes' int8 (uint8 data, int8 weights a channel, quantized by
    onnxruntime from the same shapes). With --tuned, the model is also timed without the log. With
    --device, it is compiled here, and run and timed there. With --engine, it is also timed without.

    Example: dtypelab bench mnist_resnet8 --calib mnist1k --vs onnxruntime
    """
    scheme = schemes.number_format(dtype, accumulate, lowering)
    base = schemes.parse("float32")
    if calib and scheme.kind != "float32":
        raise ConfigError("--calib makes the model int8: leave --dtype out")
    if chosen and vs:
        raise ConfigError("--vs computes all outputs: leave --outputs out")
    if device and vs:
        raise ConfigError("--vs runs here and --device elsewhere: give one of them")
    wanted = chosen_engines(engines, engine_costs)
    client.use_token_file(token_file)
    place = client.device(device) if device else None
    arrays = random_inputs(model, shapes, batch)
    module = load_static(model, arrays)
    subject = int8_module(model, module, arrays, shapes, calib, config_file, settings)
    if calib:
        dtype = "int8"
    elif scheme.kind != "float32":
        subject = pipeline.retype(module, scheme)
    module, subject = (choose_outputs(m, chosen) for m in (module, subject))
    with compiler.apply_history_best(tuned) if tuned else nullcontext():
        executable = pipeline.build(subject, scheme, target, threads, place, wanted)
    if executable.emulated and Target.parse(target).design is not None:
        raise UnsupportedError(
            f"target {target!r} is simulated, which takes no time of its own: count its cycles "
            "(dtypelab cycles), or give another target"
        )
    if executable.emulated:
        raise UnsupportedError(
            f"target {target!r} runs in the emulator {executable.emulated} here, whose times say "
            "nothing of a real machine: measure on one (--device), or give another target"
        )
    name = f"{dtype} {wanted}".rstrip()
    built = {name: executable}
    if tuned:
        built["untuned"] = pipeline.build(subject, scheme, target, threads, place, wanted)
    if wanted.names and dtype != "float32":
        built[dtype] = pipeline.build(subject, scheme, target, threads)
    if name != "float32":
        built["float32"] = pipeline.build(module, base, target, threads, place)
    calls: dict[str, Callable[[], object]] = {
        k: partial(exe, *arrays.values()) for k, exe in built.items()
    }
    path = model_files.model_file(model)
    peers = list(dict.fromkeys(vs))
    for peer in peers:
        calls[peer] = _PEERS[peer](path, arrays, threads)
        if calib:
            calls[f"{peer} u8s8"] = _PEERS[peer](_u8s8(path, arrays), arrays, threads)
    if place is None:
        found = measure_interleaved(list(calls.values()), warmup=warmup, runs=runs)
    else:
        found = on_device.interleaved(built.values(), arrays.values(), warmup, runs)
    stats = dict(zip(calls, found, strict=True))
    if as_json:
        facts: dict[str, Any] = {"model": model, "dtype": dtype, "target": target}
        facts |= lowering_facts(executable) | engine_facts(executable, wanted)
        facts |= {"isa": executable.target.isa, "threads": threads}
        facts["batch"] = next((a.shape[0] for a in arrays.values() if a.ndim), batch)
        facts |= {"shapes": {name: list(array.shape) for name, array in arrays.items()}}
        facts |= {"warmup": warmup, "runs": runs, "vs": peers}
        facts["latency_ms"] = _milliseconds(stats[name])
        facts["tuned_kernels"] = executable.tuned
        for other in stats:
            if other != name:
                key = other.replace(" ", "_")
                facts[f"latency_ms_{key}"] = _milliseconds(stats[other])
                facts[f"speedup_vs_{key}"] = stats[other].median / stats[name].median
        origin = asdict(provenance.collect())
        if place is not None:
            facts["device"] = device
            origin |= {name: getattr(place.machine, name) for name in ("cpu", "cores", "os")}
        print_json({**facts, "provenance": origin})
        return
    show(_table(stats, name))
    echo_lowering(executable)
    echo_engines(executable, wanted)
    if tuned:
        say(f"{executable.tuned} kernels with tiles from {tuned}")


def _milliseconds(stats: LatencyStats) -> dict[str, float]:
    return {key: value for key, value in asdict(stats).items() if key != "runs"}


def _table(stats: dict[str, LatencyStats], subject: str) -> Any:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("", "min ms", "median", "mean", "p90", "p99", "stdev", f"{subject} is"):
        table.add_column(column, justify="right" if column else "left", no_wrap=True)
    for name, values in stats.items():
        times = [f"{value:.4f}" for value in _milliseconds(values).values()]
        ratio = values.median / stats[subject].median
        table.add_row(name, *times, "" if name == subject else f"{ratio:.2f}x as fast")
    return table


def _onnxruntime(
    model: Path, arrays: dict[str, pipeline.Array], threads: int
) -> Callable[[], object]:
    from experiments.benchmarks.peer import Session

    session = Session(model, threads).session
    return lambda: session.run(None, arrays)


def _openvino(model: Path, arrays: dict[str, pipeline.Array], threads: int) -> Callable[[], object]:
    from experiments.benchmarks.openvino import OpenVinoSession

    session = OpenVinoSession(model, arrays, threads)
    return lambda: session(arrays)


_PEERS = {"onnxruntime": _onnxruntime, "openvino": _openvino}


def _u8s8(model: Path, arrays: dict[str, pipeline.Array]) -> Path:
    """The model as onnxruntime quantizes it."""
    from experiments.benchmarks import models, peer

    if len(arrays) != 1:
        raise UnsupportedError("--vs with --calib is for models with one input")
    return peer.quantized(model, list(arrays.values()), models.folder())
