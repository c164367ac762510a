"""How busy everybody else keeps this machine's processors."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

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
