"""Engines: code generators and libraries that compute regions of a program in our place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from compiler.errors import ConfigError, InputError, UnsupportedError
from compiler.ir.expr import Function
from compiler.pattern.tables import (
    CompositePattern,
    pattern_table,
    register_pattern_table,
    remove_pattern_table,
)

Runner = Callable[..., Any]
"""Runs a region: called with its operands and then the results to fill, arrays in C order (or, if
it is a ctypes function pointer, a `DLTensor *` for each). They are there for the time of the call,
and it may be called from several threads at once."""

Compile = Callable[[Function, str], Runner]
"""Makes a runner of a region: a typed function whose values are calls of composites (functions with
the attribute `composite`) and of operators, with its constants inside; and its name. The function's
attribute `threads` says how many threads it may use."""


def _nothing() -> str:
    return ""


@dataclass(frozen=True)
class Engine:
    """A code generator that regions can be handed to.

    Attributes:
        name: how it is asked for.
        patterns: what it can compute, in the order in which they are tried.
        compile: makes what runs a region; raises DtypelabError if it cannot.
        missing: a sentence that says what to install for it to run here; empty: nothing.
        doc: what it is, in a line.
        on_caller: whether regions that may use one thread are computed on the thread that calls
            them, whose time on the processor measured costs go by then; else they go by the clock
            on the wall.
    """

    name: str
    patterns: tuple[CompositePattern, ...]
    compile: Compile
    missing: Callable[[], str] = _nothing
    doc: str = ""
    on_caller: bool = False


_engines: dict[str, Engine] = {}


def register_engine(engine: Engine, override: bool = False) -> Engine:
    """Let regions be handed to an engine, by its name; returns it.

    Raises:
        ConfigError: the name is taken and `override` is false, it is no name, or two of the
            engine's patterns have one name.
    """
    if not engine.name.isidentifier():
        raise ConfigError(f"an engine's name is letters, digits and '_', not {engine.name!r}")
    if engine.name in _engines and not override:
        raise ConfigError(f"engine {engine.name!r} is already registered: pass override=True")
    register_pattern_table(engine.name, engine.patterns)
    _engines[engine.name] = engine
    return engine


def remove_engine(name: str) -> None:
    """Forget an engine, if there is one of that name."""
    _engines.pop(name, None)
    remove_pattern_table(name)


def get_engine(name: str) -> Engine:
    """The engine called `name`.

    Raises:
        ConfigError: there is none; names the nearest.
    """
    pattern_table(name)  # imports the module of an engine that is shipped
    if name not in _engines:
        raise ConfigError(
            f"{name!r} has a table of patterns, and nothing that compiles regions: register an "
            "Engine of that name (compiler.register_engine)"
        )
    return _engines[name]


def usable_engine(name: str) -> Engine:
    """The engine called `name`, which runs here.

    Raises:
        ConfigError: there is none.
        UnsupportedError: what it needs is not installed; says what that is.
    """
    engine = get_engine(name)
    if missing := engine.missing():
        raise UnsupportedError(f"engine {name!r} cannot run here: {missing}")
    return engine


def checked(engines: Sequence[str] | str) -> tuple[str, ...]:
    """The names of engines, all of which run here.

    Raises:
        ConfigError: as `usable_engine`; or what is given is no name.
        UnsupportedError: as `usable_engine`.
        InputError: one is named twice.
    """
    named = (engines,) if isinstance(engines, str) else tuple(engines)
    for e in named:
        if not isinstance(e, str):
            raise ConfigError(f"an engine is called by its name, such as 'onednn', not {e!r}")
        if named.count(e) > 1:
            raise InputError(f"engine {e!r} is named twice: the order of engines is their priority")
        usable_engine(e)
    return named
