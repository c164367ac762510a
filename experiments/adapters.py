"""Adapters: a user's Python files that bring models, data sets and metrics into a specification.

A specification names a function as FILE.py:FUNCTION, or lists files under `adapters`, which call
`experiments.register_model`, `register_dataset` and `register_metric`. The text of a file travels
with the cells, so that worker processes and other machines run the same one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from compiler.errors import ConfigError


@dataclass(frozen=True)
class Adapter:
    """A file's path, as specifications name it, and its text."""

    path: str
    text: str

    @property
    def sha256(self) -> str:
        """SHA-256 of the text."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    @classmethod
    def read(cls, path: str | Path) -> Adapter:
        """The file at `path`.

        Raises:
            ConfigError: it cannot be read.
        """
        try:
            return cls(str(path), Path(path).read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"cannot read adapter {path}: {error}") from error


_run: dict[str, tuple[Adapter, dict[str, Any]]] = {}


def install(adapter: Adapter) -> dict[str, Any]:
    """Run the adapter, unless it has run as it is now; its names.

    Raises:
        ConfigError: it raises an exception.
    """
    known = _run.get(adapter.path)
    if known is not None and known[0] == adapter:
        return known[1]
    names: dict[str, Any] = {"__name__": Path(adapter.path).stem, "__file__": adapter.path}
    try:
        exec(compile(adapter.text, adapter.path, "exec"), names)
    except Exception as error:
        raise ConfigError(
            f"adapter {adapter.path} failed: {type(error).__name__}: {error}"
        ) from error
    _run[adapter.path] = (adapter, names)
    return names


def is_reference(name: str) -> bool:
    """Whether `name` is written FILE.py:FUNCTION."""
    file, colon, _ = name.rpartition(":")
    return bool(colon) and file.endswith(".py")


def refresh(name: str) -> None:
    """Run the file of FILE.py:FUNCTION as it is now, unless it has run so.

    Raises:
        ConfigError: it cannot be read, or raises an exception.
    """
    install(Adapter.read(name.rpartition(":")[0]))


def current(path: str) -> Adapter:
    """The adapter of this path: the one that has run, or the file.

    Raises:
        ConfigError: it cannot be read.
    """
    return _run[path][0] if path in _run else Adapter.read(path)


def adapter_of(name: str) -> Adapter:
    """The adapter that FILE.py:FUNCTION names; see `current`."""
    return current(name.rpartition(":")[0])


def function(name: str) -> Callable[..., Any]:
    """The function that FILE.py:FUNCTION names.

    Raises:
        ConfigError: the file cannot be read, fails, or has no such function.
    """
    adapter, wanted = adapter_of(name), name.rpartition(":")[2]
    found = install(adapter).get(wanted)
    if not callable(found):
        raise ConfigError(f"adapter {adapter.path} has no function {wanted!r}")
    called: Callable[..., Any] = found
    return called
