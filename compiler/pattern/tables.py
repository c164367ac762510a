"""Pattern tables: what other code generators can compute, as patterns of operators that they take
as one (Relay's Bring Your Own Codegen: Z. Chen et al., arXiv 2105.03215)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from compiler.boundary.homes import ENGINES
from compiler.errors import ConfigError, unknown

if TYPE_CHECKING:
    from compiler.pattern.search import Found, Matchable

Check = Callable[["Found"], str | None]
"""Says why what a pattern found will not do; None: it will."""


def _anything(_: Found) -> None:
    return None


@dataclass(frozen=True)
class CompositePattern:
    """Operators that an engine computes as one.

    Attributes:
        name: of what is made of them, e.g. `conv2d_relu`.
        pattern: what they look like. All that it goes through becomes the composite; what it gives
            names to besides are operands.
        check: what else must hold: of types and attributes, say.
        custom: whether the engine knows custom datatypes; else values of those do not fit.
    """

    name: str
    pattern: Matchable
    check: Check = _anything
    custom: bool = False


_tables: dict[str, tuple[CompositePattern, ...]] = {}


def register_pattern_table(engine: str, patterns: Sequence[CompositePattern]) -> None:
    """Let `engine` be what these patterns are handed to, in the order in which they are tried.

    Raises:
        ConfigError: two patterns have one name, or are one: the second would never be taken.
    """
    names = [p.name for p in patterns]
    twice = sorted({n for n in names if names.count(n) > 1})
    if twice:
        raise ConfigError(
            f"engine {engine!r} has several patterns called {twice[0]!r}: give each its own name"
        )
    for k, p in enumerate(patterns):
        for q in patterns[:k]:
            if q.pattern is p.pattern and q.check is p.check and q.custom >= p.custom:
                raise ConfigError(
                    f"engine {engine!r} has one pattern as {q.name!r} and {p.name!r}, which would "
                    "never be taken: leave out one"
                )
    _tables[engine] = tuple(patterns)


def remove_pattern_table(engine: str) -> None:
    """Forget the table of an engine, if there is one."""
    _tables.pop(engine, None)


def pattern_table(engine: str) -> tuple[CompositePattern, ...]:
    """The patterns of an engine.

    Raises:
        ConfigError: there is no such engine; names the nearest.
    """
    if engine not in _tables:
        ENGINES.fetch(engine)
    if engine not in _tables:
        raise ConfigError(unknown("engine", engine, known_engines()))
    return _tables[engine]


def shipped_engines() -> list[str]:
    """The names of the engines that come with this package."""
    return ENGINES.names()


def known_engines() -> list[str]:
    """The names of all engines that have a table, or whose module would register one."""
    return sorted({*_tables, *ENGINES.names()})
