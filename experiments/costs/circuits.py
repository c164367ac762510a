"""Gates of formats' own circuits, as they were synthesized: the table that ships.

`experiments.costs.netlists` recorded it (results/hardware.csv is the same file); every row names
the tool and its version. Areas are in two-input NAND gates.
"""

from __future__ import annotations

import csv
from functools import cache
from pathlib import Path

from compiler.errors import ConfigError

TABLE = Path(__file__).with_name("circuits.csv")


@cache
def mac_areas() -> dict[tuple[str, str], float]:
    """(format, accumulation) -> NAND2 equivalents of a multiply-accumulate: where a circuit adds
    several products at once, its share."""
    with TABLE.open(newline="", encoding="utf-8") as file:
        return {
            (row["format"], row["accumulate"]): float(row["nand2"]) / int(row["terms"])
            for row in csv.DictReader(file)
            if row["module"] == "mac"
        }


def mac_area(name: str, accumulate: str) -> float:
    """NAND2 equivalents of a multiply-accumulate of a format with sums of this kind.

    Raises:
        ConfigError: the table has no such circuit; names those of the format, or the formats.
    """
    known = mac_areas()
    if (name, accumulate) in known:
        return known[name, accumulate]
    own = [mode for fmt, mode in known if fmt == name]
    has = f"{name} with sums {', '.join(own)}" if own else ", ".join(sorted({f for f, _ in known}))
    raise ConfigError(
        f"no circuit of {name} with sums {accumulate!r} was synthesized; the table of circuits has "
        f"{has}; `dtypelab dtype hardware {name} --accumulate {accumulate}` makes one"
    )
