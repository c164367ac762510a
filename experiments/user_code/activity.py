"""What a process is doing just now, and whose code that is: for whoever watches it, and for errors.

Steps nest; the innermost one is told to the process that watches this one, if any does. An
exception carries the innermost step of a user's code that it came out of.
"""

from __future__ import annotations

import contextlib
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from compiler.errors import ConfigError, DtypelabError

#: Attribute of exceptions: the step that they came out of.
_MARK = "_dtypelab_step"


@dataclass(frozen=True)
class Step:
    """Something that is being done, and whether code of a user does it."""

    text: str
    users: bool


_steps: list[Step] = []
_tell: Callable[[Step], None] | None = None


def watched(tell: Callable[[Step], None]) -> None:
    """From now on let `tell` know of every step."""
    global _tell
    _steps.clear()
    _tell = tell


@contextlib.contextmanager
def at(text: str, *, users: bool = True) -> Iterator[None]:
    """Within, the process does what `text` says; `users`: in code of a user."""
    step = Step(text, users)
    _steps.append(step)
    beat()
    try:
        yield
    except BaseException as error:
        if users and getattr(error, _MARK, None) is None:
            with contextlib.suppress(Exception):  # a user's exception may refuse attributes
                setattr(error, _MARK, step)
        raise
    finally:
        _steps.pop()
        beat()


@contextlib.contextmanager
def calling(text: str) -> Iterator[None]:
    """As `at`, for a function of the user that reads a specification calls.

    Raises:
        ConfigError: it raises an exception.
    """
    try:
        with at(text):
            yield
    except DtypelabError:
        raise
    except (Exception, SystemExit) as error:
        raise ConfigError(explained(error)) from error


def is_watched() -> bool:
    """Whether another process is told."""
    return _tell is not None


def beat() -> None:
    """Say that the current step goes on."""
    if _tell is not None and _steps:
        _tell(_steps[-1])


def explained(error: BaseException) -> str:
    """What an exception says, after the code of a user that raised it."""
    step = step_of(error)
    return f"{step.text}: {in_words(error)}" if step else in_words(error)


def in_words(error: BaseException) -> str:
    """What an exception says, with its kind unless it is one of ours."""
    kind = type(error).__name__
    try:
        said = str(error)
    except (Exception, SystemExit):  # a user's `__str__` may fail too
        said = "(its text cannot be had)"
    if isinstance(error, DtypelabError):
        return said
    if isinstance(error, MemoryError):
        return f"out of memory{': ' + said if said else ''}"
    return f"{kind}: {said}" if said else kind


def step_of(error: BaseException) -> Step | None:
    """The step of a user's code that an exception came out of, if it did."""
    step = getattr(error, _MARK, None)
    return step if isinstance(step, Step) else None


def place_of(function: Any) -> str:
    """Where a function is written, as far as it says so: " (NAME of FILE)"."""
    code = getattr(function, "__code__", None)
    if not isinstance(code, types.CodeType):
        return ""
    return f" ({code.co_qualname} of {Path(code.co_filename).name})"
