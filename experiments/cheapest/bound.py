"""What is asked of a network's results: `drop<=0.5`, `sqnr>=30`, `kl<=0.01`, a metric's figure."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from compiler.errors import ConfigError, unknown
from experiments.measure import scoring

DROP = "drop"
NAMES = {DROP: False, "sqnr": True, "kl": False, "agreement": True}
"""Figures besides those of metrics -> whether more is better. `drop`: what the metric loses against
float32, shares in percentage points; `agreement`: the share of inputs with float32's answer."""
METRIC = "metric"
"""The figure of the metric, beside float32's answers."""
SQNR_DB = "sqnr_db"
"""What the column of `sqnr` is called in tables."""
SURE = "_sure"
"""Behind the name of a figure: the worse end of its 95 % interval, inputs being drawn. Bounds are
held to it where there is one: what is only just kept on some inputs is not kept on others."""
_FORM = re.compile(r"\s*(\w+)\s*(<=|>=)\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*")


@dataclass(frozen=True)
class Bound:
    """A figure that must be at least, or at most, `value`."""

    figure: str
    at_least: bool
    value: float

    def holds(self, figures: Mapping[str, float]) -> bool:
        """Whether a network with these figures is good enough; NaN is not."""
        found = self._of(figures)
        return found >= self.value if self.at_least else found <= self.value

    def best(self, found: Iterable[Mapping[str, float]]) -> float:
        """The best value of the figure in several networks' figures; NaN if all are."""
        values = [v for f in found if not math.isnan(v := self._of(f))]
        return (max if self.at_least else min)(values, default=math.nan)

    def _of(self, figures: Mapping[str, float]) -> float:
        return figures.get(self.figure + SURE, figures[self.figure])

    def __str__(self) -> str:
        return f"{self.figure}{'>=' if self.at_least else '<='}{self.value:g}"


def told(figures: Mapping[str, float], metric: str) -> str:
    """Figures that there are as a text, behind each what it surely is; `metric`: what the data's
    own is called."""
    parts = []
    for name, value in figures.items():
        if name.endswith(SURE) or (name == METRIC and math.isnan(value)):
            continue
        sure = figures.get(name + SURE)
        known = metric if name == METRIC else name
        parts.append(f"{known} {value:.4g}" + ("" if sure is None else f" (surely {sure:.4g})"))
    return ", ".join(parts)


def columns(figures: Mapping[str, float]) -> dict[str, float]:
    """Figures by the names of a table's columns, `metric` and `sqnr_db` before the others."""
    named = {"sqnr": SQNR_DB, f"sqnr{SURE}": SQNR_DB + SURE}
    found = {named.get(name, name): value for name, value in figures.items()}
    first = {name: found.pop(name) for name in (METRIC, SQNR_DB)}
    return first | found


def parse(text: str) -> tuple[Bound, ...]:
    """Bounds that must all hold, one or several with commas between.

    Raises:
        ConfigError: it is none, names an unknown figure, asks for the worse side of one or for more
            than there is, or two contradict each other.
    """
    found: list[Bound] = []
    for part in str(text).split(","):
        match = _FORM.fullmatch(part)
        if match is None:
            raise ConfigError(
                f"bound {part.strip()!r} is none: write a figure, <= or >=, and a number, for "
                "example drop<=0.5 or sqnr>=30"
            )
        bound = Bound(match[1], match[2] == ">=", float(match[3]))
        if bound.at_least != _more_is_better(bound.figure):
            other = "<=" if bound.at_least else ">="
            raise ConfigError(
                f"bound {bound} asks for a worse {bound.figure}: write "
                f"{bound.figure}{other}{bound.value:g}"
            )
        if (beyond := _beyond(bound)) is not None:
            raise ConfigError(f"bound {bound} can never hold: {beyond}")
        if any(b.figure == bound.figure for b in found):
            raise ConfigError(f"{bound.figure} has two bounds in {text!r}: leave one of them out")
        if bound.figure == DROP and any(b.figure not in NAMES for b in found):
            raise ConfigError("drop is of the metric: give a bound of either, not of both")
        found.append(bound)
    return tuple(found)


def _more_is_better(figure: str) -> bool:
    if figure in NAMES:
        return NAMES[figure]
    if figure not in scoring.names():
        raise ConfigError(unknown("figure", figure, [*NAMES, *scoring.names()]))
    return scoring.find(figure).higher_is_better


def _beyond(bound: Bound) -> str | None:
    """Why no network keeps a bound; None if one may."""
    name, value = bound.figure, bound.value
    if (name == "agreement" or scoring.is_share(name)) and bound.at_least and value > 1:
        return f"{name} is a share, from 0 to 1"
    if name == "kl" and value < 0:
        return "a divergence is at least 0"
    return None
