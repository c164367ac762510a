"""Results as tables to work with: filtered, pivoted, and exported as text."""

from __future__ import annotations

import math
import operator
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compiler.errors import ConfigError, unknown
from compiler.files.printable import printable
from experiments.files import atomic_path

from . import parquet
from .csv_reading import is_number
from .row_names import scheme_names

if TYPE_CHECKING:
    import pandas as pd

DEFAULT_COLUMNS = (
    *("model", "scheme", "n_eval", "metric", "metric_drop", "metric_drop_low"),
    *("metric_drop_high", "sqnr_db", "size_bytes", "latency_ms_median", "speedup_vs_fp32"),
    "latency_noise",
)
#: What stands beside them where a row is not ok, and how much of an error is shown to people.
FAILURE_COLUMNS, ERROR_LENGTH = ("status", "error"), 72
FORMATS = ("text", "markdown", "latex", "csv")
#: Suffixes of exported files that programs read.
DATA = (".csv", parquet.SUFFIX)
SUFFIXES = {".txt": "text", ".md": "markdown", ".tex": "latex", ".csv": "csv"}

_COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "!=": operator.ne,
    "=": operator.eq,
    "<": operator.lt,
    ">": operator.gt,
}


def where(rows: pd.DataFrame, conditions: Sequence[str]) -> pd.DataFrame:
    """The rows that fulfil every condition: COLUMN, one of = != < <= > >=, VALUE.

    Of a text column, = and != take patterns with * and ?.

    Raises:
        ConfigError: an unknown column, or a condition that is none.
    """
    from fnmatch import fnmatchcase

    for condition in conditions:
        found = re.fullmatch(r"\s*(\w+)\s*(<=|>=|!=|=|<|>)\s*(.*?)\s*", condition)
        if found is None:
            raise ConfigError(f"{condition!r} is not COLUMN=VALUE (or != < <= > >=)")
        name, sign, text = found.groups()
        column = rows[_known(rows, name)]
        if column.dtype.kind in "iuf":
            try:
                value = float(text)
            except ValueError:
                raise ConfigError(f"{name} is a number, {text!r} is none") from None
            rows = rows[_COMPARISONS[sign](column, value)]
        elif sign in ("=", "!="):
            fits = column.map(lambda v, pattern=text: fnmatchcase(str(v), pattern))
            rows = rows[fits if sign == "=" else ~fits]
        else:
            raise ConfigError(f"{name} is text: {condition!r} needs = or !=")
    return rows.reset_index(drop=True)


def columns(rows: pd.DataFrame, names: Sequence[str]) -> pd.DataFrame:
    """Some of the columns, in this order.

    Raises:
        ConfigError: an unknown column.
    """
    return rows[[_known(rows, name) for name in names]]


def usual_columns(rows: pd.DataFrame) -> pd.DataFrame:
    """The columns that are shown where nobody names any: also status and error, where a row is not
    ok."""
    failed = bool((rows["status"] != "ok").any())
    return columns(rows, (*DEFAULT_COLUMNS, *(FAILURE_COLUMNS if failed else ())))


def shortened(table: pd.DataFrame) -> pd.DataFrame:
    """The table with errors that fit a line."""
    if "error" not in table:
        return table
    texts = table["error"].map(str)
    short = texts.where(texts.str.len() <= ERROR_LENGTH, texts.str[: ERROR_LENGTH - 3] + "...")
    return table.assign(error=short)


def pivot(rows: pd.DataFrame, down: str, across: str, value: str) -> pd.DataFrame:
    """One line for every value of the column `down`, one column for every value of `across`; a
    scheme stands there with the way it forms sums, where that tells rows apart.

    Raises:
        ConfigError: an unknown column, or several rows for one place of the table.
    """
    for name in (down, across, value):
        _known(rows, name)
    if "scheme" in (down, across) and "accumulate" in rows:
        rows = rows.assign(scheme=scheme_names(rows))
    twice = rows.duplicated([down, across])
    if twice.any():
        row = rows[twice].iloc[0]
        raise ConfigError(
            f"several rows have {down}={row[down]} and {across}={row[across]}: "
            "leave some out with --where, or take system for scheme, which tells more of them apart"
        )
    wide = rows.pivot(index=down, columns=across, values=value)
    wide = wide.reindex(index=rows[down].unique(), columns=rows[across].unique())
    wide.columns.name = None
    return wide.reset_index()


