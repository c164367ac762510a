"""Names that nobody has yet."""

from __future__ import annotations


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
