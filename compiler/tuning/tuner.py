"""tune: searches schedules for the kernels of a module, by measuring them on this machine.

Candidates take turns with the rules' schedule, so that clock and load drift hit both alike; kernels
of networks that do not fit into the caches of a core find them as they do there: cold, but for what
the kernels before have written. A candidate is kept if it computes the same bits, is quicker by
more than 2 % when measured again at the end, is quicker in the network, too, and the whole network
is quicker by more than 0.5 %, and by more than noise, with all that were kept. What is measured is
in the log at once: a tuner that was stopped or killed goes on from there.
"""

from __future__ import annotations

import datetime
import math
import os
import time
from collections.abc import Callable, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, replace
from typing import Any

from compiler.build import build, optimize
from compiler.codegen.backend import backend_of
from compiler.errors import ConfigError, UnsupportedError
from compiler.ir.expr import IRModule
from compiler.lowering.legalize import legalize
from compiler.runtime.executable import Executable
from compiler.runtime.kernels import compile_kernel
from compiler.scheduling.choices import Choice
from compiler.scheduling.tuning_log import (
    Record,
    append_records,
    apply_records,
    check_log,
    machine_cpu,
    of_machine,
    read_log,
)
from compiler.target.registry import Target
from compiler.tuning.compilation import Linker, Outcome
from compiler.tuning.in_network import shares_in_network
from compiler.tuning.kernel_run import KernelRun, Room
from compiler.tuning.measure import (
    Turns,
    compared,
    in_turns,
    network_inputs,
    quiet,
    repeated,
)
from compiler.tuning.places import Place
from compiler.tuning.processes import compiling_cores
from compiler.tuning.session import Hint, Progress, Session, Settings, hints_of
from compiler.tuning.subject import Subject
from compiler.tuning.tasks import Demand, Task, tasks_of
from compiler.tuning.trials import Journal, Trial, bests, read_trials, trials_here
from compiler.types.dtypes import Array

QUICK = 7
"""Rounds of a first look."""
NETWORK_GAIN = 0.995
"""The share of its time that the whole network must take less than: most of its kernels may be as
they were."""
LEAST_GAIN = 0.0002
"""The share of the time of all kernels that a choice must gain: what gains less is as likely to be
chance, and nobody would notice."""
NETWORK_S = 8.0
"""Seconds that a comparison of the whole network may take, if one round takes less."""
NETWORK_LEAST_S, NETWORK_NARROW = 2.0, 0.002
"""Seconds that it takes at least, unless its interval is within so much: small networks would be
judged by a few of their milliseconds."""


@dataclass(frozen=True)
class TaskResult:
    """What became of one workload.

    Attributes:
        workload, text, count: of the task (see `tasks.Task`).
        trials: candidates that were tried, those of the log included.
        default_ms, best_ms: by the rules, and by what is kept; equal where nothing is.
        curve: the best share of the rules' time after each trial.
        kept: whether there is a record of it.
        demand: what it cannot do without.
    """

    workload: str
    text: str
    count: int
    trials: int
    default_ms: float
    best_ms: float
    curve: tuple[float, ...]
    kept: bool
    demand: Demand


@dataclass(frozen=True)
class Tuning:
    """What a tuner did.

    Attributes:
        records: what it added to the log.
        trials: the candidates, in the order in which it visited them.
        workloads: how many distinct tunable ones the module has.
        default_ms, tuned_ms: medians of the whole network, taken in turns; equal without records.
        seconds: how long it all took.
        tasks: the workloads that were measured, those that take longest first.
        resumed: trials that the log had of these workloads.
        model: what ranked candidates: `lightgbm` or `analysis`.
        interrupted: whether Ctrl-C ended the search early.
    """

    records: tuple[Record, ...]
    trials: tuple[Trial, ...]
    workloads: int
    default_ms: float
    tuned_ms: float
    seconds: float
    tasks: tuple[TaskResult, ...] = ()
    resumed: int = 0
    model: str = "analysis"
    interrupted: bool = False


