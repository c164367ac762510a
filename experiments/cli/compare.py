"""dtypelab compare."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from compiler.errors import InputError
from experiments.files import atomic_path, check_outputs
from experiments.systems import pipeline, schemes
from experiments.systems.engine_choice import idle_lines
from experiments.zoo import model_files

from .common import (
    cell,
    chosen_engines,
    engine_options,
    format_options,
    input_option,
    json_option,
    load_as_calibrated,
    load_feed,
    load_static,
    model_argument,
    one_call,
    outputs_option,
    print_json,
    say,
    shape_option,
    show,
)

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    from experiments.layers.nodes import NodeError
    from experiments.measure.layer_errors import LayerError

#: An interpreted network is slow: this many inputs are compared unless --images says otherwise.
DEFAULT_IMAGES = 8


@click.command(short_help="Error of every layer against float32.")
@model_argument
@input_option
@shape_option
@format_options
@engine_options
@click.option("--plan", metavar="P.json", help="Compare the model quantized by this plan.")
@click.option(
    "--images",
    type=click.IntRange(min=1),
    default=DEFAULT_IMAGES,
    show_default=True,
    metavar="N",
    help="Use the first N inputs.",
)
@click.option("--csv", type=click.Path(path_type=Path), metavar="FILE", help="Save the table.")
@click.option(
    "--picture",
    type=click.Path(path_type=Path),
    metavar="FILE.svg",
    help="Draw the errors and histograms of a plan's nodes; a page if it ends in .html.",
)
@outputs_option("--output", text="Show only what this output needs.")
@click.option("--events", is_flag=True, help="Count overflows, underflows, NaNs, absorbed sums.")
@json_option
def compare(
    model: str,
    file: str,
    shapes: Sequence[str],
    dtype: str,
    accumulate: str | None,
    lowering: str | None,
    engines: Sequence[str],
    engine_costs: str,
    plan: str | None,
    images: int,
    csv: Path | None,
    picture: Path | None,
    chosen: Sequence[str],
    events: bool,
    as_json: bool,
) -> None:
    """Show where a number format or a quantization plan hurts: SQNR and cosine of every value.

    With --plan, also what every node adds by itself, on the inputs that it has in the quantized
    network, what share of its values its range cuts off, and (in --csv, --json and --picture)
    histograms of its values. With --engine, what engines compute is theirs: values inside of their
    regions are nowhere to be seen, those that leave them are compared.

    Example: dtypelab compare mnist_resnet8 --input mnist1k --dtype posit8_es0
    """
    import pandas as pd

    import quantize
    from compiler.ir.handed import ENGINES
    from compiler.transform.choose_outputs import choose_outputs
    from compiler.transform.preparation import prepare
    from experiments.layers.node_picture import write_picture
    from experiments.layers.nodes import node_errors
    from experiments.measure.layer_errors import layer_errors
    from experiments.results.export import neutral

    others = [name for name in engines if name not in ENGINES]
    if plan is not None and (dtype != "float32" or others):
        raise click.UsageError("give either --plan, or --dtype and --engine, to compare")
    if plan is None and dtype == "float32" and not others:
        raise click.UsageError("give either --dtype or --plan, to compare with float32")
    if events and engines:
        raise click.UsageError("--events counts what we compute: leave out --engine")
    if events and plan is not None:
        raise click.UsageError("--events counts what happens in a format: give --dtype, not --plan")
    if picture is not None and plan is None:
        raise click.UsageError("--picture draws the nodes of a plan: give --plan, not --dtype")
    check_outputs([csv, picture], [*model_files.files_of(model), file, plan])
    scheme = schemes.number_format(dtype, accumulate, lowering)
    wanted = chosen_engines(engines, engine_costs)
    arrays = one_call(model, load_feed(model, file, shapes)[:images]).call()
    # Formats and plans apply to the prepared module: there the values have their names.
    load = load_static if plan is None else load_as_calibrated
    module = prepare(load(model, arrays))
    # Plans are made for all outputs: everything is computed, and what others need not shown.
    needed = {b.var.name for b in choose_outputs(module, chosen).main.bindings}
    inputs = list(arrays.values())
    errors: list[LayerError] | list[NodeError]
    kept, idle = object(), list[str]()
    if plan is None:
        variant = pipeline.retype(module, scheme)
        if wanted.names:
            variant, kept, used = pipeline.with_engines(variant, wanted)
            idle = idle_lines(wanted, used)
        errors = [e for e in layer_errors(module, variant, inputs, events) if e.value in needed]
        del kept
        table = _table(errors)
    else:
        found = node_errors(module, quantize.Plan.from_json(Path(plan)), inputs)
        errors = [e for e in found if e.value in needed]
        table = _nodes_table(errors)
        if picture is not None:
            write_picture(errors, picture, f"{model}, {Path(plan).name}")
    if not errors:
        raise InputError(f"nothing that {', '.join(map(repr, chosen))} needs is in both networks")
    if csv is not None:
        with atomic_path(csv) as path:
            neutral(pd.DataFrame([asdict(e) for e in errors])).to_csv(path, index=False)
    if as_json:
        layers = [asdict(error) for error in errors]
        print_json({"model": model, "dtype": dtype, "plan": plan or "", "layers": layers})
        return
    show(table)
    if idle:
        say(*idle)


def _table(errors: list[LayerError]) -> Table:
    counted = [name for name in ("overflow", "underflow", "nan", "absorbed") if errors[0].events]
    table = _columns(*counted)
    worst = min(errors, key=lambda error: error.sqnr_db)
    for error in errors:
        counts = (f"{getattr(error.events, name):,}" for name in counted)
        table.add_row(*_figures(error), *counts, style="bold" if error is worst else None)
    return table


def _nodes_table(errors: list[NodeError]) -> Table:
    table = _columns("own dB", "own cosine", "own max", "cut off")
    worst = min(errors, key=lambda error: error.own_sqnr_db)
    for error in errors:
        table.add_row(
            *_figures(error),
            f"{error.own_sqnr_db:.2f}",
            f"{error.own_cosine:.6f}",
            f"{error.own_max_abs_error:.3g}",
            "" if error.saturated is None else f"{100 * error.saturated:.3g} %",
            style="bold" if error is worst else None,
        )
    return table


def _columns(*more: str) -> Table:
    """A table of what is known of any error, and `more` figures."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("value", "operator", "shape"):
        table.add_column(column, overflow="fold")
    for column in ("SQNR dB", "cosine", "max |error|", *more):
        table.add_column(column, justify="right", no_wrap=True)
    return table


def _figures(error: LayerError | NodeError) -> tuple[str | Text, ...]:
    return (
        cell(error.value),
        error.operator,
        "x".join(map(str, error.shape)),
        f"{error.sqnr_db:.2f}",
        f"{error.cosine:.6f}",
        f"{error.max_abs_error:.3g}",
    )
