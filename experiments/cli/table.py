"""dtypelab table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from .common import json_option, print_json

if TYPE_CHECKING:
    import pandas as pd


@click.command(short_help="Filter, pivot, compare and export results.")
@click.argument("results", type=click.Path(path_type=Path), metavar="NAME.csv")
@click.option("--where", "conditions", multiple=True, metavar="COLUMN=VALUE", help="Also != < > *.")
@click.option("--columns", metavar="A,B,...", help="Columns to show; 'all' for every one.")
@click.option("--pivot", metavar="DOWN,ACROSS,VALUE", help="For example model,scheme,metric.")
@click.option(
    "--compare", "other", type=click.Path(path_type=Path), metavar="NEWER.csv", help="What changed."
)
@click.option("--format", "form", default="text", show_default=True, metavar="FORM",
              help="text, markdown, latex or csv.")  # fmt: skip
@json_option
def table(
    results: Path,
    conditions: tuple[str, ...],
    columns: str | None,
    pivot: str | None,
    other: Path | None,
    form: str,
    as_json: bool,
) -> None:
    """Show a results file as the table you need, in the form your paper needs.

    Example: dtypelab table quickstart.csv --pivot model,scheme,metric --format latex
    """
    from experiments import tables
    from experiments.store import read_results

    if sum(option is not None for option in (columns, pivot, other)) > 1:
        raise click.UsageError("give one of --columns, --pivot and --compare")
    shown = tables.where(read_results(results), conditions)
    if other is not None:
        shown = tables.compare(shown, tables.where(read_results(other), conditions))
    elif pivot is not None:
        names = [name.strip() for name in pivot.split(",")]
        if len(names) != 3:
            raise click.UsageError(f"--pivot {pivot!r} is not DOWN,ACROSS,VALUE")
        shown = tables.pivot(shown, *names)
    else:
        shown = _chosen(shown, columns)
    if as_json:
        print_json({"rows": shown.to_dict("records")})
        return
    click.echo(tables.export(shown, form), nl=False)


def _chosen(rows: pd.DataFrame, columns: str | None) -> pd.DataFrame:
    from compiler.errors import ConfigError, unknown
    from experiments.tables import DEFAULT_COLUMNS

    if columns == "all":
        return rows
    names = [n.strip() for n in columns.split(",")] if columns else list(DEFAULT_COLUMNS)
    for name in names:
        if name not in rows:
            raise ConfigError(unknown("column", name, list(map(str, rows.columns))))
    return rows[names]
