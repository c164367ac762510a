"""The layers file: one CSV line per value of a network and configuration, beside the results
file."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from experiments.results.schema import Value

from .long_file import Kind, Line, LongFile, beside, read_long

if TYPE_CHECKING:
    import pandas as pd

    from experiments.measure.layer_errors import LayerError

EVENTS = ("overflow", "underflow", "nan", "absorbed")
"""Columns of what `datatypes.custom.events` counts; empty where it was not asked for."""
_TEXT = (
    *("run_id", "config_hash", "model", "scheme", "accumulate"),
    *("value", "operator", "origins", "shape"),
)
LAYER_COLUMNS = (
    *("run_id", "config_hash", "model", "scheme", "accumulate", "images"),
    *("place", "value", "operator", "origins", "shape"),
    *("sqnr_db", "cosine", "max_abs_error"),
    *EVENTS,
)


_KIND = Kind("layers file", LAYER_COLUMNS, _TEXT, "a sweep with [layers]")


@dataclass(frozen=True)
class LayerRequest:
    """What a sweep says about layers: the first `images` evaluation images are interpreted (0:
    none), and `events` counted."""

    images: int = 0
    events: bool = False


def layers_path(results: str | os.PathLike[str]) -> Path:
    """`study.layers.csv` for the results file `study.csv`.

    For `study.parquet` it is `study.layers.parquet`, if there is one.
    """
    return beside(results, "layers")


def is_layers(path: str | os.PathLike[str]) -> bool:
    """Whether a file is one of layers, by its name."""
    return ".layers" in Path(path).suffixes


def layer_lines(row: Mapping[str, Value], images: int, errors: Sequence[LayerError]) -> list[Line]:
    """The lines of a configuration, without its run: `row` is its line in the results."""
    common = {name: row[name] for name in ("config_hash", "model", "scheme", "accumulate")}
    lines: list[Line] = []
    for place, e in enumerate(errors):
        counts = {name: getattr(e.events, name) if e.events else None for name in EVENTS}
        lines.append({
            **common, "images": images, "place": place, "value": e.value, "operator": e.operator,
            "origins": " ".join(e.origins), "shape": "x".join(map(str, e.shape)),
            "sqnr_db": e.sqnr_db, "cosine": e.cosine, "max_abs_error": e.max_abs_error, **counts,
        })  # fmt: skip
    return lines


class LayersFile(LongFile):
    """A layers CSV."""

    kind = _KIND


def read_layers(path: str | os.PathLike[str]) -> pd.DataFrame:
    """A layers file, CSV or Parquet, as a table; missing numbers are NaN; see `read_long`."""
    return read_long(path, _KIND)
