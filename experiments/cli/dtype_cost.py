"""dtypelab dtype cost."""

from __future__ import annotations

from typing import Any

import click

from compiler.errors import UnsupportedError
from experiments.systems import number_systems

from .common import json_option, print_json, say, show


@click.command("cost", short_help="What sources say that a multiply-accumulate costs.")
@click.argument("name", metavar="NAME")
@json_option
def cost(name: str, as_json: bool) -> None:
    """Show what a multiply-accumulate in a format or integer dtype costs, in a block format's
    elements, by every source that has it: gates of a formula, and energy and area of published
    tables. Sources disagree, and are not mixed; `dtypelab dtype hardware` counts the gates of the
    format's own circuits.

    Example: dtypelab dtype cost int8
    """
    rows = costs_of(name)
    if as_json:
        print_json({"name": name, "costs": rows})
        return
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("source", no_wrap=True)
    for column in ("gates", "pJ", "um^2"):
        table.add_column(column, justify="right", no_wrap=True)
    for row in rows:
        cells = [row[key] for key in ("gates", "energy_pj", "area_um2")]
        texts = ["" if value is None else f"{value:,.4g}" for value in cells]
        table.add_row(row["source"], *texts)
    show(table)
    for row in rows:
        say(f"{row['source']}: {row['about']}")


def costs_of(name: str) -> list[dict[str, Any]]:
    """A row a source: its name, gates, energy_pj, area_um2 (None where it does not say), about.

    Raises:
        DtypelabError: there is no such format, or no source has it.
    """
    from experiments.costs import gate_model, published

    rows: list[dict[str, Any]] = []
    why, of = "", ""
    if element := number_systems.block_element(name):
        name, of = element, f" (its elements, {element}, without scales)"
    try:
        gates = gate_model.gates(name).total
    except UnsupportedError as error:
        why = str(error)
    else:
        about = f"one of {gate_model.LANES} lanes, up to a constant factor: arXiv 2510.25602, C"
        rows.append(_row("gate_model", about, gates=gates))
    for source in published.SOURCES.values():
        known = [*(f"int{bits}" for bits in source.integers), *source.floats]
        if name.removeprefix("u") in known:
            number = name.removeprefix("u")
            unit = published.mac(source, number, number)
            facts = {"energy_pj": unit.energy_pj, "area_um2": unit.area_um2}
            rows.append(_row(source.name, source.about, **facts))
    if not rows:
        raise UnsupportedError(why)
    return [{**row, "about": row["about"] + of} for row in rows]


def _row(source: str, about: str, **facts: float | None) -> dict[str, Any]:
    return {"source": source, "gates": None, "energy_pj": None, "area_um2": None, **facts,
            "about": about}  # fmt: skip
