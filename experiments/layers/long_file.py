"""Files beside the results with several lines a configuration: of layers, of sequences.

The lines of a configuration are replaced together, by renaming a new file into place, before its
row is written: a kill loses no line and leaves no half.
"""

from __future__ import annotations

import contextlib
import csv
import io
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from compiler.errors import ConfigError
from compiler.files.reading import read_bytes
from experiments.files import atomic_path, check_writable, remove_leftover
from experiments.results.csv_reading import Cells, bad_cell, number, read_cells
from experiments.results.parquet import is_parquet, read_parquet
from experiments.results.schema import RESULTS, Value

if TYPE_CHECKING:
    import pandas as pd

Line = dict[str, Value]


@dataclass(frozen=True)
class Kind:
    """A kind of such files: what one is called ("layers file"), its columns (`run_id` and
    `config_hash` are among them), which of them hold texts, what writes one, for errors, and which
    columns, of texts, files of earlier versions lack: they are read as empty."""

    what: str
    columns: tuple[str, ...]
    texts: tuple[str, ...]
    made_by: str
    later: tuple[str, ...] = ()


class LongFile:
    """A CSV of one kind, which classes of it say; several sweeps may write to it."""

    kind: ClassVar[Kind]

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
            self._write([*self._kept(config_hash), *map(self._fields, lines)])

    def remove_if_of(self, run_id: str) -> None:
        """Remove the file if it was created here and holds no lines but those of this run."""
        if self._created:
            with contextlib.suppress(ConfigError, OSError), self._locked():
                at = self.kind.columns.index("run_id")
                if all(r[at] == run_id for r in self._records()):
                    self.path.unlink()

    def _kept(self, config_hash: str) -> list[list[str]]:
        """The lines of the other configurations."""
        key = self.kind.columns.index("config_hash")
        return [r for r in self._records() if r[key] != config_hash]

    def _write(self, records: Sequence[Sequence[str]]) -> None:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([self.kind.columns, *records])
        with atomic_path(self.path, locked=True) as temporary:
            temporary.write_text(text.getvalue())

    def _fields(self, line: Line) -> list[str]:
        values: list[Any] = [line[name] for name in self.kind.columns]
        return ["" if v is None else repr(v) if isinstance(v, float) else str(v) for v in values]

    def _records(self) -> list[list[str]]:
        """The lines below the header; none of a file that is not there."""
        if not os.path.exists(self.path):
            return []
        cells = _cells(self.path, self.kind)
        return list(map(list, zip(*map(cells.column, self.kind.columns), strict=True)))

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


def beside(results: str | os.PathLike[str], name: str) -> Path:
    """`study.NAME.csv` for the results file `study.csv`; for `study.parquet` it is
    `study.NAME.parquet`, if there is one."""
    copy = Path(results).with_suffix(f".{name}.parquet")
    return copy if is_parquet(results) and os.path.exists(copy) else copy.with_suffix(".csv")


def read_long(path: str | os.PathLike[str], kind: Kind) -> pd.DataFrame:
    """A file of that kind, CSV or Parquet, as a table; missing numbers are NaN.

    Raises:
        ConfigError: there is no such file, or it is none.
    """
    import pandas as pd

    if not os.path.exists(path):
        raise ConfigError(f"there is no {kind.what} {path}; {kind.made_by} writes one")
    if is_parquet(path):
        table = read_parquet(path)
        table = table.assign(**{n: "" for n in kind.later if n not in table.columns})
        if tuple(table.columns) != kind.columns:
            raise ConfigError(f"{path} is not a {kind.what} of this version; choose another name")
        return table
    cells = _cells(Path(path), kind)
    return pd.DataFrame({name: _values(name, cells, path, kind) for name in kind.columns})


def _values(name: str, cells: Cells, path: str | os.PathLike[str], kind: Kind) -> Any:
    """A column's values; numbers have one dtype."""
    import pandas as pd

    texts = cells.column(name)
    if name in kind.texts:
        return texts
    found = []
    for row, text in zip(cells.numbers, texts, strict=True):
        try:
            found.append(number(text))
        except ValueError as error:
            raise bad_cell(path, row, name, error) from None
    return pd.to_numeric(pd.Series(found, dtype=None if found else object))


def _cells(path: Path, kind: Kind) -> Cells:
    cells = read_cells(read_bytes(path, f"the {kind.what}", most=RESULTS), path)
    if not set(kind.columns) - set(kind.later) <= set(cells.names):
        raise ConfigError(f"{path} is not a {kind.what} of this version; choose another name")
    return cells
