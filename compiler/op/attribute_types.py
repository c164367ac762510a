"""Whether attributes of operators have the types that their classes declare."""

from __future__ import annotations

import functools
import types
from numbers import Integral, Real
from typing import Any, Union, get_args, get_origin, get_type_hints

_KINDS: dict[type, type] = {int: Integral, float: Real}
"""Numbers of numpy are as good as Python's."""


@functools.cache
def declared(attrs: type) -> dict[str, Any]:
    """Attribute -> its type."""
    return get_type_hints(attrs)


def fits(value: Any, wanted: Any) -> bool:
    """Whether `value` is of a declared type: a class, a union, or a tuple type of these."""
    origin, inner = get_origin(wanted), get_args(wanted)
    if origin in (Union, types.UnionType):
        return any(fits(value, t) for t in inner)
    if origin is not tuple:
        return not isinstance(wanted, type) or isinstance(value, _KINDS.get(wanted, wanted))
    if not isinstance(value, tuple):
        return False
    if inner[-1:] == (...,):
        return all(fits(x, inner[0]) for x in value)
    return len(value) == len(inner) and all(map(fits, value, inner))


def text(wanted: Any) -> str:
    """A type for people."""
    return wanted.__name__ if isinstance(wanted, type) and not get_args(wanted) else str(wanted)
