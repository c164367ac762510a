"""Partial cells: rules that leave cells out, change their settings, or add some."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from .axes import AXES, Overrides, settings_of
from .cells import Cell
from .reader import Reader

#: What rules may say of a cell: those of the axes, and the data set.
KEYS = (*AXES.values(), "dataset")


@dataclass(frozen=True)
class Rule:
    """A partial cell: keys with the values or patterns that a cell must have, and settings for it.

    A cell matches if it has, for every key, one of the values; texts are patterns with * and ?.
    """

    wanted: tuple[tuple[str, tuple[Any, ...]], ...]
    settings: Overrides
    reader: Reader

    def matches(self, cell: Cell) -> bool:
        """Whether the cell has all that the rule says."""
        return all(
            any(_fits(value, found) for value in values for found in _values(cell, key))
            for key, values in self.wanted
        )


def rules(top: Reader, name: str, settings: Mapping[str, float] | None = None) -> list[Rule]:
    """The rules in the list `name` of a specification, which change some of `settings` if given."""
    found = []
    for reader in tables(top, name):
        reader.only([*KEYS, *(settings or ())])
        wanted = {k: v for k, v in reader.values.items() if k in KEYS}
        if not wanted:
            reader.fail(f"a rule of {name} names what it is for: {', '.join(KEYS)}")
        overrides = settings_of(reader) if settings else {}
        if settings and not overrides:
            reader.fail(f"a rule of {name} sets something: {', '.join(settings)}")
        values = {k: tuple(v) if isinstance(v, list) else (v,) for k, v in wanted.items()}
        for key, given in values.items():
            for value in given:
                if not isinstance(value, str | int) or isinstance(value, bool):
                    reader.fail(f"{key} must be a name, a number, or a list of those", key)
        found.append(Rule(tuple(values.items()), overrides, reader))
    return found


def tables(top: Reader, name: str) -> Iterable[Reader]:
    """The tables in the list `name`."""
    for index, item in enumerate(top.items(name, ())):
        if not isinstance(item, dict):
            top.fail(f"{name} is a list of tables, such as [[{name}]]", name, index)
        yield top.at(item, name, index)


def _values(cell: Cell, key: str) -> tuple[str | int, ...]:
    scheme = cell.scheme
    option = {"calibrator": "calibrate", "accumulate": "accumulate"}.get(key)
    if option is not None:
        return (str(scheme.option(option) or ""),)
    if key == "scheme":
        return (scheme.label, scheme.dtype)
    if key == "model":
        return (cell.model.name, cell.model.source)
    value: str | int = getattr(cell, key)
    return (value,)


def _fits(wanted: str | int, found: str | int) -> bool:
    if isinstance(wanted, str) and isinstance(found, str):
        return wanted == found or fnmatchcase(found, wanted)
    return wanted == found
