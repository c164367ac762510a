"""The layers file: one CSV line per value of a network and configuration, beside the results file.

The lines of a configuration are replaced together, by renaming a new file into place, before its
row is written: a kill loses no line and leaves no half.
"""

from __future__ import annotations

import contextlib
import csv
import io
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compiler.errors import ConfigError
from compiler.files.reading import read_bytes
from experiments.files import atomic_path, check_writable, remove_leftover
from experiments.results.csv_reading import Cells, bad_cell, number, read_cells
from experiments.results.parquet import is_parquet, read_parquet
from experiments.results.schema import RESULTS, Value

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


Line = dict[str, Value]


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
    copy = Path(results).with_suffix(".layers.parquet")
    return copy if is_parquet(results) and os.path.exists(copy) else copy.with_suffix(".csv")


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


class LayersFile:
    """A layers CSV; several sweeps may write to it."""

    def __init__(self, path: Path, *, resume: bool = False):
        """Create the file, or with `resume` continue one that may exist.

        Raises:
            ConfigError: it exists and `resume` is false, it cannot be written, or it is none.
        """
        self.path = path
        check_writable(path, appended=True)
        if os.path.exists(path) and not resume:
            raise ConfigError(
                f"{path} exists already; continue it with --resume or choose another name"
            )
        with self._locked():
            self._created = not os.path.exists(path)
            remove_leftover(path)
            self._write(self._kept(""))

    def put(self, config_hash: str, lines: Sequence[Line]) -> None:
        """Put `lines` in place of those of this configuration."""
        with self._locked():
            self._write([*self._kept(config_hash), *map(_fields, lines)])

    def remove_if_of(self, run_id: str) -> None:
        """Remove the file if it was created here and holds no lines but those of this run."""
        if self._created:
            with contextlib.suppress(ConfigError, OSError), self._locked():
                if all(r[LAYER_COLUMNS.index("run_id")] == run_id for r in _records(self.path)):
                    self.path.unlink()

    def _kept(self, config_hash: str) -> list[list[str]]:
        """The lines of the other configurations."""
        key = LAYER_COLUMNS.index("config_hash")
        return [r for r in _records(self.path) if r[key] != config_hash]

    def _write(self, records: Sequence[Sequence[str]]) -> None:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([LAYER_COLUMNS, *records])
        with atomic_path(self.path, locked=True) as temporary:
            temporary.write_text(text.getvalue())

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """An exclusive lock between processes, on the folder: the file itself is replaced."""
        import fcntl

        folder = os.open(self.path.parent, os.O_RDONLY)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            yield
        finally:
            os.close(folder)


def read_layers(path: str | os.PathLike[str]) -> pd.DataFrame:
    """A layers file, CSV or Parquet, as a table; missing numbers are NaN.

    Raises:
        ConfigError: there is no such file, or it is none.
    """
    import pandas as pd

    if not os.path.exists(path):
        raise ConfigError(f"there is no layers file {path}; a sweep with [layers] writes one")
    if is_parquet(path):
        table = read_parquet(path)
        if tuple(table.columns) != LAYER_COLUMNS:
            raise ConfigError(f"{path} is not a layers file of this version; choose another name")
        return table
    cells = _cells(Path(path))
    return pd.DataFrame({name: _values(name, cells, path) for name in LAYER_COLUMNS})


def _values(name: str, cells: Cells, path: str | os.PathLike[str]) -> Any:
    """A column's values; numbers have one dtype."""
    import pandas as pd

    texts = cells.column(name)
    if name in _TEXT:
        return texts
    found = []
    for row, text in zip(cells.numbers, texts, strict=True):
        try:
            found.append(number(text))
        except ValueError as error:
            raise bad_cell(path, row, name, error) from None
    return pd.to_numeric(pd.Series(found, dtype=None if found else object))


def _fields(line: Line) -> list[str]:
    values: list[Any] = [line[name] for name in LAYER_COLUMNS]
    return ["" if v is None else repr(v) if isinstance(v, float) else str(v) for v in values]


def _records(path: Path) -> list[list[str]]:
    """The lines below the header; none of a file that is not there."""
    if not os.path.exists(path):
        return []
    cells = _cells(path)
    return list(map(list, zip(*map(cells.column, LAYER_COLUMNS), strict=True)))


def _cells(path: Path) -> Cells:
    cells = read_cells(read_bytes(path, "the layers file", most=RESULTS), path)
    if not set(LAYER_COLUMNS) <= set(cells.names):
        raise ConfigError(f"{path} is not a layers file of this version; choose another name")
    return cells
