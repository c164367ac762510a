"""The results file: one CSV row per configuration, appended so that a kill loses nothing.

A row is written by a single `write` and an `fsync` while the file is locked, and ends in a newline;
a last line without one is what a killed writer left, and is cut off when the file is next opened.
"""

from __future__ import annotations

import contextlib
import csv
import fcntl
import io
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from compiler.errors import ConfigError
from compiler.files.printable import printable
from compiler.files.reading import open_file, read_bytes
from experiments.files import atomic_path, check_writable, remove_leftover

from .csv_reading import Cells, bad_cell, number, read_cells
from .parquet import is_parquet, read_parquet

if TYPE_CHECKING:
    import pandas as pd

SCHEMA_VERSION = 6
RESULTS = 1 << 30
"""Bytes that a results file may have, see `compiler.files.reading`."""

Value: TypeAlias = str | int | float | None

_TEXT = (
    *("run_id", "config_hash", "status", "error", "model", "model_sha256", "dataset"),
    *("scheme", "dtype", "lowering", "accumulate", "granularity", "symmetry", "calibrator"),
    *("skipped", "target", "isa", "cpu", "os", "python", "numpy", "llvmlite", "dtypelab_version"),
    *("git_rev", "git_dirty", "started_utc", "config", "metric_name", "dataset_sha256"),
    *("latency_noise", "portable_bits", "notes"),
)

COLUMNS = (
    *("run_id", "schema_version", "config_hash", "status", "error"),
    *("model", "model_sha256", "opset"),
    *("dataset", "n_eval", "n_calib", "seed"),
    *("scheme", "dtype", "lowering", "accumulate", "weight_bits", "activation_bits"),
    *("granularity", "symmetry", "calibrator", "skipped"),
    *("metric", "metric_fp32", "metric_drop", "sqnr_db", "cosine", "top1_agreement"),
    *("size_bytes", "macs"),
    *("batch", "threads", "warmup", "runs"),
    *("latency_ms_min", "latency_ms_median", "latency_ms_mean"),
    *("latency_ms_p90", "latency_ms_p99", "latency_ms_stdev", "speedup_vs_fp32"),
    *("target", "isa", "cpu", "cores", "os", "python", "numpy", "llvmlite", "dtypelab_version"),
    *("git_rev", "git_dirty"),
    *("started_utc", "duration_s"),
    # Version 2.
    *("metric_drop_low", "metric_drop_high", "p_value"),
    *("bit_operations", "activation_bytes", "energy_uj"),
    "config",
    # Version 3.
    *("metric_name", "dataset_sha256", "repeat"),
    # Version 4.
    *("latency_rounds", "speedup_low", "speedup_high"),
    *("latency_lost", "latency_load", "latency_noise"),
    # Version 5.
    *("traffic_bytes", "energy_memory_uj"),
    *("outputs_not_finite", "portable_bits", "detectable_drop"),
    # Version 6.
    "notes",
)

#: What each version added at the end; files of earlier ones are read as if empty there.
_ADDED = {
    version: COLUMNS[COLUMNS.index(first) :]
    for version, first in (
        *((2, "metric_drop_low"), (3, "metric_name")),
        *((4, "latency_rounds"), (5, "traffic_bytes"), (6, "notes")),
    )
}


#: Columns that may differ between two runs of the same specification on the same machine.
VOLATILE_COLUMNS = (
    *("run_id", "started_utc", "duration_s"),
    *(name for name in COLUMNS if name.startswith(("latency_", "speedup_"))),
)


