"""Functions outside that are shipped: which module registers them, once they are asked for."""

from __future__ import annotations

_homes: dict[str, str] = {}


def comes_with(function: str, module: str) -> None:
    """Say which module, as it is imported, registers an external function."""
    _homes[function] = module


def home_of(function: str) -> str:
    """The module that registers it; empty if none was named."""
    return _homes.get(function, "")
