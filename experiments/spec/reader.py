"""Typed access to a specification's values; every complaint names the file and the line."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from compiler.errors import ConfigError, DtypelabError, unknown
from compiler.files.reading import parse_toml, read_text

from .toml_lines import KeyPath, line_numbers, line_of

T = TypeVar("T")

_KINDS = {
    str: "a string",
    bool: "true or false",
    int: "an integer",
    float: "a number",
    list: "a list",
    tuple: "a list",
    dict: "a table",
}


@dataclass(frozen=True)
class Reader:
    """A table of a specification, with what is needed to say where a value stands in its file."""

    values: Mapping[str, Any]
    source: str
    path: KeyPath = ()
    lines: dict[KeyPath, int] = field(default_factory=dict)
    #: What to call the place of values that do not stand in the file.
    places: dict[KeyPath, str] = field(default_factory=dict)

    @classmethod
    def open(cls, file: str | Path) -> Reader:
        """Read a TOML file.

        Raises:
            ConfigError: it cannot be read or is not TOML.
        """
        text = read_text(file, "the specification")
        values = parse_toml(text, str(file), located=True)
        return cls(values, str(file), (), line_numbers(text))

    def fail(self, message: str, *where: str | int) -> NoReturn:
        """Raise a ConfigError that starts with FILE:LINE of the value at `where` in this table."""
        raise ConfigError(f"{self._place((*self.path, *where))}: {message}")

    def _place(self, path: KeyPath) -> str:
        for length in range(len(path), 0, -1):
            if path[:length] in self.places:
                return self.places[path[:length]]
            if path[:length] in self.lines:
                break
        else:
            inside = [text for key, text in self.places.items() if key[: len(path)] == path]
            if path and inside:
                return inside[0]
        return f"{self.source}:{line_of(self.lines, path)}" if self.lines else self.source

    def at(self, values: Mapping[str, Any], *where: str | int) -> Reader:
        """A reader of a table that stands at `where` in this one."""
        return replace(self, values=values, path=(*self.path, *where))

    def checked(self, action: Callable[[], T], *where: str | int) -> T:
        """Result of `action`; its DtypelabError is raised again with the place in the file."""
        try:
            return action()
        except DtypelabError as error:
            self.fail(str(error), *where)

    def only(self, known: Iterable[str]) -> None:
        """Fail at the first key that is not known."""
        names = list(known)
        for key in self.values:
            if key not in names:
                self.fail(unknown("key", key, names), key)

    def table(self, key: str) -> Reader:
        """The table at `key`, empty when absent."""
        value = self._typed(key, self.values.get(key, {}), dict)
        return self.at(value, key)

    def numbers(self, minimum: float) -> dict[str, float]:
        """Every value of this table, each a number of at least `minimum`."""
        return {key: self.number(key, minimum) for key in self.values}

    def number(self, key: str, minimum: float) -> float:
        """The number at `key`, which there must be, at least `minimum`."""
        value = self.values[key]
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not (number and minimum <= value < math.inf):
            self.fail(f"{key} must be a number of at least {minimum:g}, not {value!r}", key)
        return float(value)

    def text(self, key: str, default: str | None = None) -> str:
        """The string at `key`; without a default the key is required."""
        return str(self._get(key, str, default))

    def integer(self, key: str, default: int, minimum: int) -> int:
        """The integer at `key`, at least `minimum`."""
        return self._at_least(key, self._get(key, int, default), minimum)

    def flag(self, key: str, default: bool) -> bool:
        """The truth value at `key`."""
        return bool(self._get(key, bool, default))

    def optional(self, key: str, unit: str) -> float | None:
        """The number at `key`, above 0; None when the key is absent."""
        value = self.values.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e9:
            self.fail(f"{key} must be a number of {unit} above 0, not {value!r}", key)
        return float(value)

    def integers(self, key: str, default: tuple[int, ...], minimum: int) -> tuple[int, ...]:
        """The non-empty list of distinct integers at `key`."""
        items = self.items(key, default)
        return tuple(
            self._at_least(key, self._typed(key, item, int, index), minimum, index)
            for index, item in enumerate(items)
        )

    def texts(self, key: str, default: tuple[str, ...] | None = None) -> tuple[str, ...]:
        """The non-empty list of distinct strings at `key`."""
        items = self.items(key, default)
        return tuple(self._typed(key, item, str, index) for index, item in enumerate(items))

    def items(self, key: str, default: tuple[Any, ...] | None = None) -> list[Any]:
        """The list of distinct values at `key`, empty only if the default is; without a default it
        is required."""
        value = list(self._get(key, list, default))
        if not value and default != ():
            self.fail(f"{key} is empty; list at least one", key)
        for index, item in enumerate(value):
            if item in value[:index]:
                self.fail(f"{key} lists {item!r} twice", key, index)
        return value

    def _get(self, key: str, kind: type, default: Any) -> Any:
        if key not in self.values:
            if default is None:
                self.fail(f"the key {key!r} is missing")
            return default
        return self._typed(key, self.values[key], kind)

    def _typed(self, key: str, value: Any, kind: type, *where: int) -> Any:
        accepted = (list, tuple) if kind is list else kind
        # bool is a subclass of int, but `n_eval = true` is a mistake.
        if not isinstance(value, accepted) or (isinstance(value, bool) and kind is not bool):
            found = _KINDS.get(type(value), type(value).__name__)
            self.fail(f"{key} must be {_KINDS[kind]}, not {found}", key, *where)
        return value

    def _at_least(self, key: str, value: int, minimum: int, *where: int) -> int:
        if value < minimum:
            self.fail(f"{key} must be at least {minimum}, not {value}", key, *where)
        return value
