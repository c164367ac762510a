"""Settings from the command line, KEY=VALUE, in place of those of a specification."""

from __future__ import annotations

import copy
import tomllib
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from compiler.errors import ConfigError

from .reader import Reader
from .toml_lines import KeyPath


def value_of(text: str) -> Any:
    """A value written as TOML (a number, true, a list, a table), or else the text itself."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text.strip()


def overridden(top: Reader, settings: Iterable[str]) -> Reader:
    """`top` with each KEY=VALUE of `settings` set; KEY is dotted (latency.runs, schemes.0.n_eval).

    Complaints about such a value name the setting instead of a line.

    Raises:
        ConfigError: one is not KEY=VALUE, or leads through something that is no table or list.
    """
    values, lines, places = copy.deepcopy(dict(top.values)), dict(top.lines), dict(top.places)
    for text in settings:
        name, equals, value = text.partition("=")
        path = _keys(name) if equals else ()
        if not path:
            raise ConfigError(f"--set {text!r} is not KEY=VALUE, for example latency.runs=5")
        _set(values, path, value_of(value), text)
        lines = {key: line for key, line in lines.items() if key[: len(path)] != path}
        places[path] = f"--set {text}"
    return replace(top, values=values, lines=lines, places=places)


def _keys(name: str) -> KeyPath:
    """The keys of a dotted TOML key; a number is a place in a list."""
    try:
        found: Any = tomllib.loads(f"{name} = 0")
    except tomllib.TOMLDecodeError:
        return ()
    path: KeyPath = ()
    while isinstance(found, dict) and len(found) == 1:
        ((key, found),) = found.items()
        path = (*path, int(key) if key.isdecimal() else key)
    return path


def _set(values: Any, path: KeyPath, value: Any, text: str) -> None:
    for depth, key in enumerate(path):
        fits = isinstance(values, list) and isinstance(key, int) and key < len(values)
        if not fits and not isinstance(values, dict):
            where = ".".join(map(str, path[:depth]))
            raise ConfigError(f"--set {text}: {where} has no place {key!r}")
        place: Any = str(key) if isinstance(values, dict) else key
        if depth == len(path) - 1:
            values[place] = value
        else:
            values = values.setdefault(place, {}) if isinstance(values, dict) else values[place]
