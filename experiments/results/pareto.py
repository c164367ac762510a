"""The Pareto front: what is worth its cost."""

from __future__ import annotations

from collections.abc import Iterable


def front(savings: Iterable[float], worths: Iterable[float]) -> list[int]:
    """Places of those that no other equals on one side and beats on the other, in their order.

    Args:
        savings: what each costs, with signs turned so that more is better.
        worths: what each is worth, more is better.
    """
    points = list(zip(savings, worths, strict=True))
    return [
        k
        for k, (saving, worth) in enumerate(points)
        if not any(s >= saving and w >= worth and (s, w) != (saving, worth) for s, w in points)
    ]
