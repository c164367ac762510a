"""Engines that are libraries: a C function of a shared library for each composite, by ctypes."""

from __future__ import annotations

import ctypes
import ctypes.util
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from compiler.boundary.external import DLTensor
from compiler.engines.engine import Engine, Runner
from compiler.engines.sequence import Routine, constants_of, routine_engine
from compiler.errors import MachineError, UnsupportedError
from compiler.ir.expr import Function
from compiler.pattern.search import Found
from compiler.pattern.tables import CompositePattern
from compiler.types.dtypes import Array


@dataclass(frozen=True)
class LibraryFunction:
    """A function of a library, and the composites that it computes.

    It is called with a `DLTensor *` (dlpack.h) for each parameter of the composite, each constant
    in it, and each result to fill, in this order, and then with what `more` gives: integers or
    floats of attributes, say. It returns 0, or the number of an error.

    Attributes:
        pattern: what the composites look like.
        symbol: the function's name.
        more: further arguments, as ctypes values, of what the pattern's names stand for.
    """

    pattern: CompositePattern
    symbol: str
    more: Callable[[Found], Sequence[Any]] = lambda _: ()


def library_engine(
    name: str,
    path: str | os.PathLike[str] | Callable[[], str | None],
    functions: Sequence[LibraryFunction],
    install: str,
    doc: str = "",
) -> Engine:
    """An engine whose composites are functions of a shared library (not registered yet).

    Args:
        name: the engine's.
        path: of the library, or what finds that (None: it is not there).
        functions: of the library.
        install: what to do where it is not there, as `pip install ...`.
        doc: what it is.
    """
    held: list[ctypes.CDLL] = []

    def where() -> str | None:
        found = path() if callable(path) else os.fspath(path)
        return found if found is not None and os.path.isfile(found) else None

    def missing() -> str:
        return "" if where() is not None else f"its library is not there: {install}"

    def opened() -> ctypes.CDLL:
        if not held:
            at = where()
            if at is None:
                raise UnsupportedError(missing())
            try:
                held.append(ctypes.CDLL(at))
            except OSError as e:
                raise UnsupportedError(f"its library cannot be loaded: {e}") from None
        return held[0]

    def routine(f: LibraryFunction) -> Routine:
        def compute(found: Found, c: Function) -> Runner:
            return _caller(_symbol(opened(), f.symbol), f, found, c)

        return Routine(f.pattern, compute)

    return routine_engine(name, tuple(map(routine, functions)), missing, doc)


def _symbol(library: ctypes.CDLL, name: str) -> Any:
    try:
        function = library[name]
    except AttributeError:
        raise UnsupportedError(f"its library {library._name!r} has no function {name!r}") from None
    function.restype = ctypes.c_int
    return function


def _caller(function: Any, f: LibraryFunction, found: Found, c: Function) -> Runner:
    constants = [k.data for k in constants_of(c)]
    more, count = tuple(f.more(found)), len(c.params)

    def run(*arrays: Array) -> None:
        tensors = [DLTensor.of(a) for a in (*arrays[:count], *constants, *arrays[count:])]
        code = function(*map(ctypes.byref, tensors), *more)
        if code:
            raise MachineError(f"{f.symbol} returned {code}")

    return run