def tune(
    mod: IRModule,
    target: str | Target = "llvm",
    budget_s: float = 60,
    seed: int = 0,
    log: str | os.PathLike[str] = "tune.jsonl",
    progress: Callable[[Progress], None] | None = None,
    trials: int | None = None,
    place: Place | None = None,
    transfer: Sequence[str | os.PathLike[str]] | str | os.PathLike[str] = (),
) -> Tuning:
    """Measure candidate schedules for the workloads of a module and append the faster ones to a
    log, which takes every trial as it is measured.

    Kernels are measured on one thread, with symbolic dimensions at 1. Workloads whose trials help
    the network most get most of them. What the log has of this module, target and CPU is not
    measured again, and counts as trials. The first Ctrl-C ends the search; what was found is then
    confirmed and kept, unless a second one comes.

    Args:
        mod: the module; it is optimized as the current PassContext says.
        target: as in `build`.
        budget_s: seconds, about; `math.inf`: `trials` alone count.
        seed: of all that is drawn; what is drawn depends on what was measured, and when, too.
        log: the file to append to; made with its first line.
        progress: called after every candidate.
        trials: stop after as many candidates for each workload on average; what a workload of few
            choices leaves of them, no other gets.
        place: the machine that candidates are measured on, `target` being one of its own; None:
            this one.
        transfer: logs (or one) whose choices are tried first, whatever CPU they are from.

    Raises:
        ConfigError: a budget or number of trials that is not positive, a negative seed, a log that
            cannot be written, or a file that is none.
        DtypelabError: the module cannot be built, or the target's kernels cannot be called one by
            one, or the place was lost.
    """
    if not budget_s > 0 or (trials is not None and trials < 1):
        raise ConfigError(f"tuning needs a positive budget, not {budget_s} s, {trials} trials")
    if budget_s == math.inf and trials is None:
        raise ConfigError("tuning needs a budget or a number of trials: it would not end")
    if seed < 0:
        raise ConfigError(f"seed must not be negative, not {seed}")
    check_log(log)
    logs = [transfer] if isinstance(transfer, str | os.PathLike) else transfer
    hints = [h for path in logs for h in _hints(path)]
    chosen, start = Target.parse(target), time.perf_counter()
    chosen.require_cpu("tuning logs")
    if not backend_of(chosen).separate:
        raise UnsupportedError(
            f"kernels of target {chosen.text!r} cannot be timed one by one: name 'llvm'"
        )
    interrupted, cores = False, None if place else compiling_cores()
    cpu = of_machine(place.cpu) if place else nullcontext()
    with quiet(), apply_records(()), cpu, closing(Journal(log)) as journal:
        tasks = tasks_of(optimize(mod, chosen), chosen)
        if place is not None:  # which times kernels as they come
            tasks = [replace(t, cold=False) for t in tasks]
        known = trials_here(log, chosen)
        limit = None if trials is None else trials * len(tasks)
        settings = Settings(chosen, machine_cpu(), budget_s, seed, limit, start, progress)
        machine = MeasuringMachine(chosen, place)
        old = _winners(log, chosen)
        session = Session(tasks, machine, settings, journal, known, [*old, *hints])
        try:
            session.search(cores)
        except KeyboardInterrupt:
            interrupted = True
            journal.sync()
        kept = _confirmed(session)
        records, default_ms, tuned_ms = _check(mod, machine, settings, kept)
        results = _results(session, kept, records)
    append_records(log, records)
    return Tuning(
        tuple(records), tuple(session.trials), len(tasks), default_ms, tuned_ms,
        time.perf_counter() - start, results, session.resumed, session.model.kind, interrupted,
    )  # fmt: skip


def _winners(log: str | os.PathLike[str], target: Target) -> list[Hint]:
    """The records of a log that hold here, best first: of a log without trials, say."""
    if not os.path.exists(log):
        return []
    where = (str(target), target.isa, machine_cpu())
    mine = [r for r in read_log(log) if (r.target, r.isa, r.cpu) == where]
    return [(r.workload, "", r.best_ms / r.default_ms, r.choice) for r in mine if r.default_ms]


def _hints(path: str | os.PathLike[str]) -> list[Hint]:
    """What a log of any CPU has to offer."""
    records = [
        (r.workload, "", r.best_ms / r.default_ms, r.choice) for r in read_log(path) if r.default_ms
    ]
    return [*records, *hints_of(read_trials(path))]


