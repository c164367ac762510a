"""What a layer may be computed in: the formats and accumulators that compete."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from compiler.errors import ConfigError
from experiments.systems import number_systems

FLOAT32 = "float32"
MOST = 24
"""Candidates at most: each is measured as the only one, and what greedy has for its cost."""
IN_SEQUENCE = "sequential"
INTEGER = re.compile(r"u?int\d+")
BASE: Mapping[str, Any] = {"softmax_dtype": FLOAT32}
"""By this, all of a network but factors of products stays float32, also where these are int8."""


@dataclass(frozen=True)
class Candidate:
    """A format of both factors of a layer. `accumulate`: how sums are formed in the format; empty:
    its numbers are stored, and summed exactly as integers, or in float32."""

    format: str
    accumulate: str = ""

    @property
    def fields(self) -> dict[str, Any]:
        """Those of `quantize.QConfig` that say so of a layer."""
        if self.format == FLOAT32:
            return {"skip": True}
        fields: dict[str, Any] = {"weight_dtype": self.format, "activation_dtype": self.format}
        if self.accumulate:
            fields |= {"compute": "native", "accumulate": self.accumulate}
        return fields

    def __str__(self) -> str:
        return f"{self.format} {self.accumulate}".rstrip()


def candidates(formats: Sequence[str], accumulators: Sequence[str]) -> tuple[Candidate, ...]:
    """Every format with every accumulator that it takes: scalar formats all of them, integers and
    block formats none (sums of integers are exact), nor float32, which leaves a layer as it is.

    `posit8_es1 exact` is a format with an accumulator of its own. Formats whose operations are
    tables, as approximate multipliers are, are only computed in sequence, whatever others take:
    sums in anything else would be of exact products.

    Raises:
        ConfigError: there are none or too many, one is named twice, or one is no format.
    """
    import quantize

    found: list[Candidate] = []
    for text in formats:
        name, _, own = text.partition(" ")
        found += _with(name, [own.strip()] if own else accumulators, bool(own))
    if len(set(found)) < len(found):
        twice = next(c for c in found if found.count(c) > 1)
        raise ConfigError(f"{twice} is named twice among the formats and accumulators")
    if not [c for c in found if c.format != FLOAT32]:
        raise ConfigError("there is nothing to choose from: name at least one format")
    if len(found) > MOST:
        raise ConfigError(f"{len(found)} formats and accumulators are too many: {MOST} at most")
    for c in found:
        if c.format != FLOAT32:
            quantize.QConfig(**BASE, **c.fields)
    if accumulators and not any(_takes_sums(c.format) for c in found):
        raise ConfigError(
            f"accumulators {', '.join(accumulators)} are for number formats, and there is none "
            "among the formats"
        )
    return tuple(found)


def _takes_sums(name: str) -> bool:
    """Whether accumulators hold sums of its numbers: of integers they are exact."""
    return not (
        name == FLOAT32 or INTEGER.fullmatch(name) or number_systems.block_element(name) is not None
    )


def _with(name: str, accumulators: Iterable[str], own: bool) -> list[Candidate]:
    if not _takes_sums(name):
        if own:
            raise ConfigError(f"{name} takes no accumulator: only scalar formats have one here")
        return [Candidate(name)]
    if is_looked_up(name):
        if own and [*accumulators] != [IN_SEQUENCE]:
            raise ConfigError(f"operations of {name} are tables: it is only summed {IN_SEQUENCE}")
        return [Candidate(name, IN_SEQUENCE)]
    # Sums in float32 of stored numbers are what "float32" says.
    return [Candidate(name, "" if a == FLOAT32 else a) for a in accumulators or (FLOAT32,)]


def is_looked_up(name: str) -> bool:
    """Whether operations of a format are tables, so that its products are not exact ones."""
    import datatypes

    return bool(datatypes.get(name).tables)
