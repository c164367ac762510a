"""Errors a caller can cause. Each message is one sentence that says what to do next."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from functools import lru_cache
from typing import Any


class DtypelabError(Exception):
    """Base of every error that a caller can cause; the command line prints it and exits 2."""


class DtypelabWarning(UserWarning):
    """Something that a user should know, though it is no error; one sentence, as errors are."""


class ModelError(DtypelabError):
    """A model file cannot be read, or holds something that is not a valid model."""


class ParseError(ModelError):
    """Text that is not a program; says where."""


class UnsupportedError(DtypelabError):
    """An operator, attribute, dtype or target that exists but that we do not implement."""


class TypeInferenceError(DtypelabError):
    """Shapes or dtypes in a program do not fit together."""


class UnequalSizes(TypeInferenceError):
    """Dimensions that must be equal are not known to be.

    Attributes:
        pairs: the dimensions, two by two.
    """

    def __init__(self, message: str, pairs: Iterable[tuple[Any, Any]]):
        super().__init__(message)
        self.pairs = tuple(pairs)


class VerifyError(DtypelabError):
    """A program breaks an invariant of the intermediate representation."""


class InputError(DtypelabError):
    """A model was called with inputs of the wrong name, rank, shape or dtype."""


class OutOfMemoryError(InputError, MemoryError):
    """There is no room for the values of a model, for inputs of these sizes."""


class MachineError(DtypelabError):
    """A machine that runs programs of another architecture has stopped, or a program on it."""


class LoweringError(DtypelabError):
    """A scalar operation has no lowering for a dtype and target."""


class ScheduleError(DtypelabError):
    """A schedule primitive does not apply to the loop nest it was given."""


class ConfigError(DtypelabError):
    """A configuration, plan or specification has an unknown key or a wrong value."""


_COMPARED = 2000
"""Names among which the nearest are looked for."""
_LISTED = 600
"""Characters of names that a message lists."""


def nearest(name: str, known: Iterable[str], count: int = 3) -> list[str]:
    """The `count` names of `known` that look most like `name`, best first.

    Of very many names, none: comparing takes long.
    """
    names = tuple(sorted(set(known)))
    return [] if len(names) > _COMPARED else list(_nearest(name, names, count))


@lru_cache(maxsize=256)
def _nearest(name: str, names: tuple[str, ...], count: int) -> list[str]:
    """The same of sorted names; whoever tries what a name may be asks for the same ones again."""
    close = difflib.get_close_matches(name, names, n=count, cutoff=0.5)
    if close:
        return close
    folded = {n.lower(): n for n in names}
    return [folded[n] for n in difflib.get_close_matches(name.lower(), folded, n=count, cutoff=0.4)]


def unknown(kind: str, name: str, known: Iterable[str]) -> str:
    """Sentence for an unknown `kind` called `name`, suggesting the nearest known names."""
    names = sorted(set(known))
    close = nearest(name, names)
    if close:
        return f"unknown {kind} {name!r}; did you mean {', '.join(map(repr, close))}?"
    listed = ", ".join(names) or "none"
    if len(listed) > _LISTED:
        listed = f"{listed[:_LISTED]} ... ({len(names)} in all)"
    return f"unknown {kind} {name!r}; known: {listed}"