def added_after(version: Value) -> tuple[str, ...]:
    """The columns that rows of a schema version do not have."""
    later = [v for v in _ADDED if isinstance(version, int | float) and v > version]
    return _ADDED[min(later)] if later else ()


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
        self._create(resume)
        self._migrate()
        self._status: dict[str, str] = {}
        self._seen = (-1, -1)
        with self._locked() as descriptor:
            remove_leftover(self.path)
            self._repair(descriptor)
            self._refresh(descriptor)

    @property
    def status(self) -> Mapping[str, str]:
        """`config_hash` -> "ok", "error" or "timeout" of every row, as last seen."""
        return self._status

    def append(self, row: Mapping[str, Value]) -> bool:
        """Append a row; False when a row with its `config_hash` is already there.

        Raises:
            ConfigError: the row's columns are not exactly those of the schema, or the disk is full.
        """
        line = _encode(row)
        with self._locked() as descriptor:
            self._repair(descriptor)
            self._refresh(descriptor)
            if row["config_hash"] in self._status:
                return False
            end = os.lseek(descriptor, 0, os.SEEK_END)
            try:
                if os.write(descriptor, line) != len(line):
                    raise OSError("short write")
                os.fsync(descriptor)
            except OSError as error:
                os.ftruncate(descriptor, end)
                raise ConfigError(f"cannot append to {self.path}: {error}") from error
            self._refresh(descriptor)
        return True

    def replace(self, row: Mapping[str, Value]) -> None:
        """Put `row` where the row with its `config_hash` stands (or at the end), atomically.

        Raises:
            ConfigError: the row's columns are not exactly those of the schema.
        """
        line = _encode(row)
        with self._locked() as descriptor:
            self._repair(descriptor)
            records = read_cells(_read_all(descriptor), self.path).rows
            key = COLUMNS.index("config_hash")
            kept = [_line(record) for record in records]
            places = [i for i, record in enumerate(records) if record[key] == row["config_hash"]]
            if places:
                kept[places[0]] = line
            else:
                kept.append(line)
            with atomic_path(self.path, locked=True) as temporary:
                temporary.write_bytes(_line(COLUMNS) + b"".join(kept))
        with self._locked() as descriptor:
            self._refresh(descriptor)

    def read(self) -> pd.DataFrame:
        """The whole file as a table; see `read_results`."""
        return read_results(self.path)

    def _create(self, resume: bool) -> None:
        if is_parquet(self.path):
            raise ConfigError(
                f"a sweep appends rows, which Parquet cannot: write {self.path.stem}.csv, then "
                f"dtypelab table {self.path.stem}.csv --export {self.path.name}"
            )
        check_writable(self.path, appended=True)
        if resume and self.path.exists():
            open_file(self.path, "results", most=RESULTS).close()  # not too large to be read
        flags = os.O_CREAT | os.O_RDWR | (0 if resume else os.O_EXCL)
        try:
            os.close(os.open(self.path, flags, 0o666))
        except FileExistsError as error:
            raise ConfigError(
                f"{self.path} exists already; continue it with --resume or choose another name"
            ) from error
        except OSError as error:
            raise ConfigError(
                f"cannot write results to {self.path}: {error.strerror or error}"
            ) from error

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
            header = _line(COLUMNS)
            if header.startswith(data):
                return
            if data.startswith(header):
                data = data[: _whole_lines(data)]
            cells = _foreign_cells(data, self.path)
            others = [name for name in cells.names if name not in COLUMNS]
            if others:
                raise ConfigError(
                    f"{self.path} has columns that are not ours, which would be lost: "
                    f"{', '.join(others)}; remove them, or choose another name for the results"
                )
            _values(cells, self.path)
            columns = [_text_column(name, cells) for name in COLUMNS]
            whole = header + b"".join(map(_line, zip(*columns, strict=True)))
            if whole != data:
                with atomic_path(self.path, locked=True) as temporary:
                    temporary.write_bytes(whole)

    def _repair(self, descriptor: int) -> None:
        """Write the header of a new file, and cut off a torn last line, under the lock."""
        data = _read_all(descriptor)
        header = _line(COLUMNS)
        if not data.startswith(header):
            if not header.startswith(data):
                check_columns((), self.path)
            os.ftruncate(descriptor, 0)
            os.write(descriptor, header)
            os.fsync(descriptor)
            return
        whole = _whole_lines(data)
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


def read_results(path: str | os.PathLike[str]) -> pd.DataFrame:
    """A results file as a table: text columns hold strings ("" when empty), the others numbers.

    A CSV, or a Parquet file made of one by `dtypelab table --export`. Its columns may stand in
    another order; columns that are none of ours come last, as text.

    Raises:
        ConfigError: the file cannot be read or is not a results file of this schema version or an
            earlier one, or a cell does not hold what it must.
    """
    from experiments.page.notebook import Results

    if is_parquet(path):
        return Results(_current(read_parquet(path), Path(path)))
    data = read_bytes(path, "results", most=RESULTS)
    if data.startswith(_line(COLUMNS)):
        # A torn last line belongs to a sweep that was killed (or is writing now): it is no row.
        data = data[: _whole_lines(data)]
    return Results(_values(_foreign_cells(data, path), path))


def _foreign_cells(data: bytes, path: str | os.PathLike[str]) -> Cells:
    """The rows of a results file, perhaps as others left it.

    Raises:
        ConfigError: it is none, or a row is not whole.
    """
    if any(data.startswith(_line(names)) for names in _earlier()):
        data = data[: _whole_lines(data)]
    cells = read_cells(data, path)
    check_columns(cells.names, path)
    return cells


