"""Kernels timed where they run: in a network, on its memory, after what runs before them.

Alone, a kernel finds its data in the caches, and has them to itself: what is quicker so may be
slower among others.
"""

from __future__ import annotations

import random
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Sequence

from compiler.errors import InputError
from compiler.runtime.clock import thread_time
from compiler.runtime.executable import Executable, GraphExecutable
from compiler.runtime.profile import StageCalls, stage_calls
from compiler.types.dtypes import Array

LEAST, MOST = 9, 101
"""Runs of each network."""
#: What runs the stages of one kernel.
Calls = list[Callable[[], object]]


def shares_in_network(
    default: Executable, tuned: Executable, arrays: Sequence[Array], limit_s: float
) -> dict[str, float]:
    """Of two builds of a network, one with records: the time of the kernels of each record (all
    that its workload has) as a share of what they take without, the median of runs in turns. Empty
    where stages cannot be called one by one.

    Args:
        default, tuned: the builds.
        arrays: the network's inputs.
        limit_s: seconds after which no further run begins, if there were a few.
    """
    try:
        held = [stage_calls(exe, *arrays) for exe in (default, tuned)]
    except InputError:
        return {}
    assert isinstance(tuned, GraphExecutable), "the others cannot be called so"
    assert isinstance(default, GraphExecutable), "the others cannot be called so"
    first, second = (_kernels(s, exe) for s, exe in zip(held, (default, tuned), strict=True))
    names = [k.workload for k in tuned.kernels]
    if not len(first) == len(second) == len(names):
        return {}
    ratios: dict[str, list[float]] = defaultdict(list)
    start, order = time.perf_counter(), random.Random(0)
    for n in range(MOST):
        if n >= LEAST and time.perf_counter() - start > limit_s:
            break
        pair = [first, second]
        turns = pair if order.random() < 0.5 else pair[::-1]
        took = {id(calls): _run(calls, names) for calls in turns}
        before, now = (took[id(calls)] for calls in pair)
        if n:  # the first runs warm up
            for name, ns in now.items():
                ratios[name].append(ns / max(1, before[name]))
    return {name: statistics.median(found) for name, found in ratios.items()}


def _kernels(stages: StageCalls, exe: GraphExecutable) -> list[Calls]:
    """The stages of every kernel of a network, in order."""
    rest = iter(call for _, call in stages.calls)
    return [[next(rest) for _ in k.stages] for k in exe.kernels]


def _run(kernels: Sequence[Calls], names: Sequence[str]) -> dict[str, int]:
    """Run a network; nanoseconds of the kernels of each name."""
    took: dict[str, int] = defaultdict(int)
    for stages, name in zip(kernels, names, strict=True):
        if not name:
            for call in stages:
                call()
            continue
        start = thread_time()
        for call in stages:
            call()
        took[name] += thread_time() - start
    return took
