"""Sums of integers that stop at the ends of a range: the update `Add<bits>` of a Store."""

from __future__ import annotations

import re
from functools import cache


@cache
def range_of(update: str) -> tuple[int, int] | None:
    """(least, largest) sum of an update `Add<bits>`; None for every other update.

    The buffer's dtype must hold every sum before it is limited.
    """
    found = re.fullmatch(r"Add(\d+)", update)
    if found is None:
        return None
    half = 1 << (int(found[1]) - 1)
    return -half, half - 1
