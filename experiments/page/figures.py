"""Figures as a reader sees them: few digits, with the unit that fits their size."""

from __future__ import annotations

import math
from typing import Any

from experiments.results.column_meanings import (
    BYTES,
    DECIBELS,
    MACS,
    MICROJOULES,
    MS,
    OF_METRIC,
    OPS,
    SECONDS,
    SHARE,
    TIMES,
    meaning,
)
from experiments.results.row_names import Merit

_BINARY = ("B", "KiB", "MiB", "GiB", "TiB")
_DECIMAL = ("", "k", "M", "G", "T", "P")
#: Units that a heading says for the whole column.
IN_HEADING = {MS, MICROJOULES, DECIBELS, SECONDS, TIMES}


def heading(column: str) -> str:
    """What a table calls a column, with its unit where that is the same for all figures."""
    m = meaning(column)
    return f"{m.title}, {m.unit}" if m.unit in IN_HEADING else m.title


def unit_of(column: str, largest: float) -> tuple[float, str]:
    """What to divide figures of a column by that reach up to `largest`, and the unit they then
    have: bytes in steps of 1024, operations in steps of 1000."""
    unit = meaning(column).unit
    if unit == BYTES:
        k = _step(largest, 1024, len(_BINARY))
        return 1024.0**k, _BINARY[k]
    if unit in (OPS, MACS):
        k = _step(largest, 1000, len(_DECIMAL))
        return 1000.0**k, _DECIMAL[k] + unit
    return 1.0, unit if unit in IN_HEADING else ""


def _step(value: float, base: int, count: int) -> int:
    if not math.isfinite(value) or abs(value) < base:
        return 0
    # What rounds up to a whole step is one: 1023.99 KiB are 1 MiB.
    return min(count - 1, int(math.log(abs(value) * 1.0005, base)))


def shown(value: Any, column: str, merit: Merit | None = None) -> str:
    """A figure of a column in a table; empty where there is none.

    Args:
        merit: the metric of its row, which says how figures of merit read.
    """
    if value is None or value == "" or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, str):
        return value
    unit = meaning(column).unit
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    if unit == SHARE or (unit == OF_METRIC and merit is not None and merit.share):
        # Adding zero makes a negative one positive.
        return f"{round(100 * value, 2) + 0.0:.2f} %"
    if unit in (BYTES, OPS, MACS):
        divisor, name = unit_of(column, value)
        return f"{digits(value / divisor)} {name}"
    return digits(value)


def digits(value: float) -> str:
    """A number in four significant digits, large integers whole with commas."""
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    if float(value).is_integer() and abs(value) < 1e15:
        return f"{int(value):,}"
    if abs(value) < 1e-4:
        return f"{value:.1e}"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    places = max(0, 3 - math.floor(math.log10(abs(value))))
    return f"{value:.{places}f}".rstrip("0").rstrip(".")
