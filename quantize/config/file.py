"""TOML files of configurations."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from compiler.files.reading import parse_toml, read_text
from compiler.files.writing import write_whole


def read_toml(path: str | Path) -> dict[str, Any]:
    """The tables and values of a TOML file.

    Raises:
        ConfigError: it cannot be read, or is not TOML.
    """
    return parse_toml(read_text(path, "the configuration"), f"the configuration {path}")


def write_toml(values: Mapping[str, Any], path: str | Path | None = None) -> str:
    """Numbers, strings, truth values, lists of them, and tables of these as TOML text.

    Args:
        path: a file to write the text to as well.

    Raises:
        ConfigError: the file cannot be written.
    """
    import tomli_w

    text: str = tomli_w.dumps(values)
    if path is not None:
        write_whole(path, text.encode())
    return text
