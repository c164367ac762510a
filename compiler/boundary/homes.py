"""Things outside that are shipped: which module registers them, once they are asked for."""

from __future__ import annotations

import importlib


class Homes:
    """Names of one kind, and the modules that register them."""

    def __init__(self) -> None:
        self._modules: dict[str, str] = {}

    def comes_with(self, name: str, module: str) -> None:
        """Say which module, as it is imported, registers `name`."""
        self._modules[name] = module

    def fetch(self, name: str) -> None:
        """Import the module that registers `name`, if there is one."""
        if name in self._modules:
            importlib.import_module(self._modules[name])

    def names(self) -> list[str]:
        """All of them, sorted."""
        return sorted(self._modules)


FUNCTIONS = Homes()
"""Of external functions."""
ENGINES = Homes()
"""Of engines."""
