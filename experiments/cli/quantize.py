"""dtypelab quantize."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click

from experiments import datasets, pipeline
from experiments.files import atomic_path, check_writable

from .common import json_option, load_inputs, model_argument, print_json


@click.command(short_help="Quantize a model to 8 bits and write it as ONNX (QDQ).")
@model_argument
@click.option(
    "--calib", "file", required=True, metavar="X.npz", help="Arrays by input name, or mnist1k."
)
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    help="A field of quantize.QConfig, for example calibrate=percentile; may be repeated.",
)
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), metavar="Q.onnx")
@click.option(
    "--plan", "plan_file", type=click.Path(path_type=Path), metavar="P.json", help="Save the plan."
)
@json_option
def quantize(
    model: str,
    file: str,
    settings: Sequence[str],
    output: Path,
    plan_file: Path | None,
    as_json: bool,
) -> None:
    """Calibrate MODEL on the inputs in X.npz and write it with quantize/dequantize nodes.

    The plan holds every decision (scales, zero points, what was left in float and why) as JSON.

    Example: dtypelab quantize mnist_resnet8 --calib mnist1k
    --set weight_granularity=channel -o q.onnx --plan q.json
    """
    import quantize as quantizer

    for path in (output, plan_file):
        if path:
            check_writable(path)
    config = pipeline.qconfig(dict(map(_setting, settings)))
    module = pipeline.load_model(pipeline.model_file(model))
    plan = quantizer.calibrate(module, _batches(file, module), config)
    with ExitStack() as outputs:
        temporary = outputs.enter_context(atomic_path(output))
        quantizer.export_onnx(module, plan, temporary)
        if plan_file:
            plan.to_json(outputs.enter_context(atomic_path(plan_file)))
    if as_json:
        saved = {"model": model, "output": str(output), "plan": str(plan_file or "")}
        print_json({**saved, "quantized": len(plan.nodes), "skipped": dict(plan.skipped)})
        return
    click.echo(f"{len(plan.nodes)} nodes quantized, {len(plan.skipped)} left in float: {output}")
    for name, reason in plan.skipped.items():
        click.echo(f"  {name}: {reason}")


def _batches(file: str, module: Any) -> list[dict[str, pipeline.Array]]:
    """The calibration inputs in batches; all inputs of a batch have the same number of rows."""
    if file in datasets.names():
        (name,) = pipeline.inputs_of(module)
        arrays = {name: datasets.load(file).calibration}
    else:
        arrays = load_inputs(file, module)
    rows = len(next(iter(arrays.values())))
    size = pipeline.CALIBRATION_BATCH
    return [
        {name: array[start : start + size] for name, array in arrays.items()}
        for start in range(0, rows, size)
    ]


def _setting(text: str) -> tuple[str, Any]:
    """KEY=VALUE; VALUE is TOML (a number, true, a list) or else a plain string."""
    key, equals, value = text.partition("=")
    if not equals:
        raise click.UsageError(f"--set {text!r} is not KEY=VALUE")
    try:
        parsed = tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return key.strip(), value.strip()
    return key.strip(), tuple(parsed) if isinstance(parsed, list) else parsed
