"""Timing of contenders that take turns, each in slices of time that it has to itself."""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass

import numpy as np

#: Opens a contender for one slice: what it yields is called and timed.
Contender = Callable[[], AbstractContextManager[Callable[[], object]]]


@dataclass(frozen=True)
class Effort:
    """`rounds` turns for everyone, with `runs` calls in all at least and `slice_s` seconds a turn
    at least, the first `warm_s` seconds of a turn not counted."""

    rounds: int = 7
    runs: int = 30
    slice_s: float = 0.1
    warm_s: float = 0.05

    @staticmethod
    def of(runs: int, quick: bool) -> Effort:
        """As the options `--runs` and `--quick` say."""
        return Effort(3, min(runs, 6), 0.03, 0.02) if quick else Effort(runs=runs)


def medians(contenders: Mapping[str, Contender], effort: Effort) -> dict[str, float]:
    """Median milliseconds a call for each contender, over rounds in which each has one turn."""
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(effort.rounds):
        for name, contender in contenders.items():
            with contender() as call:
                times[name] += _slice(call, effort)
    return {name: float(np.median(values)) for name, values in times.items()}


def _slice(call: Callable[[], object], effort: Effort) -> list[float]:
    wanted = -(-effort.runs // effort.rounds)
    clock = time.perf_counter_ns
    gc.collect()
    warm = clock() + int(effort.warm_s * 1e9)
    call()
    while clock() < warm:
        call()
    times: list[float] = []
    end = clock() + int(effort.slice_s * 1e9)
    while len(times) < wanted or clock() < end:
        start = clock()
        call()
        times.append((clock() - start) / 1e6)
    return times


def always(call: Callable[[], object]) -> Contender:
    """A contender that needs no opening."""
    return lambda: contextlib.nullcontext(call)
