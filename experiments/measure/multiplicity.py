"""p-values of a whole table: which rows are tests, and what there being several of them means."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from .statistics import SIGNIFICANT, holm

if TYPE_CHECKING:
    import pandas as pd

HOLM = "p_holm"
"""The name of the adjusted p-values, which no file has: they depend on all rows together."""


def tests(rows: pd.DataFrame) -> list[int]:
    """Positions of the rows whose p-value tests something: float32 beside itself does not."""
    pairs = zip(rows["p_value"], rows["dtype"], strict=True)
    return [k for k, (p, dtype) in enumerate(pairs) if not math.isnan(p) and dtype != "float32"]


def adjusted(rows: pd.DataFrame) -> list[float]:
    """The p-value of every row, adjusted by Holm's method for all tests among the rows; NaN where
    there is none."""
    at = tests(rows)
    found = [math.nan] * len(rows)
    for k, p in zip(at, holm([float(rows["p_value"].iloc[k]) for k in at]), strict=True):
        found[k] = p
    return found


def warning(rows: pd.DataFrame) -> str:
    """What a reader of the rows' plain p-values must know; empty for less than two tests."""
    count = len(tests(rows))
    if count < 2:
        return ""
    return (
        f"p-values are each row's own, not corrected for there being {count} of them: if nothing "
        f"differed, about {SIGNIFICANT * count:.2g} would be below {SIGNIFICANT}; {HOLM} is "
        "corrected (Holm's method over all rows)"
    )
