"""TOML files of configurations."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from compiler.errors import ConfigError
from compiler.files.reading import read_text
from compiler.files.writing import write_whole


def read_toml(path: str | Path) -> dict[str, Any]:
    """The tables and values of a TOML file.

    Raises:
        ConfigError: it cannot be read, or is not TOML.
    """
    text = read_text(path, "the configuration")
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ConfigError(f"the configuration {path} is nested too deep") from None
    except ValueError as e:  # a number may have more digits than Python reads
        raise ConfigError(f"the configuration {path} is not TOML: {e}") from None


def write_toml(values: Mapping[str, Any], path: str | Path | None = None) -> str:
    """Numbers, strings, truth values, lists of them, and tables of these as TOML text.

    Args:
        path: a file to write the text to as well.

    Raises:
        ConfigError: the file cannot be written.
    """
    text = "\n".join(_table((), values)).lstrip("\n") + "\n"
    if path is not None:
        write_whole(path, text.encode())
    return text


def _table(keys: tuple[str, ...], values: Mapping[str, Any]) -> list[str]:
    plain = {k: v for k, v in values.items() if v is not None and not isinstance(v, Mapping)}
    lines = ["", f"[{'.'.join(map(_key, keys))}]"] if keys and plain else []
    lines += [f"{_key(k)} = {_value(v)}" for k, v in plain.items()]
    for k, v in values.items():
        if isinstance(v, Mapping):
            lines += _table((*keys, k), v)
    return lines


def _key(name: str) -> str:
    bare = name.isascii() and name.replace("_", "a").replace("-", "a").isalnum()
    return name if bare else _value(name)


def _value(value: Any) -> str:
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_value, value))}]"
    # What JSON says of strings, numbers and truth values, TOML says too, but for one character.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
