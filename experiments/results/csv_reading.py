"""Tables of CSV as others may have left them: with the line ends, the byte order mark, the order of
columns and the extra columns of a spreadsheet or an editor."""

from __future__ import annotations

import csv
import io
import math
import os
import re
from dataclasses import dataclass

from compiler.errors import ConfigError

AnyPath = str | os.PathLike[str]

#: Characters of a cell. Python's own limit is that of one line, which a configuration may exceed.
LARGEST_CELL = 1 << 24
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.ASCII | re.IGNORECASE)
_WORDS = {"nan": math.nan, "inf": math.inf, "infinity": math.inf, "-inf": -math.inf,
          "-infinity": -math.inf, "+inf": math.inf}  # fmt: skip
_WIDEST = 1 << 63


@dataclass(frozen=True)
class Cells:
    """A table of texts.

    Attributes:
        names: those of the columns.
        rows: the lines below the header, each with a text for every column.
        numbers: which line of a spreadsheet each row is; the header is 1.
    """

    names: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numbers: tuple[int, ...]

    def column(self, name: str) -> list[str]:
        """The texts of a column; empty ones of a column that is not there."""
        if name not in self.names:
            return [""] * len(self.rows)
        place = self.names.index(name)
        return [fields[place] for fields in self.rows]


def read_cells(data: bytes, path: AnyPath) -> Cells:
    """The table in the bytes of a CSV file; empty lines, and empty columns at the end, are none.

    Raises:
        ConfigError: it is separated otherwise, a column is there twice, a row has too few or too
            many fields, or it is no text.
    """
    lines = _lines(data, path)
    header = [name.strip() for name in (lines[0] if lines else [])]
    while header and not header[-1]:
        header.pop()
    if len(header) == 1:
        _check_separator(header[0], path)
    for place, name in enumerate(header):
        if name in header[:place]:
            raise ConfigError(f"{path} has two columns {name!r}; remove one")
    rows, numbers = [], []
    for number, fields in enumerate(lines[1:], start=2):
        if not any(fields):
            continue
        if len(fields) < len(header) or any(fields[len(header) :]):
            raise ConfigError(
                f"{path} row {number} has {len(fields)} fields instead of {len(header)}; "
                "mend or remove that row"
            )
        rows.append(tuple(fields[: len(header)]))
        numbers.append(number)
    return Cells(tuple(header), tuple(rows), tuple(numbers))


def number(text: str) -> int | float:
    """The number that a cell holds: an integer, or a float; NaN of an empty one.

    Raises:
        ValueError: it holds something else, or a number that no float64 is near to.
    """
    text = text.strip()
    if not text:
        return math.nan
    if (word := _WORDS.get(text.lower())) is not None:
        return word
    if not _NUMBER.fullmatch(text):
        raise ValueError(f"{text!r} is no number")
    if text.lstrip("+-").isdigit() and len(text) < 20 and abs(int(text)) < _WIDEST:
        return int(text)
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"{text!r} is too large")
    return value


def is_number(text: str) -> bool:
    """Whether a cell holds a number."""
    try:
        return bool(text.strip()) and number(text) is not None
    except ValueError:
        return False


def bad_cell(path: AnyPath, row: int, column: str, why: object) -> ConfigError:
    """The error of one cell."""
    return ConfigError(f"{path} row {row}, column {column}: {why}; mend that cell")


def _lines(data: bytes, path: AnyPath) -> list[list[str]]:
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise ConfigError(f"{path} is UTF-16 text; save it as CSV in UTF-8")
    text = data.decode("utf-8-sig", errors="replace")
    before = csv.field_size_limit(LARGEST_CELL)
    try:
        return list(csv.reader(io.StringIO(text, newline="")))
    except csv.Error as error:
        raise ConfigError(f"{path} is not a CSV file: {error}") from None
    finally:
        csv.field_size_limit(before)


def _check_separator(header: str, path: AnyPath) -> None:
    for sign, name in ((";", "semicolons"), ("\t", "tabs")):
        if header.count(sign) > 1:
            raise ConfigError(
                f"{path} is separated by {name}, as spreadsheets export where the comma is the "
                "decimal sign; export it with commas between fields and points in numbers"
            )
