"""The file of steps: for every configuration, what each ingredient of bit-exact execution changes
beside a simulation in float32 (see `experiments.gaps`), a CSV line a step, beside the results
file."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.gaps.measuring import COLUMNS
from experiments.results.schema import Value

from .long_file import Kind, Line, LongFile, beside, read_long

if TYPE_CHECKING:
    import pandas as pd

_OF_ROW = ("config_hash", "model", "scheme", "accumulate")
_TEXT = ("run_id", *_OF_ROW, "order", "ingredient", "metric")
GAP_COLUMNS = ("run_id", *_OF_ROW, "inputs", *COLUMNS)
_KIND = Kind("file of gaps", GAP_COLUMNS, _TEXT, "a sweep with [gap]")


@dataclass(frozen=True)
class GapRequest:
    """What a sweep says about gaps: simulated are the first `inputs` of the inputs that a cell
    evaluates, all if it evaluates fewer (0: none)."""

    inputs: int = 0


def gaps_path(results: str | os.PathLike[str]) -> Path:
    """`study.gaps.csv` for the results file `study.csv`."""
    return beside(results, "gaps")


def is_gaps(path: str | os.PathLike[str]) -> bool:
    """Whether a file is one of gaps, by its name."""
    return ".gaps" in Path(path).suffixes


def gap_lines(
    row: Mapping[str, Value], inputs: int, steps: Sequence[Mapping[str, Any]]
) -> list[Line]:
    """The lines of a configuration, without its run: `row` is its line in the results."""
    return [{**{name: row[name] for name in _OF_ROW}, "inputs": inputs, **s} for s in steps]


class GapsFile(LongFile):
    """A CSV of gaps."""

    kind = _KIND


def read_gaps(path: str | os.PathLike[str]) -> pd.DataFrame:
    """A file of gaps, CSV or Parquet, as a table; missing numbers are NaN; see `read_long`."""
    return read_long(path, _KIND)
