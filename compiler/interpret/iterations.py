"""How often a loop of a model may run, as its condition may never become false.

A million times, unless `limit_iterations` or the environment variable DTYPELAB_ITERATIONS says
otherwise; the same in every executor.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from contextvars import ContextVar

from compiler.errors import ConfigError, InputError

VARIABLE = "DTYPELAB_ITERATIONS"
MOST = 1_000_000
"""Iterations of a loop, unless somebody says otherwise."""

_given: ContextVar[int | None] = ContextVar("iterations", default=None)


@contextlib.contextmanager
def limit_iterations(most: int) -> Iterator[None]:
    """Within, no loop of a model runs more often than `most` times.

    Raises:
        ConfigError: it is no positive number.
    """
    if isinstance(most, bool) or not isinstance(most, int) or most < 1:
        raise ConfigError(f"loops run a positive number of times at most, not {most!r}")
    before = _given.set(most)
    try:
        yield
    finally:
        _given.reset(before)


def most_iterations() -> int:
    """How often a loop may run.

    Raises:
        ConfigError: the environment variable is no positive number.
    """
    given = _given.get()
    if given is not None:
        return given
    text = os.environ.get(VARIABLE, "")
    if not text:
        return MOST
    if not text.isdecimal() or not 1 <= int(text) < 2**63:
        raise ConfigError(f"{VARIABLE}={text!r} is no positive number of iterations")
    return int(text)


def endless(name: str, origins: Sequence[str], most: int) -> InputError:
    """What to say of a loop that went on for `most` iterations, the value of which is `name`."""
    nodes = f" (node {', '.join(origins)})" if origins else ""
    return InputError(
        f"the loop %{name}{nodes} goes on after {most} iterations: is there an end to it? To allow "
        f"more, set {VARIABLE} or use compiler.limit_iterations"
    )
