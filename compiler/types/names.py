"""Names: those that nobody has yet, and how any name at all is written down."""

from __future__ import annotations

import hashlib
import json
import re

BARE = r"[\w/]+(?:\.[\w/]+)*"
"""A name that stands in a program's text as it is, if it does not end like a tuple's field."""
_BARE = re.compile(BARE)
_FIELD = re.compile(r"\.\d+$")


def printed(name: str) -> str:
    """`%name`, or `%"name"` where it could be taken for something else, with colons or spaces.

    A model's inputs and outputs have the names that the model gives them, whatever these are.
    """
    if _BARE.fullmatch(name) and not _FIELD.search(name):
        return f"%{name}"
    return f"%{json.dumps(name, ensure_ascii=not name.isprintable())}"


def identifier(name: str) -> str:
    """`name` as a Python keyword argument: everything but ASCII letters and digits is one `_`.

    Empty if nothing is left of it.
    """
    stem = re.sub(r"[^A-Za-z0-9_]+", "_", name).strip("_")
    return f"v{stem}" if stem[:1].isdigit() else stem


def unique(stem: str, taken: set[str]) -> str:
    """`stem`, or `stem_1`, `stem_2` ... if that is taken; the result is added to `taken`.

    Numbers are given in order, so the next one is found by doubling and halving: naming the values
    of an unrolled loop takes time in proportion to them.
    """
    if stem not in taken:
        taken.add(stem)
        return stem
    low, high = 0, 1  # `stem_low` is taken (or stem itself)
    while f"{stem}_{high}" in taken:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if f"{stem}_{middle}" in taken else (low, middle)
    taken.add(f"{stem}_{high}")
    return f"{stem}_{high}"


def digest(*parts: str) -> str:
    """16 hexadecimal digits that tell texts apart."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
