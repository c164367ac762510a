"""Rows of benchmarks that go on where they were stopped: dataclasses of plain fields, as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from compiler.errors import ConfigError
from experiments.files import write_whole

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T", bound="DataclassInstance")


def write_rows(path: Path, rows: Sequence[Any], kind: type[DataclassInstance]) -> None:
    """Write a file of nothing but these rows, whole or not at all."""
    text = io.StringIO()
    writer = csv.DictWriter(text, [f.name for f in fields(kind)], lineterminator="\n")
    writer.writeheader()
    for r in rows:
        plain = asdict(r)
        writer.writerow({k: f"{v:.6g}" if isinstance(v, float) else v for k, v in plain.items()})
    write_whole(path, text.getvalue().encode())


def read_rows(path: Path | None, kind: type[T]) -> list[T]:
    """The rows of a file, none if it is not there.

    Raises:
        ConfigError: it holds something else.
    """
    if path is None or not path.exists():
        return []
    kinds = {f.name: str(f.type) for f in fields(kind)}
    made: dict[str, Callable[[str], Any]] = {
        "int": int, "float": float, "str": str, "bool": lambda text: text == "True",
    }  # fmt: skip
    try:
        with path.open(newline="") as file:
            return [
                kind(**{name: made[of](line[name]) for name, of in kinds.items()})
                for line in csv.DictReader(file)
            ]
    except (KeyError, ValueError, OSError, csv.Error) as error:
        raise ConfigError(f"{path} holds no rows of this benchmark: {error}") from None
