"""tune: measures candidate tiles of every workload of a module on this machine.

Candidates take turns with the rule's tile, so that clock and load drift hit both alike. One is kept
if it computes the same bits, is quicker by more than 2 % when measured again at the end, and the
whole network is quicker by more than 0.5 % with all that were kept.
"""

from __future__ import annotations

import datetime
import os
import random
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from compiler.build import build, optimize
from compiler.codegen.backend import backend_of
from compiler.errors import ConfigError, DtypelabError, MachineError, UnsupportedError
from compiler.ir.expr import Call, Constant, Function, IRModule
from compiler.lowering.legalize import legalize
from compiler.runtime.executable import Executable
from compiler.runtime.kernels import compile_kernel
from compiler.scheduling.default import rule_tile, untiled
from compiler.scheduling.rules import scheduled_by_rule
from compiler.scheduling.tile_config import TileChoice, candidates
from compiler.scheduling.tuning_log import (
    Record,
    append_records,
    apply_records,
    check_log,
    machine_cpu,
    of_machine,
    summary,
    workload_key,
)
from compiler.symbolic import Index
from compiler.target.registry import Target
from compiler.tensor.stmt import For, PrimFunc, walk_stmts
from compiler.tuning.measure import SYMBOLIC_SIZE, KernelRun, in_turns, quiet, random_arrays
from compiler.tuning.places import Place
from compiler.types.dtypes import Array

GAIN = 0.98
"""A choice must take less than this share of the default's time."""
NETWORK_GAIN = 0.995
"""The same for the whole network, which has many kernels that stay as they are."""
TURN = 6
"""Candidates of one workload before the next one has its turn."""
QUICK, CAREFUL, NETWORK = 7, 31, 101
"""Rounds of a first look, of a measurement that decides, and of one of the whole network."""
SEARCH = 0.85
"""Share of the budget for the search; the rest confirms what was found."""


@dataclass(frozen=True)
class Trial:
    """A candidate that was measured; milliseconds (`ms` is None if it was rejected unmeasured: it
    does not compile, or its results differ)."""

    workload: str
    stage: str
    choice: TileChoice
    default_ms: float
    ms: float | None


@dataclass(frozen=True)
class Progress:
    """How far a tuner is: seconds used and given, candidates measured, workloads made faster."""

    seconds: float
    budget_s: float
    tried: int
    faster: int
    workload: str


@dataclass(frozen=True)
class Tuning:
    """What a tuner did.

    Attributes:
        records: what it added to the log.
        trials: the candidates, in the order in which it visited them.
        workloads: how many distinct tunable ones the module has.
        default_ms, tuned_ms: medians of the whole network, taken in turns; equal without records.
        seconds: how long it all took.
    """

    records: tuple[Record, ...]
    trials: tuple[Trial, ...]
    workloads: int
    default_ms: float
    tuned_ms: float
    seconds: float


@dataclass
class _Task:
    """A workload: the first primitive function that has it, how often it runs, what was found."""

    key: str
    func: Function
    text: str
    work: int
    candidates: list[tuple[str, TileChoice]]
    count: int = 1
    run: Any = None
    inputs: list[Array] = field(default_factory=list)
    want: bytes = b""
    best: tuple[str, TileChoice, Any] | None = None
    ratio: float = GAIN


def tune(
    mod: IRModule,
    target: str | Target = "llvm",
    budget_s: float = 60,
    seed: int = 0,
    log: str | os.PathLike[str] = "tune.jsonl",
    progress: Callable[[Progress], None] | None = None,
    trials: int | None = None,
    place: Place | None = None,
) -> Tuning:
    """Measure candidate tiles for the workloads of a module and append the faster ones to a log.

    Kernels are measured on one thread, with symbolic dimensions at 1. The candidates are visited in
    an order that the seed alone determines; the budget says how far.

    Args:
        mod: the module; it is optimized as the current PassContext says.
        target: as in `build`.
        budget_s: seconds, about.
        seed: of the candidates' order and of the data.
        log: the file to append to; made if it is missing.
        progress: called after every candidate.
        trials: stop after as many candidates, even within the budget.
        place: the machine that candidates are measured on, `target` being one of its own; None:
            this one.

    Raises:
        ConfigError: a budget or number of trials that is not positive, a log that cannot be
            written, or a file that is none.
        DtypelabError: the module cannot be built, or the target's kernels cannot be called one by
            one, or the place was lost.
    """
    if not budget_s > 0 or (trials is not None and trials < 1):
        raise ConfigError(f"tuning needs a positive budget, not {budget_s} s, {trials} trials")
    check_log(log)
    chosen, start = Target.parse(target), time.perf_counter()
    if not backend_of(chosen).separate:
        raise UnsupportedError(f"kernels of target {chosen.text!r} cannot be timed one by one")
    tuner = _Tuner(chosen, seed, start, budget_s, progress, trials, place)
    cpu = of_machine(place.cpu) if place else nullcontext()
    with quiet(), apply_records(()), cpu:
        tasks = _tasks(optimize(mod, chosen), chosen)
        tuner.search(tasks)
        records, default_ms, tuned_ms = _check(mod, tuner, tuner.confirm(tasks))
    append_records(log, records)
    return Tuning(
        tuple(records), tuple(tuner.trials), len(tasks), default_ms, tuned_ms,
        time.perf_counter() - start,
    )  # fmt: skip


