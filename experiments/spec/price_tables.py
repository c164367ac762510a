"""A user's tables of what operations cost: in a specification, or in a TOML file of their own."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from experiments.systems.energy import check_key, check_pair

from .reader import Reader

Prices = tuple[tuple[str, float], ...]
"""What an operation is of, and what it costs."""
TABLES: dict[str, Callable[[str], None]] = {
    "energy": check_key,
    "gates": check_pair,
    "area": check_pair,
}


def price_tables(top: Reader) -> dict[str, Prices]:
    """The tables `energy`, `gates` and `area`; empty where there are none.

    Raises:
        ConfigError: a key names nothing that costs, or a cost is no number from 0.
    """
    return {name: _table(top.table(name), check) for name, check in TABLES.items()}


def read_price_tables(file: Path) -> dict[str, Prices]:
    """The tables of a TOML file that has nothing else.

    Raises:
        ConfigError: it cannot be read, has another key or no prices, or as `price_tables`.
    """
    top = Reader.open(file)
    top.only(TABLES)
    found = price_tables(top)
    if not any(found.values()):
        top.fail(f"no prices: give at least one of the tables {', '.join(TABLES)}")
    return found


def _table(table: Reader, check: Callable[[str], None]) -> Prices:
    prices = table.numbers(0.0)
    for key in prices:
        table.checked(partial(check, key), key)
    return tuple(prices.items())
