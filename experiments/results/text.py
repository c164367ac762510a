"""Rows of a results file as lines of CSV and back, also as others may have left them.

A last line without a newline is what a killed writer left (or what one is writing): no row.
"""

from __future__ import annotations

import csv
import io
import math
import os
from collections.abc import Iterable, Mapping

from compiler.errors import ConfigError
from compiler.files.printable import printable

from .csv_reading import Cells, bad_cell, number, read_cells
from .schema import COLUMNS, TEXT_COLUMNS, Value, check_columns, check_version, earlier


def foreign_cells(data: bytes, path: str | os.PathLike[str]) -> Cells:
    """The rows of a results file, perhaps as others left it.

    Raises:
        ConfigError: it is none, or a row is not whole.
    """
    if any(data.startswith(line_of(names)) for names in (COLUMNS, *earlier())):
        data = data[: whole_lines(data)]
    cells = read_cells(data, path)
    check_columns(cells.names, path)
    return cells


def values_of(cells: Cells, path: str | os.PathLike[str]) -> dict[str, list[Value]]:
    """Column -> its values; those that an earlier schema version did not have are empty.

    Raises:
        ConfigError: a cell does not hold what it must, or a row is of a newer schema version.
    """
    others = [name for name in cells.names if name and name not in COLUMNS]
    table: dict[str, list[Value]] = {}
    for name in (*COLUMNS, *others):
        values: list[Value] = []
        for row, text in zip(cells.numbers, cells.column(name), strict=True):
            try:
                values.append(parse(name, text) if name in COLUMNS else text)
            except ValueError as error:
                raise bad_cell(path, row, name, error) from None
        table[name] = values
    check_version(table["schema_version"], path)
    return table


def parse(column: str, text: str) -> Value:
    """A field as it was before it was written; a missing number is NaN.

    Raises:
        ValueError: it is no number, and must be one.
    """
    if column in TEXT_COLUMNS:
        return text if text.isprintable() else " ".join(text.split())
    return number(text)


def encode(row: Mapping[str, Value]) -> bytes:
    """A row as it is written.

    Raises:
        ConfigError: its columns are not exactly those of the schema.
    """
    missing = [name for name in COLUMNS if name not in row]
    extra = [name for name in row if name not in COLUMNS]
    if missing or extra:
        raise ConfigError(
            f"a results row has exactly the columns of the schema; missing {missing}, extra {extra}"
        )
    return line_of([_text(row[name]) for name in COLUMNS])


def _text(value: Value) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return "nan" if math.isnan(value) else repr(float(value))
    # One record is one line: `head`, `grep` and the repair of torn lines rely on it.
    return printable(" ".join(str(value).split()))


def text_column(name: str, cells: Cells) -> list[str]:
    """The texts of a column as they are written."""
    return [_text(text) if name in TEXT_COLUMNS else text.strip() for text in cells.column(name)]


def line_of(fields: Iterable[str]) -> bytes:
    """Fields as a line of CSV."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(fields)
    return text.getvalue().encode("utf-8")


def whole_lines(data: bytes) -> int:
    """Length of the part of `data` that ends with its last newline outside quotes."""
    end = data.rfind(b"\n") + 1
    # Quotes inside a field are doubled, so an odd count up to a newline means it is quoted.
    while end and data.count(b'"', 0, end) % 2:
        end = data.rfind(b"\n", 0, end - 1) + 1
    return end
