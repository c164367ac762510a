"""Bounds of sums and operations from those of their operands."""

from __future__ import annotations

from collections.abc import Iterable

Bounds = tuple[int | None, int | None]
"""The smallest and the largest value; None: unknown."""


def sum_bounds(const: int, terms: Iterable[tuple[Bounds, int]]) -> Bounds:
    """Bounds of `const` and terms, of which each is (bounds of a number, what it is times)."""
    lo: int | None = const
    hi: int | None = const
    for (low, high), c in terms:
        if c < 0:
            low, high = high, low
        lo = None if lo is None or low is None else lo + c * low
        hi = None if hi is None or high is None else hi + c * high
    return lo, hi


def operation_bounds(op: str, a: Bounds, b: Bounds) -> Bounds:
    """Bounds of `a op b`, where op is `//`, `%`, `min` or `*`."""
    (al, ah), (bl, bh) = a, b
    if op == "%" and bh is not None:
        return 0, bh - 1
    if op == "//" and bl is not None and bl > 0:
        if bh == bl:
            return None if al is None else al // bl, None if ah is None else ah // bl
        return 0 if al is not None and al >= 0 else None, ah
    if op == "min":
        lo = None if al is None or bl is None else min(al, bl)
        return lo, min((h for h in (ah, bh) if h is not None), default=None)
    if op == "*" and al is not None and bl is not None and al >= 0 and bl >= 0:
        return al * bl, None if ah is None or bh is None else ah * bh
    return None, None
