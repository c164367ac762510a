"""What may have disturbed a measurement of latency, as a row of results says it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

PREEMPTED, LOADED, IMPRECISE = "preempted", "loaded", "imprecise"

#: Reason -> what it means. The order is that of the column `latency_noise`.
MEANINGS = {
    PREEMPTED: "others took the processor from the measuring thread",
    LOADED: "others kept processors busy beside it",
    IMPRECISE: "the speed-up's 95 % interval is wider than wanted",
}


def written(reasons: Iterable[str]) -> str:
    """The column `latency_noise`."""
    return " ".join(reasons) or "none"


def read(column: Any) -> tuple[str, ...]:
    """The reasons in a column; none where there are none, or where latency was not measured."""
    return tuple(reason for reason in str(column).split() if reason in MEANINGS)


def explained(reasons: Iterable[str]) -> str:
    """Reasons and what they mean, as a sentence without its end."""
    given = set(reasons)
    return "; ".join(f"{reason}: {text}" for reason, text in MEANINGS.items() if reason in given)