def check_columns(names: Sequence[str], path: str | os.PathLike[str]) -> None:
    """Check that a table has the columns of this schema version or an earlier one, in any order.

    Raises:
        ConfigError: it lacks some.
    """
    missing = [name for name in COLUMNS if name not in names]
    if tuple(COLUMNS[: len(COLUMNS) - len(missing)]) in (COLUMNS, *_earlier()) and set(
        missing
    ) == set(COLUMNS[len(COLUMNS) - len(missing) :]):
        return
    if not {"config_hash", "schema_version"} <= set(names):
        raise ConfigError(
            f"{path} is not a dtypelab results file; choose another name for the results"
        )
    if any(name not in COLUMNS for name in names):
        raise ConfigError(_newer(path))
    raise ConfigError(f"{path} lacks the columns {', '.join(missing)} of a results file")


def _values(cells: Cells, path: str | os.PathLike[str]) -> dict[str, list[Value]]:
    """Column -> its values; those that an earlier schema version did not have are empty."""
    others = [name for name in cells.names if name and name not in COLUMNS]
    table: dict[str, list[Value]] = {}
    for name in (*COLUMNS, *others):
        values: list[Value] = []
        for row, text in zip(cells.numbers, cells.column(name), strict=True):
            try:
                values.append(_parse(name, text) if name in COLUMNS else text)
            except ValueError as error:
                raise bad_cell(path, row, name, error) from None
        table[name] = values
    check_version(table["schema_version"], path)
    return table


def check_version(versions: Iterable[Value], path: str | os.PathLike[str]) -> None:
    """Raise ConfigError if a row is of a schema version that is newer than this one."""
    if any(isinstance(v, int | float) and v > SCHEMA_VERSION for v in versions):
        raise ConfigError(_newer(path))


def _current(table: pd.DataFrame, path: Path) -> pd.DataFrame:
    """A table of this schema version or an earlier one, with all the columns of this one."""
    names = tuple(map(str, table.columns))
    check_columns(names, path)
    kinds = {name: table[name].dtype.kind for name in names if name in COLUMNS}
    for name, kind in kinds.items():
        if (name in _TEXT) != (kind not in "iuf") and not (name not in _TEXT and table.empty):
            what = "texts" if name in _TEXT else "numbers"
            raise ConfigError(f"{path}: the column {name} must hold {what}")
    check_version(table["schema_version"].tolist(), path)
    table = table.assign(**{name: _parse(name, "") for name in COLUMNS if name not in table})
    return table[[*COLUMNS, *(name for name in names if name not in COLUMNS)]]


def _parse(column: str, text: str) -> Value:
    """A field as it was before it was written; a missing number is NaN."""
    if column in _TEXT:
        return text if text.isprintable() else " ".join(text.split())
    return number(text)


def _encode(row: Mapping[str, Value]) -> bytes:
    missing = [name for name in COLUMNS if name not in row]
    extra = [name for name in row if name not in COLUMNS]
    if missing or extra:
        raise ConfigError(
            f"a results row has exactly the columns of the schema; missing {missing}, extra {extra}"
        )
    return _line([_text(row[name]) for name in COLUMNS])


def _text(value: Value) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return "nan" if math.isnan(value) else repr(float(value))
    # One record is one line: `head`, `grep` and the repair of torn lines rely on it.
    return printable(" ".join(str(value).split()))


def _text_column(name: str, cells: Cells) -> list[str]:
    """The texts of a column as they are written."""
    return [_text(text) if name in _TEXT else text.strip() for text in cells.column(name)]


def _line(fields: Iterable[str]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(fields)
    return text.getvalue().encode("utf-8")


def _earlier() -> list[tuple[str, ...]]:
    """The columns of every earlier schema version."""
    return [COLUMNS[: COLUMNS.index(added[0])] for added in _ADDED.values()]


def _whole_lines(data: bytes) -> int:
    """Length of the part of `data` that ends with its last newline outside quotes."""
    end = data.rfind(b"\n") + 1
    # Quotes inside a field are doubled, so an odd count up to a newline means it is quoted.
    while end and data.count(b'"', 0, end) % 2:
        end = data.rfind(b"\n", 0, end - 1) + 1
    return end


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


def _newer(path: str | os.PathLike[str]) -> str:
    return (
        f"{path} has the columns of a schema version newer than {SCHEMA_VERSION}; "
        "choose another name for the results"
    )
