"""Packages that provide number formats, found when a name is asked for that nobody has registered.

A provider is a module that registers its formats with `compiler.types.dtypes` as it is imported. An
installed package names it in its metadata, under the entry points `dtypelab.formats`:

    [project.entry-points."dtypelab.formats"]
    mine = "my_package.formats"

A checkout that is on the path but not installed has no metadata; its `pyproject.toml`, where the
metadata would come from, is read instead. So this package knows no provider by name.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable
from pathlib import Path

from compiler.errors import DtypelabError

GROUP = "dtypelab.formats"

libraries: list[Callable[[str], object]] = []
"""Told the name of a C function that saved code calls and no loaded library has: one that knows the
function's library loads it."""

_lock = threading.RLock()
_loaded = False


def providers() -> tuple[str, ...]:
    """Names of the modules that provide number formats."""
    import importlib.metadata  # as late as this: it takes longer to load than `compiler`

    found = [e.value for e in importlib.metadata.entry_points(group=GROUP)]
    return tuple(dict.fromkeys([*found, *_of_checkout(Path(__file__).parents[2])]))


def load_providers() -> None:
    """Import every provider, once in a process.

    Raises:
        DtypelabError: one of them cannot be imported.
    """
    global _loaded
    with _lock:  # another thread waits until the formats are there
        if _loaded:
            return
        _loaded = True  # first: providers ask for names themselves as they are imported
        for name in providers():
            try:
                importlib.import_module(name)
            except ImportError as e:
                _loaded = False
                raise DtypelabError(f"number formats of {name!r} cannot be loaded: {e}") from e


def load_library_of(function: str) -> None:
    """Load the library of a C function that a provider's formats call; others stay as they are."""
    load_providers()
    for load in libraries:
        load(function)


def _of_checkout(folder: Path) -> list[str]:
    """The providers that the project in `folder` declares, if it is a checkout of this one."""
    import tomllib

    try:
        project = tomllib.loads((folder / "pyproject.toml").read_text("utf-8"))["project"]
        if project["name"] != "dtypelab":
            return []
        return [str(module) for module in project["entry-points"][GROUP].values()]
    except (OSError, KeyError, ValueError, TypeError):
        return []  # an installed package: its metadata says it


__all__ = ["GROUP", "libraries", "load_library_of", "load_providers", "providers"]
