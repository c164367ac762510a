"""Gates of formats' own circuits, as they were synthesized: the table that ships, and a user's.

`experiments.costs.netlists` recorded it (results/hardware.csv is the same file); every row names
the tool and its version. Areas are in two-input NAND gates.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from compiler.errors import ConfigError

TABLE = Path(__file__).with_name("circuits.csv")


@dataclass(frozen=True)
class Circuits:
    """A table of circuits.

    Attributes:
        areas: (format, accumulation, module) -> NAND2 equivalents; modules that are the same with
            every accumulator have an empty one. Of a circuit that adds several products at once,
            the share of one.
        tool: what synthesized all of them.
    """

    areas: Mapping[tuple[str, str, str], float]
    tool: str

    def mac(self, name: str, accumulate: str) -> float:
        """NAND2 equivalents of a multiply-accumulate of a format with sums of this kind.

        Raises:
            ConfigError: the table has no such circuit; names those of the format, or the formats.
        """
        found = self.areas.get((name, accumulate, "mac"))
        if found is not None:
            return found
        own = [mode for fmt, mode in self.macs() if fmt == name]
        formats = ", ".join(sorted({fmt for fmt, _ in self.macs()}))
        has = f"{name} with sums {', '.join(own)}" if own else formats
        raise ConfigError(
            f"no circuit of {name} with sums {accumulate!r} was synthesized; the table of circuits "
            f"has {has}; `python -m experiments.costs.netlists FILE --format {name} --accumulate "
            f"{accumulate}` makes one (--adapter X.py for a format of yours), for --circuits FILE"
        )

    def macs(self) -> dict[tuple[str, str], float]:
        """(format, accumulation) -> NAND2 equivalents of a multiply-accumulate."""
        return {
            (f, mode): area for (f, mode, module), area in self.areas.items() if module == "mac"
        }


def table(more: Path | None = None) -> Circuits:
    """The circuits that ship, and those of another file, which go before them.

    Raises:
        ConfigError: the file is no such table, or its circuits come from another tool.
    """
    shipped = _read(TABLE)
    if more is None:
        return shipped
    own = _read(more)
    if own.tool != shipped.tool:
        raise ConfigError(
            f"circuits of two tools are not compared: {more} has {own.tool}'s, those that ship are "
            f"{shipped.tool}'s; make the others with it, too"
        )
    return Circuits({**shipped.areas, **own.areas}, own.tool)


@cache
def _read(file: Path) -> Circuits:
    try:
        with file.open(newline="", encoding="utf-8") as lines:
            rows = list(csv.DictReader(lines))
        areas = {
            (r["format"], r["accumulate"], r["module"]): float(r["nand2"])
            / int(r.get("terms") or 1)
            for r in rows
        }
        tools = sorted({r["tool"] for r in rows})
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{file} is no table of circuits: {error}") from error
    if len(tools) != 1:
        raise ConfigError(f"{file} has circuits of {len(tools)} tools; one search takes one's")
    return Circuits(areas, tools[0])
