"""What takes how long: functions timed in turns."""

from __future__ import annotations

import contextlib
import gc
import math
import os
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeGuard

import numpy as np

from compiler.runtime.clock import thread_time
from compiler.runtime.executable import Executable
from compiler.tuning.kernel_run import KernelRun, shape_of
from compiler.types.dtypes import Array

SAMPLE_NS = 150_000
"""Nanoseconds that a timed sample should last: short kernels are called several times."""


def in_turns(
    first: Callable[[int], object], second: Callable[[int], object], rounds: int
) -> tuple[float, float]:
    """Median milliseconds of two functions of a number of repetitions, timed in turns; of this
    thread's time on the processor, where the system tells that: what other processes take is not
    counted. Each is called once before, unless it is a kernel that finds cold caches in its
    network: that is timed so. Chance says who begins a round: what they leave behind in the caches,
    in a rhythm near to that of the rounds, one of the two would bear alone."""
    repeat = 1
    if not _cold(first):
        first(1)
        start = thread_time()
        second(1)
        repeat = max(1, SAMPLE_NS // max(1, thread_time() - start))
    times: tuple[list[float], list[float]] = ([], [])
    calls = [_milliseconds(call, repeat) for call in (first, second)]
    order, shuffled = list(zip(calls, times, strict=True)), random.Random(0)
    for _ in range(rounds):
        shuffled.shuffle(order)
        for call, record in order:
            record.append(call())
    return statistics.median(times[0]), statistics.median(times[1])


def _cold(call: Callable[[int], object]) -> TypeGuard[KernelRun]:
    return isinstance(call, KernelRun) and call.cold


def _milliseconds(call: Callable[[int], object], repeat: int) -> Callable[[], float]:
    """What takes a sample of the milliseconds of a function of a number of repetitions."""
    if _cold(call):
        return call.cold_ms

    def sample() -> float:
        start = thread_time()
        call(repeat)
        return (thread_time() - start) / 1e6 / repeat

    return sample


Turns = Callable[[int], tuple[float, float]]
"""Median milliseconds of two functions, timed in turns for a number of rounds (see `in_turns`)."""
CAREFUL = 31
"""Rounds of a measurement that decides."""
BATCH = 3
"""Rounds whose medians give one ratio."""
LEAST, MOST = 3, 16
"""Batches of a comparison; more only in the seconds that it has at least."""
PLAIN = (1.15, 1.05)
"""One batch, or two, are enough for what takes so many times as long in each."""
NARROW = 0.01
"""Half the width of an interval that need not become narrower, where nothing else is asked for."""
DOUBT = 0.5
"""How many such halves the mean of a candidate of no use lies above what would be of use. One at
the border, which would gain next to nothing, is given up with every tenth look or so."""
LIMIT_S = 2.0
"""Seconds after which a comparison goes on no longer."""
_T = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13)
"""Student's t for 95 %, by degrees of freedom from 1 on."""


@dataclass(frozen=True)
class Comparison:
    """Two functions compared: median milliseconds of both, the geometric mean of the ratios (second
    to first) of all batches, and its interval of 95 %, which is that mean alone if one batch was
    enough."""

    first_ms: float
    second_ms: float
    ratio: float
    low: float
    high: float


def compared(
    turns: Turns,
    limit_s: float = LIMIT_S,
    least_s: float = 0.0,
    narrow: float = NARROW,
    poor: float = math.inf,
) -> Comparison:
    """Time two functions in turns until the interval of the ratio of their times leaves out 1, or
    is narrow; or until the second is plainly slower, or it has taken `limit_s` seconds.

    Args:
        turns: times them.
        limit_s: see above.
        least_s: seconds before which it is not enough that the interval leaves out 1: how much
            quicker one is is to be known as well.
        narrow: half the width of an interval that need not become narrower.
        poor: a ratio from which on the second is of no use, be it slower or not: that the mean is
            above it is to be less sure (see DOUBT).
    """
    start = time.perf_counter()
    first: list[float] = []
    second: list[float] = []
    logs: list[float] = []
    while True:
        a, b = turns(BATCH)
        first.append(a)
        second.append(b)
        logs.append(math.log(max(b, 1e-9) / max(a, 1e-9)))
        mean, n = statistics.fmean(logs), len(logs)
        half = _T[min(n, MOST) - 2] * statistics.stdev(logs) / math.sqrt(n) if n > 1 else 0.0
        spent = time.perf_counter() - start
        apart = half < abs(mean) and spent >= least_s
        many = n >= MOST and spent >= least_s
        late = spent > limit_s and n > 1
        plain = n <= len(PLAIN) and min(logs) > math.log(PLAIN[n - 1])
        useless = math.exp(mean - DOUBT * half) > poor
        if late or plain or many or (n >= LEAST and (apart or useless or half < narrow)):
            break
    times = statistics.median(first), statistics.median(second)
    return Comparison(*times, *map(math.exp, (mean, mean - half, mean + half)))


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep this thread on one core, where the system lets it, and the garbage collector off."""
    collecting = gc.isenabled()
    cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
    gc.disable()
    try:
        if cores:
            with contextlib.suppress(OSError):
                os.sched_setaffinity(0, {max(cores)})
        yield
    finally:
        if cores:
            with contextlib.suppress(OSError):
                os.sched_setaffinity(0, cores)
        if collecting:
            gc.enable()


def repeated(exe: Executable, arrays: Sequence[Array]) -> Callable[[int], None]:
    """A function that calls a network a number of times."""

    def call(times: int) -> None:
        for _ in range(times):
            exe(*arrays)

    return call


def network_inputs(exe: Executable, seed: int) -> list[Array]:
    """Random floats and bytes; zeros for other integers, which are often positions."""
    rng = np.random.default_rng(seed)
    arrays: list[Array] = []
    for kind in exe.inputs.values():
        shape, storage = shape_of(kind.shape), kind.dtype.storage
        if np.issubdtype(storage, np.floating):
            arrays.append(rng.standard_normal(shape).astype(storage))
        elif storage == np.uint8 or storage == np.int8:
            arrays.append(rng.integers(0, 128, shape).astype(storage))
        else:
            arrays.append(np.zeros(shape, storage))
    return arrays
