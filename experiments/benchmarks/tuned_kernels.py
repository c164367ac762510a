"""The kernels of a network, each alone: by the rules of schedules, as tuned, and at its bound."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from compiler.errors import DtypelabError
from compiler.ir.expr import Constant, Function
from compiler.lowering.custom_dtypes import uses_custom
from compiler.lowering.legalize import legalize
from compiler.runtime.kernels import Kernel, compile_kernel
from compiler.scheduling.tuning_log import active_history, summary, workload_key
from compiler.tensor.stmt import Intrin, PrimFunc, Store, walk_stmts
from compiler.tuning.kernel_run import KernelRun, Room, random_arrays
from compiler.tuning.measure import CAREFUL, compared, in_turns, quiet
from compiler.tuning.tasks import legalized, outgrows_caches
from experiments.benchmarks.bounds import Machine, lowered_operations, work_of
from experiments.measure.disturbance import pinned
from experiments.measure.speedup import Protocol, measure_speedup

if TYPE_CHECKING:
    from compiler.ir.expr import IRModule
    from compiler.target.registry import Target

NEAR = 0.9
"""Share of the bound from which a kernel counts as having reached it."""
_SAMPLE_NS = 100_000
"""Nanoseconds that a timed call of a kernel should last: short ones are repeated."""


@dataclass(frozen=True)
class KernelRow:
    """A kernel and its times.

    Attributes:
        network, workload, text: where, its key, and its parameters and results.
        count: how often the network runs it.
        ruled: whether rules of schedules say what to do with most of its work: its loops are
            vectors, a register tile, or an instruction, not loops as they were written.
        tuned: whether the log has a choice for it.
        default_ms, tuned_ms: medians of the time that the thread worked, taken in turns, in cold
            caches if the network does not fit into them; equal if it is not tuned.
        gain, low, high: the first over the second, and a 95 % interval of that (1 if not tuned).
        bound_ms: the least that it can take (see `bounds`).
    """

    network: str
    workload: str
    text: str
    count: int
    ruled: bool
    tuned: bool
    default_ms: float
    tuned_ms: float
    gain: float
    low: float
    high: float
    bound_ms: float

    @property
    def reached(self) -> float:
        """The share of the bound that it reaches."""
        return self.bound_ms / self.tuned_ms


def kernel_rows(
    network: str, mod: IRModule, target: Target, machine: Machine, protocol: Protocol
) -> tuple[list[KernelRow], list[str]]:
    """A row for every distinct kernel of an optimized module, those that cost most first, with the
    choices of the active log; and a sentence for each that cannot be timed alone."""
    counts: dict[str, int] = {}
    kept: dict[str, Function] = {}
    nests = legalized(mod)
    for function, legal in nests:
        key = workload_key(legal.func, target)
        counts[key] = counts.get(key, 0) + 1
        kept.setdefault(key, function)
    history, cold = active_history(target), outgrows_caches([legal for _, legal in nests])
    rows, failed = [], []
    for key, function in kept.items():
        nest = legalize(function).func
        record = history.find(nest) if history is not None else None
        choice = record.choice if record is not None else None
        try:
            row = _measured(function, choice, target, machine, protocol, cold)
        except DtypelabError as error:
            failed.append(f"{nest.name}: {error}")
            continue
        rows.append(replace(row, network=network, workload=key, count=counts[key]))
    return sorted(rows, key=lambda r: -r.count * r.default_ms), failed


def _measured(
    function: Function,
    choice: Any,
    target: Target,
    machine: Machine,
    protocol: Protocol,
    cold: bool,
) -> KernelRow:
    legal = legalize(function)  # which compiling schedules in place
    pairs = zip(legal.func.params, legal.inputs, strict=False)
    known = {b for b, a in pairs if isinstance(a, Constant)}
    text, work = summary(legal.func), work_of(legal.func, known)
    custom, inputs = uses_custom(legal.func), random_arrays(legal, 0)
    kernel = compile_kernel(legal, target)
    if custom:
        work = replace(work, float32=lowered_operations(kernel.func), divisions=0.0, chain=0.0)
    bound = machine.least_ms(work, work.constants if cold else 0)
    room = Room()
    default = KernelRun(kernel, target, inputs, room=room, cold=cold)
    ruled = scheduled_by_rules(kernel.func)
    if not choice:
        ms = beside(default, None, protocol).ms
        return KernelRow("", "", text, 1, ruled, False, ms, ms, 1.0, 1.0, 1.0, bound)
    chosen = compile_kernel(legalize(function), target, choice)
    tuned = KernelRun(chosen, target, inputs, room=room, cold=cold)
    found = beside(tuned, default, protocol)
    return KernelRow(
        "", "", text, 1, ruled, True, found.ms * found.ratio, found.ms, found.ratio, found.low,
        found.high, bound,
    )  # fmt: skip


@dataclass(frozen=True)
class Beside:
    """A kernel beside another: its milliseconds, how many times as fast it is, an interval of 95 %
    of that, and what disturbed the measurement."""

    ms: float
    ratio: float
    low: float
    high: float
    noise: str


def beside(one: KernelRun, other: KernelRun | None, protocol: Protocol) -> Beside:
    """Time two kernels in turns, in cold caches if they are to be; or one alone."""
    if one.cold:
        with pinned(1), quiet():
            turns = partial(in_turns, other or one, one)
            if other is None:
                return Beside(turns(CAREFUL)[1], 1.0, 1.0, 1.0, "")
            found = compared(turns, protocol.budget_s)
        ends = 1 / found.high, 1 / found.low
        return Beside(found.first_ms * found.ratio, 1 / found.ratio, *ends, "")
    calls, times = _repeated([one] if other is None else [one, other])
    taken = measure_speedup(calls[0], calls[1] if other else None, protocol)
    ends = taken.low or math.nan, taken.high or math.nan
    return Beside(taken.worked_ms / times, taken.ratio, *ends, ",".join(taken.noise))


def _repeated(runs: Sequence[KernelRun]) -> tuple[list[Callable[[], object]], int]:
    """Calls that last long enough to be timed, and how many runs of the kernel each is."""
    (warm,) = [measure_speedup(partial(runs[0], 1), None, Protocol(1, 3, budget_s=0))]
    times = max(1, int(_SAMPLE_NS / max(1.0, warm.worked_ms * 1e6)))
    return [partial(r, times) for r in runs], times


def scheduled_by_rules(f: PrimFunc) -> bool:
    """Whether rules say what to do with the loops of a scheduled nest that cost most: their
    statement is an instruction, or stands in a loop that is unrolled or whose iterations are
    lanes."""
    most, ruled = 0.0, False
    for s, path, _ in walk_stmts(f.body):
        if not isinstance(s, Store | Intrin):
            continue
        kinds = [loop.kind for loop in path]
        cost = 1.0
        for loop in path:
            if loop.kind != "vector":
                cost *= loop.extent.constant() or 1
        if cost > most:
            most = cost
            ruled = isinstance(s, Intrin) or "vector" in kinds or "unroll" in kinds
    return ruled


__all__ = ["NEAR", "Kernel", "KernelRow", "beside", "kernel_rows", "scheduled_by_rules"]
