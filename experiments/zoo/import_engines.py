"""Engines that compute what cannot be imported of the models that are loaded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

from experiments.feeds import Array

if TYPE_CHECKING:
    from compiler.types.tensor_types import TensorType

_engines: ContextVar[tuple[str, ...]] = ContextVar("engines", default=())


@contextmanager
def imported_with(engines: Iterable[str]) -> Iterator[None]:
    """Have these engines compute what cannot be imported, in all models that are loaded from here
    on (in this thread): those of `engines` that take nodes of files, others are passed over."""
    from compiler.ir.handed import ENGINES

    before = _engines.set(tuple(e for e in engines if e in ENGINES))
    try:
        yield
    finally:
        _engines.reset(before)


def importing_with() -> tuple[str, ...]:
    """The engines that compute what cannot be imported, of models that are loaded here and now."""
    return _engines.get()


def as_held(a: Array, t: TensorType | None, name: str) -> Array:
    """Texts as the bytes that a model with strings holds; other arrays as they are."""
    from compiler.boundary.packed import strings_packed

    if t is None or a.dtype.kind not in "UST" or a.ndim != t.rank - 1 or str(t.dtype) != "uint8":
        return a
    return strings_packed(a, f"input {name!r}")