def write(table: pd.DataFrame, path: str | os.PathLike[str]) -> None:
    """Write the table as a file whose suffix says the form: see `SUFFIXES`.

    Raises:
        ConfigError: another suffix, a file that cannot be written, or Parquet without pyarrow.
    """
    suffix = Path(path).suffix
    if suffix == parquet.SUFFIX:
        parquet.write_parquet(table, path)
        return
    if suffix not in SUFFIXES:
        raise ConfigError(f"{path}: {unknown('suffix', suffix, (*SUFFIXES, parquet.SUFFIX))}")
    text = export(table, SUFFIXES[suffix])
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def export(table: pd.DataFrame, form: str, decimals: int = 4) -> str:
    """The table as text: aligned `text`, `markdown`, `latex` (booktabs) or `csv`.

    Raises:
        ConfigError: another form.
    """
    if form not in FORMATS:
        raise ConfigError(unknown("form of table", form, FORMATS))
    if form == "csv":
        return str(neutral(table).to_csv(index=False))
    cells = [
        [printable(_shown(value, decimals)) for value in line]
        for line in table.itertuples(index=False, name=None)
    ]
    head = [printable(str(name)) for name in table.columns]
    numeric = [table[name].dtype.kind in "iuf" for name in table.columns]
    if form == "latex":
        return _latex(head, cells, numeric)
    widths = [max(map(len, column)) for column in zip(head, *cells, strict=True)]
    rows = [
        [t.rjust(w) if n else t.ljust(w) for t, w, n in zip(line, widths, numeric, strict=True)]
        for line in (head, *cells)
    ]
    if form == "text":
        return "".join("  ".join(line).rstrip() + "\n" for line in rows)
    rows = [[text.replace("|", "\\|").replace("<", "\\<") for text in line] for line in rows]
    rule = ["-" * (w - 1) + (":" if n else "-") for w, n in zip(widths, numeric, strict=True)]
    rows.insert(1, rule)
    return "".join("| " + " | ".join(line) + " |\n" for line in rows)


def neutral(table: pd.DataFrame) -> pd.DataFrame:
    """A table whose texts a spreadsheet shows and does not compute: those that it would take for a
    formula begin with an apostrophe, and what is no visible character is escaped."""
    changed = {
        name: [_neutral(value) if isinstance(value, str) else value for value in table[name]]
        for name in table.columns
        if table[name].dtype.kind not in "iufb"
    }
    named = table.assign(**changed) if changed else table
    return named.rename(columns=lambda name: _neutral(str(name)))


def _neutral(text: str) -> str:
    text = printable(text)
    if not text.startswith(_FORMULA) or is_number(text):
        return text
    return f"'{text}"


_FORMULA = ("=", "+", "-", "@")
_LATEX = {c: f"\\{c}" for c in "&%$#_{}"} | {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
}


def _latex(head: Sequence[str], cells: Sequence[Sequence[str]], numeric: Sequence[bool]) -> str:
    def line(texts: Sequence[str]) -> str:
        text = " & ".join("".join(_LATEX.get(c, c) for c in text) for text in texts) + r" \\"
        # After the end of a row these two would be an argument of it, not text.
        return f"{{{text[0]}}}{text[1:]}" if text[0] in "[*" else text

    return "\n".join(
        [
            r"\begin{tabular}{" + "".join("r" if n else "l" for n in numeric) + "}",
            *(r"\toprule", line(head), r"\midrule", *map(line, cells), r"\bottomrule"),
            r"\end{tabular}",
            "",
        ]
    )


def _shown(value: Any, decimals: int) -> str:
    if isinstance(value, float):
        if math.isnan(value):
            return ""
        if math.isinf(value):
            return "inf" if value > 0 else "-inf"
        return f"{value:.{decimals}f}".rstrip("0").rstrip(".") if value else "0"
    return str(value)


def _known(rows: pd.DataFrame, name: str) -> str:
    if name not in rows:
        raise ConfigError(unknown("column", name, list(map(str, rows.columns))))
    return name
