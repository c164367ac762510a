"""dtypelab quantize."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import click

from experiments.files import atomic_path, check_outputs
from experiments.zoo import model_files

from .common import (
    import_engine_option,
    json_option,
    model_argument,
    print_json,
    say,
    shape_option,
)
from .int8 import config_options, configured, for_calibration


@click.command(short_help="Quantize a model to 8 bits and write it as ONNX (QDQ).")
@model_argument
@click.option(
    "--calib", "file", required=True, metavar="X.npz", help="Arrays by input name, or mnist1k."
)
@shape_option
@import_engine_option
@config_options
@click.option("-o", "--output", type=click.Path(path_type=Path), metavar="Q.onnx")
@click.option(
    "--dialect",
    type=click.Choice(["qdq", "qonnx"]),
    default="qdq",
    show_default=True,
    help="How it is written: QuantizeLinear and DequantizeLinear, or QONNX's Quant and FloatQuant.",
)
@click.option(
    "--plan", "plan_file", type=click.Path(path_type=Path), metavar="P.json", help="Save the plan."
)
@json_option
def quantize(
    model: str,
    file: str,
    shapes: Sequence[str],
    config_file: str | None,
    settings: Sequence[str],
    output: Path | None,
    dialect: str,
    plan_file: Path | None,
    as_json: bool,
) -> None:
    """Calibrate MODEL on the inputs in X.npz and write it with quantize/dequantize nodes, or only
    the plan, as for a model that cannot be written so (one with branches).

    With --dialect qonnx it is written as Brevitas writes models and FINN and hls4ml read them:
    integers of any width, and formats that are binary floating point.

    The plan holds every decision (scales, zero points, what was left in float and why) as JSON. A
    file for --config holds fields of quantize.QConfig, and overrides for nodes by pattern of names
    as tables: [overrides."conv*"] and then weight_bits = 4.

    Example: dtypelab quantize mnist_resnet8 --calib mnist1k
    --set weight_granularity=channel -o q.onnx --plan q.json
    """
    import quantize as quantizer

    if output is None and plan_file is None:
        raise click.UsageError("give -o for the quantized model, --plan for its plan, or both")
    if output is None and dialect != "qdq":
        raise click.UsageError(f"--dialect {dialect} is how -o is written: give that too")
    check_outputs([output, plan_file], [*model_files.files_of(model), file, config_file])
    config = configured(config_file, settings)
    module, parts = for_calibration(model, file, shapes)
    plan = quantizer.calibrate(module, parts, config)
    with ExitStack() as outputs:
        if output:
            temporary = outputs.enter_context(atomic_path(output))
            write = quantizer.export_qonnx if dialect == "qonnx" else quantizer.export_onnx
            write(module, plan, temporary)
        if plan_file:
            plan.to_json(outputs.enter_context(atomic_path(plan_file)))
    if as_json:
        saved = {"model": model, "output": str(output or ""), "plan": str(plan_file or "")}
        print_json({**saved, "quantized": len(plan.nodes), "skipped": dict(plan.skipped)})
        return
    written = output or plan_file
    say(f"{len(plan.nodes)} nodes quantized, {len(plan.skipped)} left in float: {written}")
    for name, reason in plan.skipped.items():
        say(f"  {name}: {reason}")
