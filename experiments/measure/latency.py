"""Wall-clock latency of compiled networks, with the float32 baseline measured in between."""

from __future__ import annotations

import contextlib
import gc
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from compiler.errors import ConfigError

Thunk = Callable[[], object]


@dataclass(frozen=True)
class LatencyStats:
    """Milliseconds per call over `runs` calls; percentiles interpolate linearly."""

    runs: int
    min: float
    median: float
    mean: float
    p90: float
    p99: float
    stdev: float

    @classmethod
    def of(cls, milliseconds: Sequence[float]) -> LatencyStats:
        """Statistics of at least one measured time; `stdev` is 0 for a single one."""
        times = np.asarray(milliseconds, dtype=np.float64)
        median, p90, p99 = np.percentile(times, [50, 90, 99])
        return cls(
            runs=times.size,
            min=float(times.min()),
            median=float(median),
            mean=float(times.mean()),
            p90=float(p90),
            p99=float(p99),
            stdev=float(times.std(ddof=1)) if times.size > 1 else 0.0,
        )


def measure_interleaved(calls: Sequence[Thunk], *, warmup: int, runs: int) -> list[LatencyStats]:
    """Time several calls in turn, so that clock and load drift hit all of them alike.

    Every call is first made `warmup` times, then `runs` rounds of one call each are timed. A call
    is slowed by the one before it, whose data is in the caches, so every round has an order of its
    own.

    Raises:
        ConfigError: `warmup` is negative or `runs` is not positive.
    """
    if warmup < 0 or runs < 1:
        raise ConfigError(
            f"latency needs warmup >= 0 and runs >= 1, got warmup {warmup} and runs {runs}"
        )
    for call in calls:
        for _ in range(warmup):
            call()
    times: list[list[float]] = [[] for _ in calls]
    order, shuffled = list(zip(calls, times, strict=True)), random.Random(0)
    with no_garbage_collection():
        for _ in range(runs):
            shuffled.shuffle(order)
            for call, record in order:
                start = time.perf_counter_ns()
                call()
                record.append((time.perf_counter_ns() - start) / 1e6)
    return [LatencyStats.of(record) for record in times]


@contextlib.contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Keep the garbage collector from running in between."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
