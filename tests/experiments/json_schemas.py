"""As much of JSON schema as ours use, to hold data against them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "boolean": (bool,),
    "integer": (int,),
    "number": (int, float),
    "array": (list, tuple),
    "object": (dict,),
}
_WORDS = {"$schema", "title", "description", "default", "examples"}
_BOUNDS = {
    "pattern": lambda v, text: not isinstance(v, str) or re.search(text, v) is not None,
    "minimum": lambda x, b: x >= b,
    "maximum": lambda x, b: x <= b,
    "exclusiveMinimum": lambda x, b: x > b,
    "exclusiveMaximum": lambda x, b: x < b,
    "minItems": lambda x, b: len(x) >= b,
    "minLength": lambda x, b: len(x) >= b,
    "minProperties": lambda x, b: len(x) >= b,
    "uniqueItems": lambda x, b: not any(v in x[:k] for k, v in enumerate(x)),
}


def is_type(value: Any, names: str | list[str]) -> bool:
    """Whether a value has one of the types of these names; truth values are no numbers."""
    flag = isinstance(value, bool)
    return any(
        isinstance(value, _TYPES[n]) and (n == "boolean" or not flag)
        for n in ([names] if isinstance(names, str) else names)
    )


def misfits(value: Any, schema: dict[str, Any], where: str = "") -> Iterator[str]:
    """Where a value is not as a schema says. A word that is not known here is a KeyError."""
    for word, wanted in schema.items():
        if word in _WORDS or word in ("required", "properties"):
            continue
        if word == "type":
            if not is_type(value, wanted):
                yield f"{where} must be {wanted}, not {value!r}"
                return
        elif word == "enum":
            if value not in wanted:
                yield f"{where} must be one of {wanted}, not {value!r}"
        elif word == "const":
            if value != wanted:
                yield f"{where} must be {wanted!r}, not {value!r}"
        elif word == "anyOf":
            if all(any(misfits(value, one, where)) for one in wanted):
                yield f"{where} is none of what it may be: {value!r}"
        elif word == "items":
            for k, item in enumerate(value):
                yield from misfits(item, wanted, f"{where}[{k}]")
        elif word == "additionalProperties":
            known = schema.get("properties", {})
            for key, inner in value.items():
                if key in known:
                    yield from misfits(inner, known[key], f"{where}.{key}")
                elif wanted is False:
                    yield f"{where} has no {key!r}"
                else:
                    yield from misfits(inner, wanted, f"{where}.{key}")
            yield from (
                f"{where} lacks {k!r}" for k in schema.get("required", ()) if k not in value
            )
        elif not _BOUNDS[word](value, wanted):
            yield f"{where}: {word} is {wanted}, not {value!r}"
