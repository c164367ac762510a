"""Which engines compute parts of a network, as one text: an element of an axis, a column."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from compiler.errors import ConfigError

if TYPE_CHECKING:
    from compiler import Executable

OURS_NAME = "ours"
"""No engine, where a text must stand."""
MEASURED = "measured"
_COSTS = "@"


@dataclass(frozen=True)
class EngineChoice:
    """Engines by name, the most wanted first; written `onednn+onnxruntime`, and
    `onednn@measured` where an engine is handed what measured costs speak for. `ours`: none."""

    names: tuple[str, ...] = ()
    costs: str | None = None

    @staticmethod
    def parse(text: str) -> EngineChoice:
        """The choice that a text is.

        Raises:
            ConfigError: there is no such engine, or one is named twice; or costs are others.
            UnsupportedError: an engine cannot run here.
        """
        listed, at, costs = text.partition(_COSTS)
        names = () if listed in ("", OURS_NAME) else tuple(listed.split("+"))
        if at and costs != MEASURED:
            raise ConfigError(f"engines {text!r}: costs are {MEASURED!r}, not {costs!r}")
        if at and not names:
            raise ConfigError(f"engines {text!r}: nothing is measured where there is no engine")
        return EngineChoice(names, costs or None).checked()

    def checked(self) -> EngineChoice:
        """The same; raises as `parse`."""
        if self.names:
            from compiler.engines.engine import checked

            checked(self.names)
        return self

    def __str__(self) -> str:
        return "+".join(self.names) + (f"{_COSTS}{self.costs}" if self.costs else "")


OURS = EngineChoice()


def names_in(text: str) -> tuple[str, ...]:
    """The names in the text of a choice, whether these engines are there or not."""
    return tuple(text.partition(_COSTS)[0].split("+"))


def handed(executable: Executable | Any) -> list[dict[str, Any]]:
    """What engines compute of an executable: for each region its name, engine and nodes, and where
    costs decided also what was not handed over, and the milliseconds of both."""
    decided, regions = getattr(executable, "decisions", ()), _regions(executable)
    told = [{"region": r.name, "engine": r.engine, "nodes": list(r.nodes)} for r in regions]
    return [*told, *(d.row() for d in decided)]


def _regions(executable: Any) -> tuple[Any, ...]:
    """Those that were handed over as the model was imported, and others that nothing was measured
    of."""
    measured = getattr(executable, "decisions", ())
    own = () if measured else getattr(executable, "regions", ())
    return (*getattr(executable, "imported", ()), *own)


def handed_text(executable: Executable | Any) -> str:
    """The same as JSON; empty if there is nothing to tell."""
    rows = handed(executable)
    return json.dumps(rows) if rows else ""


def handed_lines(executable: Executable | Any, chosen: EngineChoice) -> list[str]:
    """The same for people, a line a region, and one for each chosen engine that has none."""
    found = (*_regions(executable), *getattr(executable, "decisions", ()))
    return [*map(str, found), *idle_lines(chosen, {x.engine for x in found})]


def idle_lines(chosen: EngineChoice, used: Collection[str]) -> list[str]:
    """A line for each chosen engine that is none of those that are used."""
    return [f"{name} computes nothing of this program" for name in chosen.names if name not in used]
