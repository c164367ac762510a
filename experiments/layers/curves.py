"""The file of curves: how the loss of a training went, some steps a CSV line, beside the file of
its runs."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from .long_file import Kind, Line, LongFile, beside, read_long

if TYPE_CHECKING:
    import pandas as pd

_TEXT = ("run_id", "config_hash")


@dataclass(frozen=True)
class Point:
    """One line of a curve.

    Attributes:
        step: how many are done. epoch: how many of these, with the part of the last.
        loss: the mean of the steps since the line before.
        metric: on the test examples; None but at the end of an epoch.
        rate, scale: the learning rate and the loss scale of the last step.
        skipped: steps that changed nothing, so far.
    """

    step: int
    epoch: float
    loss: float
    metric: float | None
    rate: float
    scale: float
    skipped: int


CURVE_COLUMNS = (*_TEXT, "step", "epoch", "loss", "metric", "rate", "scale", "skipped")
_KIND = Kind("file of curves", CURVE_COLUMNS, _TEXT, "dtypelab train")


def curves_path(results: str | os.PathLike[str]) -> Path:
    """`x.curves.csv` for the runs in `x.csv`."""
    return beside(results, "curves")


def curve_lines(run_id: str, config_hash: str, points: Iterable[Point]) -> list[Line]:
    """The lines of a run."""
    return [{"run_id": run_id, "config_hash": config_hash, **asdict(p)} for p in points]


class CurvesFile(LongFile):
    """A CSV of curves."""

    kind = _KIND


def read_curves(path: str | os.PathLike[str]) -> pd.DataFrame:
    """A file of curves as a table; missing numbers are NaN; see `read_long`."""
    return read_long(path, _KIND)