class MeasuringMachine:
    """Where kernels and networks are measured: this machine, or a place."""

    def __init__(self, target: Target, place: Place | None):
        self.target, self.place = target, place
        self._linker, self._room = Linker(), Room()

    def kernel(self, task: Task, inputs: Sequence[Array], choice: Choice) -> Any:
        """See `session.Machine`."""
        if self.place is not None:
            return self.place.kernel(task.function, self.target, inputs, choice or None)
        kernel = compile_kernel(legalize(task.function), self.target, choice)
        return KernelRun(kernel, self.target, inputs, room=self._room, cold=task.cold)

    def linked(
        self, task: Task, inputs: Sequence[Array], choice: Choice, outcome: Outcome | None
    ) -> Any:
        """See `session.Machine`."""
        if outcome is None:
            return self.kernel(task, inputs, choice)
        kernel, written = self._linker.kernel(task, outcome)
        return KernelRun(kernel, self.target, inputs, written, self._room, task.cold)

    def result(self, run: Any) -> bytes:
        """See `session.Machine`."""
        found: bytes = run.result() if self.place is None else self.place.result(run)
        return found

    def turns(self, first: Any, second: Any) -> Turns:
        """See `session.Machine`."""
        if self.place is None:
            return lambda rounds: in_turns(first, second, rounds)
        place = self.place
        return lambda rounds: place.kernels_in_turns(first, second, rounds)

    def network(self, mod: IRModule) -> Executable:
        """A module, compiled for where it is measured."""
        return self.place.network(mod, self.target) if self.place else build(mod, self.target)

    def shares(
        self, default: Executable, tuned: Executable, arrays: Sequence[Array]
    ) -> dict[str, float]:
        """Workload of a record -> the share of its kernels' time that they take with it, in the
        network; of places, nothing is known of that."""
        return {} if self.place else shares_in_network(default, tuned, arrays, NETWORK_S / 2)

    def networks(self, first: Executable, second: Executable, arrays: Sequence[Array]) -> Turns:
        """Times two networks in turns."""
        if self.place is None:
            calls = repeated(first, arrays), repeated(second, arrays)
            return lambda rounds: in_turns(*calls, rounds)
        place = self.place
        return lambda rounds: place.networks_in_turns(first, second, arrays, rounds)


@dataclass(frozen=True)
class _Kept:
    """A choice that was still faster when it was measured again."""

    subject: Subject
    record: Record

    @property
    def gain_ms(self) -> float:
        """What the network gains by it."""
        r = self.record
        return (r.default_ms - r.best_ms) * self.subject.task.count


def _confirmed(session: Session) -> list[_Kept]:
    """Measure once more what was best of many, which flatters it: those that are still faster, by
    what a network may notice."""
    kept = []
    for s in session.subjects:
        found = session.confirmed(s, s.trials) if s.best is not None else None
        if found is not None:
            choice, _, ms = found
            record = _record(session, s, choice, s.state.default_ms, ms)
            kept.append(_Kept(s, record))
    every = math.fsum(s.task.count * s.state.default_ms for s in session.subjects)
    return [k for k in kept if k.gain_ms >= LEAST_GAIN * every]


def _record(session: Session, s: Subject, choice: Choice, default: float, ms: float) -> Record:
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    given = session.settings
    where = (str(given.target), given.target.isa, given.cpu)
    times = (round(default, 6), round(ms, 6))
    return Record(s.task.key, s.task.text, *where, choice, *times, given.seed, now)


def _check(
    mod: IRModule, machine: MeasuringMachine, settings: Settings, kept: Sequence[_Kept]
) -> tuple[list[Record], float, float]:
    """(records, default, tuned milliseconds): those whose kernels are quicker in the network, too;
    while it is hardly quicker as a whole with them than without, or perhaps not at all, without the
    lesser half."""
    records = [k.record for k in sorted(kept, key=lambda k: -k.gain_ms)]
    default = machine.network(mod)
    arrays = network_inputs(default, settings.seed)
    if records:
        with apply_records(records):
            tuned = machine.network(mod)
        shares = machine.shares(default, tuned, arrays)
        records = [r for r in records if shares.get(r.workload, 0.0) < 1]
    while records:
        with apply_records(records):
            tuned = machine.network(mod)
        turns = machine.networks(default, tuned, arrays)
        found = compared(turns, NETWORK_S, NETWORK_LEAST_S, NETWORK_NARROW, NETWORK_GAIN)
        if found.ratio < NETWORK_GAIN and found.high < 1:
            return records, found.first_ms, found.first_ms * found.ratio
        records = records[: len(records) // 2]
    before, _ = machine.networks(default, default, arrays)(QUICK)
    return [], before, before


def _results(
    session: Session, kept: Sequence[_Kept], records: Sequence[Record]
) -> tuple[TaskResult, ...]:
    """What became of the workloads that were measured."""
    found = {r.workload: r for r in records}
    out = []
    for s in session.subjects:
        r = found.get(s.task.key)
        default = s.state.default_ms if r is None else r.default_ms
        if not default:
            continue
        best = default if r is None else r.best_ms
        curve = tuple(bests([t.ratio for t in s.trials]))
        t = s.task
        about = t.key, t.text, t.count, len(s.trials)
        out.append(TaskResult(*about, default, best, curve, r is not None, t.demand))
    return tuple(sorted(out, key=lambda t: -t.count * t.default_ms))
