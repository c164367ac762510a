"""dtypelab bench."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import click
import numpy as np

from compiler.errors import ConfigError, UnsupportedError
from experiments import pipeline, provenance, schemes
from experiments.latency import LatencyStats, measure_interleaved

from .common import (
    format_options,
    json_option,
    load_static,
    model_argument,
    print_json,
    show,
    target_options,
)

Arrays = dict[str, pipeline.Array]


@click.command(short_help="Measure the latency of a model.")
@model_argument
@format_options
@target_options
@click.option("--vs", type=click.Choice(["onnxruntime"]), help="Measure another runtime as well.")
@click.option("--batch", type=click.IntRange(min=1), default=1, show_default=True, metavar="N")
@click.option("--warmup", type=click.IntRange(min=0), default=5, show_default=True, metavar="N")
@click.option("--runs", type=click.IntRange(min=1), default=50, show_default=True, metavar="N")
@click.option(
    "--shape", "shapes", multiple=True, metavar="INPUT=1,3,224,224", help="Fix an input's shape."
)
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
    as_json: bool,
) -> None:
    """Time MODEL on random inputs, taking turns with float32 and, with --vs, another runtime.

    A symbolic first dimension becomes --batch; others need --shape.

    Example: dtypelab bench mnist_resnet8 --threads 2 --vs onnxruntime
    """
    scheme = schemes.number_format(dtype, accumulate, lowering)
    arrays = _random_inputs(model, dict(map(_shape, shapes)), batch)
    module = load_static(model, arrays)
    executable = pipeline.build(pipeline.retype(module, scheme), scheme, target, threads)
    calls: dict[str, Callable[[], object]] = {dtype: lambda: executable(*arrays.values())}
    if scheme.kind != "float32":
        base = schemes.parse("float32")
        reference = pipeline.build(module, base, target, threads)
        calls["float32"] = lambda: reference(*arrays.values())
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
        for name in ("float32", "onnxruntime"):
            if name in stats and name != dtype:
                facts[f"latency_ms_{name}"] = _milliseconds(stats[name])
                facts[f"speedup_vs_{name}"] = stats[name].median / stats[dtype].median
        print_json({**facts, "provenance": asdict(provenance.collect())})
        return
    show(_table(stats, dtype))


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


def _shape(text: str) -> tuple[str, tuple[int, ...]]:
    name, equals, numbers = text.partition("=")
    try:
        shape = tuple(int(number) for number in numbers.replace("x", ",").split(","))
    except ValueError:
        shape = ()
    if not equals or not shape or min(shape) < 1:
        raise click.UsageError(f"--shape {text!r} is not INPUT=1,3,224,224")
    return name, shape


def _random_inputs(model: str, shapes: dict[str, tuple[int, ...]], batch: int) -> Arrays:
    """Standard normal floats, and zeros for inputs of other dtypes (often indices), seed 0."""
    path = pipeline.model_file(model)
    module = pipeline.load_model(path, tuple(shapes.items()))
    generator = np.random.default_rng(0)
    arrays: Arrays = {}
    for name, kind in pipeline.inputs_of(module).items():
        shape = [
            batch if place == 0 and not isinstance(size, int) else size
            for place, size in enumerate(kind.shape)
        ]
        known = [size for size in shape if isinstance(size, int)]
        if len(known) < len(shape):
            raise ConfigError(f"input {name!r} is a {kind}; fix its shape with --shape {name}=...")
        storage = kind.dtype.storage
        is_float = np.issubdtype(storage, np.floating)
        values = generator.standard_normal(known) if is_float else np.zeros(known)
        arrays[name] = values.astype(storage)
    return arrays


def _onnxruntime(model: str, arrays: Arrays, threads: int) -> Callable[[], object]:
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
