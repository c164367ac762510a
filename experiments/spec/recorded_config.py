"""The configuration that a row of results was made of: a specification as JSON, from anywhere."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from compiler.errors import ConfigError
from compiler.files.reading import parse_json
from experiments.user_code import adapters


def config_of(row: Mapping[Any, Any]) -> dict[str, Any]:
    """The specification of a row; an empty one of rows that were written without.

    Raises:
        ConfigError: it is no JSON object.
    """
    text = str(row["config"])
    where = f"the configuration of {row['model']} in {row['scheme']}"
    config = parse_json(text, where) if text else {}
    if not isinstance(config, dict):
        raise ConfigError(f"{where} is no JSON object; mend or remove that row")
    return config


def code_files(config: Mapping[str, Any]) -> tuple[str, ...]:
    """The Python files that a specification names, wherever it does, and that would be run: all
    but those that have run in this process as they are now."""
    named = dict.fromkeys(_named(config))
    return tuple(file for file in named if not adapters.has_run(file))


def _named(value: Any, key: str = "") -> Iterator[str]:
    if isinstance(value, Mapping):
        for inner, held in value.items():
            yield from _named(held, str(inner))
    elif isinstance(value, list | tuple):
        for held in value:
            yield from _named(held, key)
    elif isinstance(value, str):
        if key == "adapters":
            yield value
        yield from adapters.files_of(value)
