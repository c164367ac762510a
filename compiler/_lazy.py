"""Public names that are imported when first used, so that importing a package stays fast."""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

IMPORTED_AT = time.time()
"""When this process began to import the package: source files changed since then are not what it
runs."""


def lazy(
    package: str, names: Mapping[str, Sequence[str]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """`__getattr__`, `__dir__` and `__all__` for a package: module -> the public names it provides.

    >>> __getattr__, __dir__, __all__ = lazy(__name__, {"pkg.module": ["f"]})    # doctest: +SKIP
    """
    home = {name: module for module, public in names.items() for name in public}

    def get(name: str) -> Any:
        if name not in home:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(home[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    class Package(ModuleType):
        """A package whose public names win over modules of the same name (`compiler.build`), which
        importing them would put in their place."""

        def __setattr__(self, name: str, value: object) -> None:
            if name not in home or not isinstance(value, ModuleType):
                super().__setattr__(name, value)

    sys.modules[package].__class__ = Package

    def listing() -> list[str]:
        return sorted({*vars(sys.modules[package]), *home})

    return get, listing, sorted(home)