def _tasks(mod: IRModule, target: Target) -> list[_Task]:
    """The tunable workloads, those with most work first."""
    tasks: dict[str, _Task] = {}
    for b in mod.main.bindings:
        if not isinstance(b.value, Call) or not isinstance(b.value.op, Function):
            continue
        legal = legalize(b.value.op)
        key = workload_key(legal.func, target)
        if key in tasks:
            tasks[key].count += 1
            continue
        text, work = summary(legal.func), _work(legal.func)
        constants = {
            p
            for p, a in zip(legal.func.params, legal.inputs, strict=False)
            if isinstance(a, Constant)
        }
        s = untiled(legal.func, target, constants)
        found = []
        for stage in s.stages():
            if scheduled_by_rule(s, stage, target, constants):
                continue
            tile = rule_tile(s, stage, target, constants)
            if tile is not None:
                found += [(stage, c) for c in candidates(s, stage, tile, target, constants)]
        if found:
            tasks[key] = _Task(key, b.value.op, text, work, found)
    return sorted(tasks.values(), key=lambda t: (-t.work * t.count, t.key))


def _work(f: PrimFunc) -> int:
    """Innermost iterations of a loop nest."""
    total = 0
    for s, path, _ in walk_stmts(f.body):
        if not isinstance(s, For):
            n = 1
            for loop in path:
                n *= int(loop.extent.value(dict.fromkeys(loop.extent.vars(), SYMBOLIC_SIZE)))
            total += n
    return total


