"""Names that nobody has yet."""

from __future__ import annotations


def unique(stem: str, taken: set[str]) -> str:
    """`stem`, or `stem_1`, `stem_2` ... if that is taken; the result is added to `taken`."""
    name, k = stem, 1
    while name in taken:
        name, k = f"{stem}_{k}", k + 1
    taken.add(name)
    return name
