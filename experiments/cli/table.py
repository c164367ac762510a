"""dtypelab table."""

from __future__ import annotations

import re
from collections.abc import Container
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from experiments.files import check_outputs
from experiments.layers.gaps import gaps_path, is_gaps, read_gaps
from experiments.layers.sequences import is_sequences, read_sequences, sequences_path
from experiments.layers.table import is_layers, layers_path, read_layers
from experiments.layers.trainings import SHOWN_COLUMNS, is_runs, read_runs
from experiments.measure.statistics import HOLM, adjusted, warning
from experiments.results import export
from experiments.results.column_meanings import SYSTEM
from experiments.results.row_names import OUTPUT, judged_outputs, system_names
from experiments.results.store import read_rows

from .columns_help import WithColumns
from .common import json_option, print_json, say, say_text

if TYPE_CHECKING:
    import pandas as pd


@click.command(cls=WithColumns, short_help="Filter, pivot, compare and export results.")
@click.argument("results", type=click.Path(path_type=Path), metavar="NAME.csv")
@click.option("--where", "conditions", multiple=True, metavar="COLUMN=VALUE", help="Also != < > *.")
@click.option("--columns", metavar="A,B,...", help="Columns to show; 'all' for every one.")
@click.option("--pivot", metavar="DOWN,ACROSS,VALUE", help="For example model,scheme,metric.")
@click.option(
    "--compare", "other", type=click.Path(path_type=Path), metavar="NEWER.csv", help="What changed."
)
@click.option("--paired", metavar="SYSTEM", help="Language models: each cell against this one.")
@click.option("--format", "form", default="text", show_default=True, metavar="FORM",
              help="text, markdown, latex or csv.")  # fmt: skip
@click.option("--export", "out", type=click.Path(path_type=Path), metavar="FILE",
              help="Write FILE instead: .parquet, .csv, .md, .tex or .txt.")  # fmt: skip
@json_option
def table(
    results: Path,
    conditions: tuple[str, ...],
    columns: str | None,
    pivot: str | None,
    other: Path | None,
    paired: str | None,
    form: str,
    out: Path | None,
    as_json: bool,
) -> None:
    """Show a results file as the table you need, in the form your paper needs.

    Results may be CSV or Parquet, and so may files of layers (NAME.layers.csv), of sequences
    (NAME.sequences.csv), of gaps (NAME.gaps.csv) and of runs of training. What is exported
    as data (.csv, .parquet) has every column, unless --columns or --pivot says which: such a file
    is a results file again. The column `system` is the scheme with whatever else tells rows apart
    (calibrator, accumulation, threads ...); it can be asked for though no file has it. So can
    `output`, which is judged of a network with several, and `p_holm`: p-values corrected by Holm's
    method for all rows of the file, which `p_value` is not.

    --paired compares cells of language models sequence by sequence, by the file of sequences that
    lies beside the results: how much more loss, and divergence from float32, a token has than in
    the cell called SYSTEM, in nats, with 95 % intervals.

    Example: dtypelab table recorded.csv --pivot system,model,metric --format latex
    """
    from experiments.results import comparison

    if sum(option is not None for option in (columns, pivot, other, paired)) > 1:
        raise click.UsageError("give one of --columns, --pivot, --compare and --paired")
    if paired is not None and _is_long(results):
        raise click.UsageError("--paired compares results: give the file of these")
    if other is not None and (_is_long(results) or _is_long(other)):
        raise click.UsageError("--compare compares results of sweeps")
    beside = (layers_path(results), sequences_path(results), gaps_path(results))
    check_outputs([out], [results, *beside, other])
    asked = re.split(r"\W+", ",".join([*conditions, columns or "", pivot or ""]))
    shown = export.where(_read(results, asked), conditions)
    plain = _is_long(results) or other is not None or paired is not None
    notes = [] if plain else _notes(shown)
    if other is not None:
        newer = export.where(_read(other, asked), conditions)
        shown = comparison.compare(shown, newer)
    elif paired is not None:
        from experiments.layers.paired import paired_differences

        shown = paired_differences(shown, paired, sequences_path(results))
    elif pivot is not None:
        names = [name.strip() for name in pivot.split(",")]
        if len(names) != 3:
            raise click.UsageError(f"--pivot {pivot!r} is not DOWN,ACROSS,VALUE")
        shown = export.pivot(shown, *names)
    elif columns is not None:
        if columns != "all":
            shown = export.columns(shown, [name.strip() for name in columns.split(",")])
    elif out and out.suffix in export.DATA:
        pass
    elif is_runs(results):
        shown = export.columns(shown, SHOWN_COLUMNS)
    elif not _is_long(results):
        shown = export.usual_columns(shown)
        # People read the start of an error, programs all of it.
        shown = shown if as_json or out else export.shortened(shown)
    if out is not None:
        export.write(shown, out)
    if as_json:
        print_json({"rows": shown.to_dict("records")})
        return
    named = {*map(str, shown.columns), *asked}
    for note in notes:
        if note.about & named and not (note.unless and note.unless <= named):
            say(note.text, err=True)
    if out is not None:
        say(f"{out}: {len(shown)} rows, {len(shown.columns)} columns")
    else:
        say_text(export.export(shown, form))


@dataclass(frozen=True)
class _Note:
    """What a reader of some columns must know, unless others are shown as well."""

    about: set[str]
    text: str
    unless: frozenset[str] = frozenset()


def _notes(rows: pd.DataFrame) -> list[_Note]:
    """What a reader of some of the columns must know of the rows."""
    found = []
    if text := warning(rows):
        found.append(_Note({"p_value"}, text, frozenset({HOLM})))
    if lost := int((rows["outputs_not_finite"] > 0).sum()):
        told = f"outputs of {lost} of the {len(rows)} rows hold NaN or infinity"
        found.append(_Note({"metric", "metric_drop"}, f"{told}: see outputs_not_finite"))
    if failed := int((rows["status"] != "ok").sum()):
        told = f"{failed} of the {len(rows)} rows failed"
        why = "--columns model,scheme,status,error says why"
        unless = frozenset(export.FAILURE_COLUMNS)
        found.append(_Note({*map(str, rows.columns)}, f"{told}: {why}", unless))
    return found


def _is_long(path: Path) -> bool:
    """Whether a file is beside results, or instead of them: it has columns of its own."""
    return is_layers(path) or is_sequences(path) or is_gaps(path) or is_runs(path)


def _read(path: Path, asked: Container[str]) -> pd.DataFrame:
    """A file of layers, of sequences, of gaps, of runs or of results, these with the columns that
    are asked for and in no file."""
    if is_layers(path):
        return read_layers(path)
    if is_sequences(path):
        return read_sequences(path)
    if is_gaps(path):
        return read_gaps(path)
    if is_runs(path):
        return read_runs(path)
    rows = read_rows(path)
    if SYSTEM in asked:
        rows = rows.assign(**{SYSTEM: system_names(rows)})
    if OUTPUT in asked:
        rows = rows.assign(**{OUTPUT: judged_outputs(rows)})
    return rows.assign(**{HOLM: adjusted(rows)}) if HOLM in asked else rows
