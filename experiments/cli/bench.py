"""dtypelab bench."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from typing import Any

import click

import compiler
from compiler.errors import UnsupportedError
from experiments import pipeline, provenance, schemes
from experiments.latency import LatencyStats, measure_interleaved

from .common import (
    format_options,
    json_option,
    load_static,
    model_argument,
    print_json,
    random_inputs,
    shape_options,
    show,
    target_options,
)


@click.command(short_help="Measure the latency of a model.")
@model_argument
@format_options
@target_options
@click.option("--vs", type=click.Choice(["onnxruntime"]), help="Measure another runtime as well.")
@click.option("--warmup", type=click.IntRange(min=0), default=5, show_default=True, metavar="N")
@click.option("--runs", type=click.IntRange(min=1), default=50, show_default=True, metavar="N")
@shape_options
@click.option("--tuned", metavar="LOG", help="Apply a log that `dtypelab tune` wrote.")
@json_option
def bench(
    model: str,
    dtype: str,
    accumulate: str | None,
    lowering: str | None,
    target: str,
    threads: int,
    vs: str | None,
    batch: int,
    warmup: int,
    runs: int,
    shapes: Sequence[str],
    tuned: str | None,
    as_json: bool,
) -> None:
    """Time MODEL on random inputs, taking turns with float32 and, with --vs, another runtime.

    A symbolic first dimension becomes --batch; others need --shape. With --tuned, float32 is also
    timed without the log.

    Example: dtypelab bench mnist_resnet8 --threads 2 --vs onnxruntime
    """
    scheme = schemes.number_format(dtype, accumulate, lowering)
    arrays = random_inputs(model, shapes, batch)
    module = load_static(model, arrays)
    with compiler.apply_history_best(tuned) if tuned else nullcontext():
        executable = pipeline.build(pipeline.retype(module, scheme), scheme, target, threads)
    calls: dict[str, Callable[[], object]] = {dtype: lambda: executable(*arrays.values())}
    if scheme.kind != "float32" or tuned:
        base = schemes.parse("float32")
        reference = pipeline.build(module, base, target, threads)
        name = "float32" if scheme.kind != "float32" else "untuned"
        calls[name] = lambda: reference(*arrays.values())
    if vs:
        calls[vs] = _onnxruntime(model, arrays, threads)
    stats = dict(
        zip(calls, measure_interleaved(list(calls.values()), warmup=warmup, runs=runs), strict=True)
    )
    if as_json:
        facts: dict[str, Any] = {"model": model, "dtype": dtype, "target": target}
        facts |= {"isa": executable.target.isa, "threads": threads, "batch": batch}
        facts |= {"shapes": {name: list(array.shape) for name, array in arrays.items()}}
        facts |= {"warmup": warmup, "runs": runs}
        facts["latency_ms"] = _milliseconds(stats[dtype])
        facts["tuned_kernels"] = executable.tuned
        for name in ("float32", "untuned", "onnxruntime"):
            if name in stats and name != dtype:
                facts[f"latency_ms_{name}"] = _milliseconds(stats[name])
                facts[f"speedup_vs_{name}"] = stats[name].median / stats[dtype].median
        print_json({**facts, "provenance": asdict(provenance.collect())})
        return
    show(_table(stats, dtype))
    if tuned:
        click.echo(f"{executable.tuned} kernels with tiles from {tuned}")


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
    model: str, arrays: dict[str, pipeline.Array], threads: int
) -> Callable[[], object]:
    try:
        import onnxruntime
    except ImportError as error:
        raise UnsupportedError(
            "--vs onnxruntime needs that package: pip install onnxruntime"
        ) from error
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        str(pipeline.model_file(model)), options, providers=["CPUExecutionProvider"]
    )
    return lambda: session.run(None, arrays)
