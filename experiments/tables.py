"""Results as tables to work with: filtered, pivoted, compared, and exported as text."""

from __future__ import annotations

import math
import operator
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compiler.errors import ConfigError, unknown

from . import noise, parquet
from .files import atomic_path
from .scoring import is_share

if TYPE_CHECKING:
    import pandas as pd

#: What a row is, as opposed to what came out: rows of two files that agree here are compared.
KEYS = (
    *("model", "model_sha256", "dataset", "n_eval", "n_calib", "seed", "scheme", "dtype"),
    *("accumulate", "weight_bits", "activation_bits", "granularity", "symmetry", "calibrator"),
    *("target", "threads", "batch"),
)
DEFAULT_COLUMNS = (
    *("model", "scheme", "n_eval", "metric", "metric_drop", "metric_drop_low"),
    *("metric_drop_high", "sqnr_db", "size_bytes", "latency_ms_median", "speedup_vs_fp32"),
    "latency_noise",
)
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


def pivot(rows: pd.DataFrame, down: str, across: str, value: str) -> pd.DataFrame:
    """One line for every value of the column `down`, one column for every value of `across`.

    Raises:
        ConfigError: an unknown column, or several rows for one place of the table.
    """
    for name in (down, across, value):
        _known(rows, name)
    twice = rows.duplicated([down, across])
    if twice.any():
        row = rows[twice].iloc[0]
        raise ConfigError(
            f"several rows have {down}={row[down]} and {across}={row[across]}: "
            "leave some out with --where"
        )
    wide = rows.pivot(index=down, columns=across, values=value)
    wide = wide.reindex(index=rows[down].unique(), columns=rows[across].unique())
    wide.columns.name = None
    return wide.reset_index()


def compare(before: pd.DataFrame, after: pd.DataFrame) -> pd.DataFrame:
    """What changed between two results: a line for every cell that both have.

    Columns: model, scheme, metric_before, metric_after, change, p_value (of shares: two-sided, as
    if the two runs had seen different inputs, which is cautious), sqnr_change_db, speed (median
    latency before over after) and slower_or_faster ("noise" where the ranges from fastest to 90th
    percentile overlap, or others used the machine meanwhile).

    Raises:
        ConfigError: the two have no cell in common.
    """
    import pandas as pd

    keys = [k for k in KEYS if k in before and k in after]
    both = before.merge(after, on=keys, suffixes=("_before", "_after"))
    if both.empty:
        raise ConfigError("the two files have no cell in common: nothing to compare")
    lines = []
    for row in both.to_dict("records"):
        was, now, n = row["metric_before"], row["metric_after"], row["n_eval"]
        name = row["metric_name_after"]
        lines.append(
            {
                "model": row["model"],
                "scheme": row["scheme"],
                "metric_before": was,
                "metric_after": now,
                "change": now - was,
                "p_value": two_shares(was, now, n) if is_share(name) else math.nan,
                "sqnr_change_db": _difference(row["sqnr_db_after"], row["sqnr_db_before"]),
                "speed": row["latency_ms_median_before"] / row["latency_ms_median_after"],
                "slower_or_faster": _verdict(row),
            }
        )
    return pd.DataFrame(lines)


def two_shares(was: float, now: float, n: float) -> float:
    """Two-sided p-value of a z test with pooled variance for two shares of n; NaN without both."""
    if any(map(math.isnan, (was, now, n))):
        return math.nan
    pooled = (was + now) / 2
    spread = math.sqrt(2 * pooled * (1 - pooled) / n)
    return math.erfc(abs(now - was) / spread / math.sqrt(2)) if spread else 1.0


def _difference(a: float, b: float) -> float:
    return 0.0 if a == b else a - b


def _verdict(row: dict[Any, Any]) -> str:
    edges = [row[f"latency_ms_{e}_{when}"] for e in ("min", "p90") for when in ("before", "after")]
    if any(map(math.isnan, edges)):
        return ""
    fastest, slowest = edges[:2], edges[2:]
    disturbed = {r for w in ("before", "after") for r in noise.read(row[f"latency_noise_{w}"])}
    if max(fastest) <= min(slowest) or disturbed & {noise.PREEMPTED, noise.LOADED}:
        return "noise"
    return "faster" if fastest[1] < fastest[0] else "slower"


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
        return str(table.to_csv(index=False))
    cells = [
        [_shown(value, decimals) for value in line]
        for line in table.itertuples(index=False, name=None)
    ]
    head = [str(name) for name in table.columns]
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
    rule = ["-" * (w - 1) + (":" if n else "-") for w, n in zip(widths, numeric, strict=True)]
    rows.insert(1, rule)
    return "".join("| " + " | ".join(line) + " |\n" for line in rows)


def _latex(head: Sequence[str], cells: Sequence[Sequence[str]], numeric: Sequence[bool]) -> str:
    def line(texts: Sequence[str]) -> str:
        return " & ".join(re.sub(r"([&%$#_{}])", r"\\\1", t) for t in texts) + r" \\"

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
