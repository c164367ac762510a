"""The results file: one CSV row per configuration, appended so that a kill loses nothing.

A row is written by a single `write` and an `fsync` while the file is locked, and ends in a newline;
a last line without one is what a killed writer left, and is cut off when the file is next opened.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from compiler.errors import ConfigError
from compiler.files.reading import open_file, read_bytes
from experiments.files import atomic_path, check_writable, remove_leftover

from .csv_reading import read_cells
from .parquet import is_parquet, read_parquet
from .schema import (
    COLUMNS,
    RESULTS,
    SCHEMA_VERSION,
    TEXT_COLUMNS,
    VOLATILE_COLUMNS,
    Value,
    check_columns,
    check_version,
)
from .text import encode, foreign_cells, line_of, parse, text_column, values_of, whole_lines

if TYPE_CHECKING:
    import pandas as pd


class ResultsFile:
    """A results CSV that several processes may append to; at most one row per `config_hash`."""

    def __init__(self, path: str | os.PathLike[str], *, resume: bool = False) -> None:
        """Create the file, or with `resume` continue one that may exist, dropping a torn last line.

        A file of an earlier schema version is rewritten in this one; its rows stay.

        Raises:
            ConfigError: it exists and `resume` is false, its folder is missing or cannot be
                written, or it is not a results file of this schema version or an earlier one.
        """
        self.path = Path(path)
        self._status: dict[str, str] = {}
        self._seen = (-1, -1)
        self._created = self._create(resume)
        try:
            self._migrate()
            with self._locked() as descriptor:
                remove_leftover(self.path)
                self._repair(descriptor)
                self._refresh(descriptor)
        except ConfigError:
            self.remove_if_empty()
            raise

    @property
    def status(self) -> Mapping[str, str]:
        """`config_hash` -> "ok", "error" or "timeout" of every row, as last seen."""
        return self._status

    def append(self, row: Mapping[str, Value]) -> bool:
        """Append a row; False when a row with its `config_hash` is already there.

        Raises:
            ConfigError: the row's columns are not exactly those of the schema, or the disk is full.
        """
        line = encode(row)
        with self._locked() as descriptor:
            self._repair(descriptor)
            self._refresh(descriptor)
            if row["config_hash"] in self._status:
                return False
            try:
                _append(descriptor, line)
            except OSError as error:
                raise ConfigError(f"cannot append to {self.path}: {error}") from error
            self._refresh(descriptor)
        return True

    def replace(self, row: Mapping[str, Value]) -> None:
        """Put `row` where the row with its `config_hash` stands (or at the end), atomically.

        Raises:
            ConfigError: the row's columns are not exactly those of the schema.
        """
        line = encode(row)
        with self._locked() as descriptor:
            self._repair(descriptor)
            records = read_cells(_read_all(descriptor), self.path).rows
            key = COLUMNS.index("config_hash")
            kept = [line_of(record) for record in records]
            places = [i for i, record in enumerate(records) if record[key] == row["config_hash"]]
            if places:
                kept[places[0]] = line
            else:
                kept.append(line)
            with atomic_path(self.path, locked=True) as temporary:
                temporary.write_bytes(line_of(COLUMNS) + b"".join(kept))
        with self._locked() as descriptor:
            self._refresh(descriptor)

    def remove_if_empty(self) -> bool:
        """Remove the file if it was created here and nobody has written a row to it; whether that
        was so."""
        if self._created:
            with contextlib.suppress(ConfigError, OSError), self._locked() as descriptor:
                if line_of(COLUMNS).startswith(_read_all(descriptor)):
                    # Whoever waits for the lock finds the file gone, and makes a new one.
                    self.path.unlink()
                    return True
        return False

    def read(self) -> pd.DataFrame:
        """The whole file as a table; see `read_rows`."""
        return read_rows(self.path)

    def _create(self, resume: bool) -> bool:
        """Make the file if need be; whether that was needed."""
        if is_parquet(self.path):
            raise ConfigError(
                f"a sweep appends rows, which Parquet cannot: write {self.path.stem}.csv, then "
                f"dtypelab table {self.path.stem}.csv --export {self.path.name}"
            )
        check_writable(self.path, appended=True)
        if resume and os.path.exists(self.path):
            open_file(self.path, "results", most=RESULTS).close()  # not too large to be read
        try:
            os.close(os.open(self.path, os.O_CREAT | os.O_RDWR | os.O_EXCL, 0o666))
        except FileExistsError as error:
            if resume:
                return False
            raise ConfigError(
                f"{self.path} exists already; continue it with --resume or choose another name"
            ) from error
        except OSError as error:
            raise ConfigError(
                f"cannot write results to {self.path}: {error.strerror or error}"
            ) from error
        return True

    @contextlib.contextmanager
    def _locked(self) -> Iterator[int]:
        """An open descriptor of the file as it stands, under an exclusive inter-process lock."""
        while True:
            descriptor = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o666)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                # `replace` renames a new file into place: the lock must be on that one.
                if _same_file(descriptor, self.path):
                    yield descriptor
                    return
            except OSError as error:
                reason = error.strerror or error
                raise ConfigError(f"cannot write results to {self.path}: {reason}") from error
            finally:
                os.close(descriptor)

    def _migrate(self) -> None:
        """Rewrite a file of an earlier schema version, or one that others have left in another
        form, atomically; what cannot be read is refused before there is anything to lose."""
        with self._locked() as descriptor:
            data = _read_all(descriptor)
            header = line_of(COLUMNS)
            if header.startswith(data):
                return
            if data.startswith(header):
                data = data[: whole_lines(data)]
            cells = foreign_cells(data, self.path)
            others = [name for name in cells.names if name not in COLUMNS]
            if others:
                raise ConfigError(
                    f"{self.path} has columns that are not ours, which would be lost: "
                    f"{', '.join(others)}; remove them, or choose another name for the results"
                )
            values_of(cells, self.path)
            columns = [text_column(name, cells) for name in COLUMNS]
            whole = header + b"".join(map(line_of, zip(*columns, strict=True)))
            if whole != data:
                with atomic_path(self.path, locked=True) as temporary:
                    temporary.write_bytes(whole)

    def _repair(self, descriptor: int) -> None:
        """Write the header of a new file, and cut off a torn last line, under the lock."""
        data = _read_all(descriptor)
        header = line_of(COLUMNS)
        if not data.startswith(header):
            if not header.startswith(data):
                check_columns((), self.path)
            _append(descriptor, header[len(data) :])
            return
        whole = whole_lines(data)
        if whole < len(data):
            os.ftruncate(descriptor, whole)
            os.fsync(descriptor)

    def _refresh(self, descriptor: int) -> None:
        """Read the hashes again when another process may have written since."""
        information = os.fstat(descriptor)
        seen = (information.st_ino, information.st_size)
        if seen == self._seen:
            return
        key, status = COLUMNS.index("config_hash"), COLUMNS.index("status")
        found: dict[str, str] = {}
        for record in read_cells(_read_all(descriptor), self.path).rows:
            found[record[key]] = record[status]
        self._status, self._seen = found, seen


def read_rows(path: str | os.PathLike[str]) -> pd.DataFrame:
    """A results file as a table: text columns hold strings ("" when empty), the others numbers.

    A CSV, or a Parquet file made of one by `dtypelab table --export`. Its columns may stand in
    another order; columns that are none of ours come last, as text.

    Raises:
        ConfigError: the file cannot be read or is not a results file of this schema version or an
            earlier one, or a cell does not hold what it must.
    """
    import pandas as pd

    if is_parquet(path):
        return _current(read_parquet(path), Path(path))
    data = read_bytes(path, "results", most=RESULTS)
    return pd.DataFrame(values_of(foreign_cells(data, path), path))


def _current(table: pd.DataFrame, path: Path) -> pd.DataFrame:
    """A table of this schema version or an earlier one, with all the columns of this one.

    Raises:
        ConfigError: it is none, or a column holds texts for numbers or numbers for texts.
    """
    names = tuple(map(str, table.columns))
    check_columns(names, path)
    kinds = {name: table[name].dtype.kind for name in names if name in COLUMNS}
    for name, kind in kinds.items():
        is_text = name in TEXT_COLUMNS
        # No rows have no numbers that could say what they are.
        if is_text == (kind in "iuf") and (is_text or not table.empty):
            what = "texts" if is_text else "numbers"
            raise ConfigError(f"{path}: the column {name} must hold {what}")
    check_version(table["schema_version"].tolist(), path)
    table = table.assign(**{name: parse(name, "") for name in COLUMNS if name not in table})
    return table[[*COLUMNS, *(name for name in names if name not in COLUMNS)]]


def _append(descriptor: int, data: bytes) -> None:
    """Write all of the data at the end, or none of it.

    Raises:
        OSError: it cannot be written.
    """
    end = os.lseek(descriptor, 0, os.SEEK_END)
    try:
        if os.write(descriptor, data) != len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.fsync(descriptor)
    except OSError:
        os.ftruncate(descriptor, end)
        raise


def _read_all(descriptor: int) -> bytes:
    size = os.fstat(descriptor).st_size
    parts, offset = [], 0
    while offset < size:
        part = os.pread(descriptor, size - offset, offset)
        if not part:
            break
        parts.append(part)
        offset += len(part)
    return b"".join(parts)


def _same_file(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


__all__ = [
    "COLUMNS",
    "SCHEMA_VERSION",
    "VOLATILE_COLUMNS",
    "ResultsFile",
    "Value",
    "read_rows",
]
