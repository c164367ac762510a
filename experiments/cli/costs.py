"""dtypelab costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from compiler.errors import ConfigError
from experiments.systems import pipeline, schemes
from experiments.zoo import model_files

from .common import (
    import_engine_option,
    json_option,
    model_argument,
    print_json,
    say,
    shape_option,
    shapes_given,
    show,
)

if TYPE_CHECKING:
    from compiler.transform.analysis import ModelCost

FIGURES: Mapping[str, str] = {
    "mac_gates": "gates a MAC",
    "mac_area_um2": "um^2 a MAC",
    "energy_mac_uj": "uJ: MACs",
    "energy_other_uj": "others",
    "energy_memory_uj": "memory",
    "energy_uj": "all",
}


@click.command(short_help="What sources say that a network costs in hardware, side by side.")
@model_argument
@click.option("--plan", "plan_file", metavar="P.json", help="Quantized by a plan.")
@click.option("--dtype", default="float32", metavar="F", help="Computed in this format.")
@click.option("--accumulate", metavar="MODE", help="Of --dtype: how sums are formed.")
@click.option("--prices", type=click.Path(path_type=Path), metavar="FILE.toml",
              help="Prices of your own: tables energy, gates and area.")  # fmt: skip
@shape_option
@import_engine_option
@json_option
def costs(
    model: str, plan_file: str | None, dtype: str, accumulate: str | None, prices: Path | None,
    shapes: Sequence[str], as_json: bool,
) -> None:  # fmt: skip
    """Show what one run of a network costs by every source: gates and area of the unit that does a
    multiply-accumulate (MAC), and energy of MACs, of other operators, and of what moves between
    kernels and memory. Sources disagree, and a row has one source; what it says nothing of is
    empty, and said below.

    Example: dtypelab costs mnist_resnet8 --dtype float8_e4m3fn --accumulate exact
    """
    path = model_files.model_file(model)
    done, sums = _done(path, shapes_given(path, shapes), plan_file, dtype, accumulate)
    rows = _rows(done, sums, prices)
    if as_json:
        facts = {"macs_by_dtypes": done.macs_by_dtypes, "traffic_bytes": done.traffic_bytes}
        print_json({"model": model, **facts, "costs": rows})
        return
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("source", no_wrap=True)
    for title in FIGURES.values():
        table.add_column(title, justify="right", no_wrap=True)
    for row in rows:
        given = [row[name] for name in FIGURES]
        texts = ("" if value is None else f"{value:,.4g}" for value in given)
        table.add_row(row["cost_source"], *texts)
    show(table)
    pairs = ", ".join(f"{n:,} of {pair}" for pair, n in done.macs_by_dtypes.items())
    say(f"MACs: {pairs or 'none'}; {done.traffic_bytes:,} bytes moved")
    for row in rows:
        if row["notes"]:
            say(row["notes"])


def _done(
    path: Path,
    shapes: model_files.Shapes,
    plan_file: str | None,
    dtype: str,
    accumulate: str | None,
) -> tuple[ModelCost, str]:
    """What a model does, as it is, in a format or by a plan; and how sums of formats are formed.

    Raises:
        DtypelabError: the plan or the format does not fit.
    """
    from compiler.transform.analysis import cost
    from compiler.transform.preparation import prepare

    if plan_file is not None and (dtype != "float32" or accumulate is not None):
        raise ConfigError("--plan and --dtype are two ways to compute: give one")
    scheme = schemes.number_format(dtype, accumulate, None)
    module = prepare(model_files.load_model(path, shapes))
    if plan_file is None:
        module = prepare(pipeline.retype(module, scheme))
        return cost(module), str(scheme.option("accumulate") or "sequential")
    import quantize
    from quantize.search.costs import plan_cost

    plan = quantize.Plan.from_json(plan_file)
    stored = plan.config.in_formats and plan.config.compute == "storage"
    modes = [mode for _, mode in plan.config.accumulators]
    return plan_cost(module, plan), "float32" if stored else "; ".join(modes)


def _rows(done: ModelCost, sums: str, file: Path | None) -> list[dict[str, Any]]:
    """A row a source, a user's last."""
    from experiments.spec.price_tables import read_price_tables
    from experiments.systems.prices import SOURCES, Prices, costs_of, prices_of

    given = [prices_of(name, done.macs_by_dtypes, sums) for name in SOURCES]
    if file is not None:
        tables = {name: dict(table) for name, table in read_price_tables(file).items()}
        given.append(Prices(str(file), tables["energy"], tables["gates"], tables["area"]))
    return [asdict(costs_of(done, prices)) for prices in given]
