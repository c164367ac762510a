"""How many times as fast as a baseline a call is, how sure that is, and what disturbed it.

The two calls take turns until the interval around the ratio is tight or the time is used up. Both
are timed by the clock and by the processor time of this thread: what the clock shows beyond that
was lost to somebody else, and says nothing about the call.
"""

from __future__ import annotations

import contextlib
import math
import os
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from . import disturbance as noise
from .disturbance import Usage, others_load, pinned
from .latency import LatencyStats, Thunk, no_garbage_collection

#: Seconds before the first look at the interval: what lasts less is no sample of the machine.
SETTLE_S = 0.2
#: Parts that the rounds are divided into. Each is long beside the turns of a scheduler (4 ms), so
#: that a burst of load spoils one or two of them and not the independence of all.
BLOCKS = 20
#: Share of the time that others may take from this thread, and processors that they may keep busy
#: (or share of all), before a measurement counts as disturbed.
LOST, LOAD, LOAD_SHARE = 0.05, 0.25, 0.05


@dataclass(frozen=True)
class Protocol:
    """How long is measured.

    Attributes:
        warmup: calls before the first that counts.
        runs: rounds at least.
        precision: half the width of the 95 % interval, as a share of the ratio, that is enough.
        budget_s: seconds after which no round begins, if `runs` are done; 0: `runs` rounds exactly.
    """

    warmup: int
    runs: int
    precision: float = 0.02
    budget_s: float = 2.0


@dataclass(frozen=True)
class Instruments:
    """What measures: nanoseconds by the clock and of this thread at work, and the machine's use."""

    wall: Callable[[], int] = time.perf_counter_ns
    thread: Callable[[], int] = time.thread_time_ns
    usage: Callable[[], Usage] = Usage.now


@dataclass(frozen=True)
class Speedup:
    """What came out of a measurement.

    Attributes:
        latency: of the call by the clock, of all rounds.
        ratio: median time of the baseline over that of the call; 1 without a baseline.
        low, high: 95 % interval of `ratio`; None with fewer than 6 rounds.
        lost: share of the whole time that others took from this thread, in calls and between them;
            None where several threads work.
        load: processors that others kept busy on average; None where that could not be told.
        noise: reasons for which not to trust the figures, of those in `noise.MEANINGS`.
        worked_ms: median milliseconds that this thread worked on the call; the clock's where
            several threads work.
    """

    latency: LatencyStats
    ratio: float
    low: float | None
    high: float | None
    lost: float | None
    load: float | None
    noise: tuple[str, ...]
    worked_ms: float = math.nan


@dataclass
class _Rounds:
    """Nanoseconds of every call in every round, by the clock and of this thread at work."""

    calls: Sequence[Thunk]
    instruments: Instruments
    wall: list[list[int]] = field(default_factory=list)
    worked: list[list[int]] = field(default_factory=list)
    _order: random.Random = field(default_factory=lambda: random.Random(0))

    def add(self) -> None:
        """One round: every call once, in an order of its own (see `measure_interleaved`)."""
        wall, thread = self.instruments.wall, self.instruments.thread
        walls, worked = [0] * len(self.calls), [0] * len(self.calls)
        for k in self._order.sample(range(len(self.calls)), len(self.calls)):
            call = self.calls[k]
            # The thread's clock is slow to read: it is read outside of what the other one times.
            began = thread()
            start = wall()
            call()
            walls[k] = wall() - start
            worked[k] = thread() - began
        self.wall.append(walls)
        self.worked.append(worked)


def measure_speedup(
    call: Thunk,
    baseline: Thunk | None,
    protocol: Protocol,
    *,
    threads: int = 1,
    instruments: Instruments | None = None,
) -> Speedup:
    """Measure `call` against `baseline` (None: only `call`) in turn, as long as `protocol` says.

    With one thread, this one is kept on one processor and the time that it was not running is left
    out of the ratio. With several, whose waiting for each other looks the same, it is not.
    """
    tools = instruments or Instruments()
    rounds = _Rounds([call] if baseline is None else [call, baseline], tools)
    with pinned(1) if threads == 1 else contextlib.nullcontext(), no_garbage_collection():
        for warmed in rounds.calls:
            for _ in range(protocol.warmup):
                warmed()
        before, start, began = tools.usage(), tools.wall(), tools.thread()
        look, estimate = min(SETTLE_S, protocol.budget_s), _Estimate(math.nan, None, None)
        while True:
            rounds.add()
            done, elapsed = len(rounds.wall), (tools.wall() - start) / 1e9
            over = elapsed + elapsed / done > protocol.budget_s
            if done >= protocol.runs and (over or elapsed >= look):
                estimate = _estimate(rounds, alone=threads == 1)
                if over or estimate.half_width <= protocol.precision:
                    break
                # Looking after every round would stop at the first lucky one.
                look = 2 * elapsed
        worked, elapsed_ns = tools.thread() - began, tools.wall() - start
        after = tools.usage()
    lost = max(0.0, 1 - worked / elapsed_ns) if threads == 1 else None
    load = others_load(before, after)
    found = {
        noise.PREEMPTED: lost is not None and lost > LOST,
        noise.LOADED: load is not None and load > max(LOAD, LOAD_SHARE * (os.cpu_count() or 1)),
        noise.IMPRECISE: not estimate.half_width <= protocol.precision,
    }
    return Speedup(
        LatencyStats.of([times[0] / 1e6 for times in rounds.wall]),
        *((1.0, 1.0, 1.0) if baseline is None else (estimate.value, estimate.low, estimate.high)),
        lost,
        load,
        tuple(reason for reason, is_so in found.items() if is_so),
        float(np.median((_at_work(rounds) if threads == 1 else np.array(rounds.wall))[:, 0])) / 1e6,
    )


@dataclass(frozen=True)
class _Estimate:
    value: float
    low: float | None
    high: float | None

    @property
    def half_width(self) -> float:
        """Of the interval, as a share of the value; infinite without an interval."""
        if self.low is None or self.high is None:
            return math.inf
        return (self.high - self.low) / 2 / self.value


def _estimate(rounds: _Rounds, *, alone: bool) -> _Estimate:
    """The median over blocks of rounds of the ratio of medians; without a baseline, of the time."""
    times = _at_work(rounds) if alone else np.array(rounds.wall)
    medians = [np.median(part, axis=0) for part in np.array_split(times, min(len(times), BLOCKS))]
    values = [float(m[1] / m[0]) if m.size > 1 else float(m[0]) for m in medians]
    return _Estimate(float(np.median(values)), *(median_interval(values) or (None, None)))


def _at_work(rounds: _Rounds) -> NDArray[np.int64]:
    """Nanoseconds that this thread worked on each call; the reading of clocks not counted."""
    wall, worked = np.array(rounds.wall), np.array(rounds.worked)
    # A thread's clock that stands still during a call counts ticks, and tells nothing of calls.
    return np.minimum(wall, worked) if worked.all() else wall


def median_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """95 % confidence interval of the median that independent values come from, whatever their
    distribution: order statistics, by the binomial distribution (the sign test turned around).

    None for fewer than 6 values: even from the least to the greatest is no such interval then.
    """
    n, rank, tail = len(values), 0, 0.0
    while (tail := tail + math.comb(n, rank) / 2**n) <= 0.025:
        rank += 1
    if rank == 0:
        return None
    ordered = sorted(values)
    return ordered[rank - 1], ordered[n - rank]