class _Tuner:
    def __init__(
        self,
        target: Target,
        seed: int,
        start: float,
        budget_s: float,
        progress: Callable[[Progress], None] | None,
        limit: int | None,
        place: Place | None,
    ):
        self.target, self.seed, self.start, self.budget_s = target, seed, start, budget_s
        self.progress, self.limit, self.place = progress, limit, place
        self.trials: list[Trial] = []

    def search(self, tasks: Sequence[_Task]) -> None:
        """Give every workload its turns until the candidates, the time or the trials are used
        up."""
        for task in tasks:
            random.Random(f"{self.seed} {task.key}").shuffle(task.candidates)
        longest = max((len(t.candidates) for t in tasks), default=0)
        for begin in range(0, longest, TURN):
            for task in tasks:
                for stage, choice in task.candidates[begin : begin + TURN]:
                    if self._over():
                        return
                    self._try(task, stage, choice)
                    if self.progress is not None:
                        faster = sum(t.best is not None for t in tasks)
                        used = time.perf_counter() - self.start
                        tried = len(self.trials)
                        self.progress(Progress(used, self.budget_s, tried, faster, task.text))

    def _over(self) -> bool:
        spent = time.perf_counter() - self.start > SEARCH * self.budget_s
        late = spent and len(self.trials) > 0  # however small the budget, something is tried
        return late or (self.limit is not None and len(self.trials) >= self.limit)

    def _try(self, task: _Task, stage: str, choice: TileChoice) -> None:
        if task.run is None:
            legal = legalize(task.func)
            task.inputs = random_arrays(legal, self.seed)
            task.run = self._kernel(task)
            task.want = self._result(task.run)
        try:
            run = self._kernel(task, {stage: choice})
        except MachineError:
            raise
        except DtypelabError:
            self.trials.append(Trial(task.key, stage, choice, 0.0, None))
            return
        if self._result(run) != task.want:
            self.trials.append(Trial(task.key, stage, choice, 0.0, None))
            return
        default, ms = self._in_turns(task.run, run, QUICK)
        self.trials.append(Trial(task.key, stage, choice, default, ms))
        if ms < task.ratio * default:
            default, ms = self._in_turns(task.run, run, CAREFUL)
            if ms < task.ratio * default:
                task.best, task.ratio = (stage, choice, run), ms / default

    def _kernel(self, task: _Task, choice: Mapping[str, TileChoice] | None = None) -> Any:
        if self.place is not None:
            return self.place.kernel(task.func, self.target, task.inputs, choice)
        kernel = compile_kernel(legalize(task.func), self.target, choice)
        return KernelRun(kernel, self.target, task.inputs)

    def _result(self, run: Any) -> bytes:
        found: bytes = run.result() if self.place is None else self.place.result(run)
        return found

    def _in_turns(self, first: Any, second: Any, rounds: int) -> tuple[float, float]:
        if self.place is not None:
            return self.place.kernels_in_turns(first, second, rounds)
        return in_turns(first, second, rounds)

    def network(self, mod: IRModule) -> Executable:
        """A module, compiled for where it is measured."""
        return self.place.network(mod, self.target) if self.place else build(mod, self.target)

    def networks_in_turns(
        self, first: Executable, second: Executable, arrays: Sequence[Array], rounds: int
    ) -> tuple[float, float]:
        """Median milliseconds of two networks, timed in turns."""
        if self.place is not None:
            return self.place.networks_in_turns(first, second, arrays, rounds)
        return in_turns(_repeated(first, arrays), _repeated(second, arrays), rounds)

    def confirm(self, tasks: Sequence[_Task]) -> list[tuple[float, Record]]:
        """Measure once more what was best of many, which flatters it: (milliseconds gained in the
        network, record) of those that are still faster."""
        kept = []
        for task in tasks:
            if task.best is None or task.run is None:
                continue
            stage, choice, run = task.best
            default, ms = self._in_turns(task.run, run, CAREFUL)
            if ms < GAIN * default:
                record = self._record(task, {stage: choice}, default, ms)
                kept.append(((default - ms) * task.count, record))
        return kept

    def _record(
        self, task: _Task, choice: Mapping[str, TileChoice], default: float, ms: float
    ) -> Record:
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        where = (str(self.target), self.target.isa, machine_cpu())
        times = (round(default, 6), round(ms, 6))
        return Record(task.key, task.text, *where, choice, *times, self.seed, now)


def _check(
    mod: IRModule, tuner: _Tuner, kept: list[tuple[float, Record]]
) -> tuple[list[Record], float, float]:
    """(records, default, tuned milliseconds): while the network is hardly quicker with the records
    than without, leave the lesser half of them out."""
    records = [r for _, r in sorted(kept, key=lambda k: -k[0])]
    default = tuner.network(mod)
    arrays = _network_inputs(default, tuner.seed)
    while records:
        with apply_records(records):
            tuned = tuner.network(mod)
        before, after = tuner.networks_in_turns(default, tuned, arrays, NETWORK)
        if after < NETWORK_GAIN * before:
            return records, before, after
        records = records[: len(records) // 2]
    before, _ = tuner.networks_in_turns(default, default, arrays, CAREFUL)
    return [], before, before


def _repeated(exe: Executable, arrays: Sequence[Array]) -> Callable[[int], None]:
    def call(times: int) -> None:
        for _ in range(times):
            exe(*arrays)

    return call


def _network_inputs(exe: Executable, seed: int) -> list[Array]:
    """Random floats and bytes; zeros for other integers, which are often positions."""
    rng = np.random.default_rng(seed)
    arrays: list[Array] = []
    for kind in exe.inputs.values():
        sizes = [Index.of(d) for d in kind.shape]
        shape = [int(i.value(dict.fromkeys(i.vars(), SYMBOLIC_SIZE))) for i in sizes]
        storage = kind.dtype.storage
        if np.issubdtype(storage, np.floating):
            arrays.append(rng.standard_normal(shape).astype(storage))
        elif storage == np.uint8 or storage == np.int8:
            arrays.append(rng.integers(0, 128, shape).astype(storage))
        else:
            arrays.append(np.zeros(shape, storage))
    return arrays
