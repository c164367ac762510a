"""What may disturb a measurement of latency: how busy others keep the processors, keeping a thread
on one of them, and how a row of results says it."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
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


#: The shortest time over which load can be told: the system counts in ticks of 10 ms.
SHORTEST_S = 0.1


@dataclass(frozen=True)
class Usage:
    """Seconds so far: by the clock, of processors at work for anybody, and for this process.

    `everybody` is None where the system does not tell.
    """

    wall: float
    everybody: float | None
    process: float

    @classmethod
    def now(cls) -> Usage:
        """As it is now, over all processors of the machine."""
        return cls(time.perf_counter(), _busy_seconds(), time.process_time())


def others_load(before: Usage, after: Usage) -> float | None:
    """How many processors others kept busy on average between two moments.

    None where the system does not tell, or the moments are less than `SHORTEST_S` apart.
    """
    elapsed = after.wall - before.wall
    if before.everybody is None or after.everybody is None or elapsed < SHORTEST_S:
        return None
    others = (after.everybody - before.everybody) - (after.process - before.process)
    return max(0.0, others / elapsed)


def _busy_seconds() -> float | None:
    """Of all processors together, since the machine started; what the hypervisor took counts."""
    try:
        with open("/proc/stat", encoding="ascii") as file:
            fields = file.readline().split()
    except OSError:
        return None
    user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, fields[1:9])
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def pinned(threads: int) -> Iterator[None]:
    """Keep this thread, and those it starts, on the last `threads` CPUs that it may use (where the
    system can)."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, set(sorted(allowed)[-threads:]))
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)
