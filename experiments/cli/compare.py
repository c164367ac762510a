"""dtypelab compare."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from experiments import pipeline, schemes

from .common import (
    format_options,
    json_option,
    load_inputs,
    load_static,
    model_argument,
    print_json,
    show,
)

if TYPE_CHECKING:
    from experiments.layers import LayerError

#: An interpreted network is slow: this many inputs are compared unless --images says otherwise.
DEFAULT_IMAGES = 8


@click.command(short_help="Error of every layer against float32.")
@model_argument
@click.option(
    "--input", "file", required=True, metavar="X.npz", help="Arrays by input name, or mnist1k."
)
@format_options
@click.option("--plan", metavar="P.json", help="Compare the model quantized by this plan.")
@click.option(
    "--images",
    type=click.IntRange(min=1),
    default=DEFAULT_IMAGES,
    show_default=True,
    metavar="N",
    help="Use the first N inputs.",
)
@click.option("--events", is_flag=True, help="Count overflows, underflows, NaNs, absorbed sums.")
@json_option
def compare(
    model: str,
    file: str,
    dtype: str,
    accumulate: str | None,
    lowering: str | None,
    plan: str | None,
    images: int,
    events: bool,
    as_json: bool,
) -> None:
    """Show where a number format or a quantization plan hurts: SQNR and cosine of every value.

    Example: dtypelab compare mnist_resnet8 --input mnist1k --dtype posit8_es0
    """
    from compiler.transform.preparation import prepare
    from experiments.layers import layer_errors

    if (plan is None) == (dtype == "float32"):
        raise click.UsageError("give either --dtype or --plan, to compare with float32")
    if events and plan is not None:
        raise click.UsageError("--events counts what happens in a format: give --dtype, not --plan")
    scheme = schemes.number_format(dtype, accumulate, lowering)
    arrays = load_inputs(file, pipeline.load_model(pipeline.model_file(model)))
    arrays = {name: array[:images] for name, array in arrays.items()}
    # Formats and plans apply to the prepared module: there the values have their names.
    module = prepare(load_static(model, arrays))
    if plan is None:
        variant = pipeline.retype(module, scheme)
    else:
        variant = pipeline.simulate(module, plan)
    errors = layer_errors(module, variant, list(arrays.values()), events)
    if as_json:
        layers = [asdict(error) for error in errors]
        print_json({"model": model, "dtype": dtype, "plan": plan or "", "layers": layers})
        return
    show(_table(errors))


def _table(errors: list[LayerError]) -> Any:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("value", "operator", "shape"):
        table.add_column(column, overflow="fold")
    for column in ("SQNR dB", "cosine", "max |error|"):
        table.add_column(column, justify="right", no_wrap=True)
    counted = [name for name in ("overflow", "underflow", "nan", "absorbed") if errors[0].events]
    for column in counted:
        table.add_column(column, justify="right", no_wrap=True)
    worst = min(errors, key=lambda error: error.sqnr_db)
    for error in errors:
        table.add_row(
            error.value,
            error.operator,
            "x".join(map(str, error.shape)),
            f"{error.sqnr_db:.2f}",
            f"{error.cosine:.6f}",
            f"{error.max_abs_error:.3g}",
            *(f"{getattr(error.events, name):,}" for name in counted),
            style="bold" if error is worst else None,
        )
    return table
