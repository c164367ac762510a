"""Functions that an executable registers for itself, as those that run what other code generators
and devices compute of it."""

from __future__ import annotations

import _ctypes
import itertools
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from compiler.boundary.external import ExternalFunction, register_func, remove_func
from compiler.errors import DtypelabError, MachineError

_numbers = itertools.count()


class Registered:
    """Functions that are registered for as long as this is alive, each under a name of its own."""

    def __init__(self) -> None:
        self._names: list[str] = []
        self._end = weakref.finalize(self, _forget, self._names)

    def add(self, title: str, f: ExternalFunction) -> str:
        """Register a function; what it is called, which begins with its title."""
        name = f"{title}#{next(_numbers)}"
        register_func(name, f)
        self._names.append(name)
        return name


def _forget(names: Sequence[str]) -> None:
    for name in names:
        remove_func(name)


@contextmanager
def naming(where: str) -> Iterator[None]:
    """Within it somebody else's code compiles something: our errors say first where that was."""
    try:
        yield
    except DtypelabError as e:
        e.args = (f"{where}: {e}",)
        raise


@contextmanager
def failing(said: str) -> Iterator[None]:
    """Within it somebody else's code runs: what it raises begins so, and is a MachineError, unless
    it is an error of ours."""
    try:
        with naming(said):
            yield
    except DtypelabError:
        raise
    except Exception as e:
        raise MachineError(f"{said}: {type(e).__name__}: {e}") from e


def guarded(said: str, f: ExternalFunction) -> ExternalFunction:
    """A function whose errors begin so; one in C, which raises none, as it is."""
    if isinstance(f, _ctypes.CFuncPtr):
        return f

    def run(*arrays: Any) -> None:
        with failing(said):
            f(*arrays)

    return run
