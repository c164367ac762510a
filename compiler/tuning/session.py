"""The search of a tuner: which candidates of which kernels are compiled and measured, in turns."""

from __future__ import annotations

import gc
import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from compiler.errors import DtypelabError, MachineError
from compiler.lowering.legalize import legalize
from compiler.scheduling.choices import Choice
from compiler.target.registry import Target
from compiler.tuning import allocation
from compiler.tuning.batches import Batches
from compiler.tuning.compilation import Outcome
from compiler.tuning.cost_model import CostModel
from compiler.tuning.features import with_report
from compiler.tuning.kernel_run import random_arrays
from compiler.tuning.measure import Comparison, Turns, compared
from compiler.tuning.processes import Compilers
from compiler.tuning.proposals import Candidate, Search
from compiler.tuning.subject import GAIN, Subject
from compiler.tuning.tasks import Task
from compiler.tuning.trials import Journal, Trial
from compiler.types.dtypes import Array

BATCH = 8
"""Candidates of a kernel before another one may have its turn."""
SEARCH = 0.85
"""Share of the budget for the search; the rest confirms what was found."""
COLLECT = 64
"""Trials after which garbage is collected, which `quiet` keeps from happening meanwhile."""
FINALISTS = 6
"""Candidates of a kernel that are measured again at the end: what was best of many measurements is
flattered by that, and may not be the best."""
HINTS = 8
"""Choices of others that are tried first, of the same loops and of others of their structure."""
LEAST_S = 0.03
"""Seconds for which a candidate is measured, even if it is known earlier which is quicker: the next
one is still being compiled, and the best are told apart better."""
NEAR = 1.02
"""A candidate whose interval lies above the best ratio so far, times this, is of no use."""
FINAL_S, FINAL_NARROW = 0.2, 0.003
"""Seconds that finalists are measured beside each other for, at least, unless the interval of their
ratio is within so much: of the best few, chance would choose after less."""
Hint = tuple[str, str, float, Choice]
"""(workload, structure, ratio, choice): that a choice took this share of the rules' time."""


class Machine(Protocol):
    """Where kernels are measured."""

    def kernel(self, task: Task, inputs: Sequence[Array], choice: Choice) -> Any:
        """One as compiled for it.

        Raises:
            DtypelabError: the choice does not fit.
        """

    def linked(
        self, task: Task, inputs: Sequence[Array], choice: Choice, outcome: Outcome | None
    ) -> Any:
        """The same, of code that was compiled beside if there is some."""

    def result(self, run: Any) -> bytes:
        """What it writes."""

    def turns(self, first: Any, second: Any) -> Turns:
        """Times two kernels in turns."""


@dataclass(frozen=True)
class Progress:
    """How far a tuner is.

    Attributes:
        seconds, budget_s: used and given.
        tried: candidates so far, of `limit`, if there is one.
        faster: workloads made faster.
        workload: the one that was measured last.
        best: its best time as a share of the rules'.
        default_ms, best_ms: the sum of all kernels measured so far, by the rules and at best.
    """

    seconds: float
    budget_s: float
    tried: int
    faster: int
    workload: str
    limit: int | None = None
    best: float = 1.0
    default_ms: float = 0.0
    best_ms: float = 0.0


@dataclass(frozen=True)
class Settings:
    """What a user asks for: seconds, a number that all draws follow from, trials in all; the least
    that a comparison takes (see `compared`), and whether it is to be known of all candidates how
    quick they are, also of those that are of no use."""

    target: Target
    cpu: str
    budget_s: float
    seed: int
    limit: int | None
    start: float
    progress: Callable[[Progress], None] | None = None
    least_s: float = LEAST_S
    exact: bool = False


class Session:
    """Searches schedules for tasks.

    Args:
        tasks: the tasks.
        machine: where they are measured.
        settings: what was asked for.
        journal: takes every trial.
        past: trials of a log, of this machine: those of these tasks are not measured again, all
            teach the model, and those of the same structure are tried first.
        hints: of others, which are to be tried first.
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        machine: Machine,
        settings: Settings,
        journal: Journal,
        past: Sequence[Trial] = (),
        hints: Sequence[Hint] = (),
    ):
        self.machine, self.settings, self.journal = machine, settings, journal
        self.model = CostModel(seed=settings.seed)
        self.trials: list[Trial] = []
        self.subjects = [self._subject(t) for t in tasks]
        self.resumed = self._resume(past)
        self._hint([*hints_of(past), *hints])
        self._teach(past)

    def _subject(self, task: Task) -> Subject:
        rng = random.Random(f"{self.settings.seed} {task.key}")
        search = Search(task, rng, near=task.space.neighbours())
        return Subject(task, search, allocation.Progress(task.count, task.work, task.structure))

    def _resume(self, past: Sequence[Trial]) -> int:
        """Take over what a log has of the tasks; how many trials that is."""
        found = 0
        for s in self.subjects:
            mine = [t for t in past if _of(t) == (s.task.key, s.task.cold) and t.choice]
            quick = (t for t in sorted(mine, key=lambda t: t.ratio or 1) if (t.ratio or 1) < GAIN)
            stale = []
            for t in quick:
                if _stands(s.task, t):
                    break
                stale.append(t)
            for t in mine:
                if t not in stale:
                    found += 1
                    self._take_over(s, t)
        return found

    def _take_over(self, s: Subject, t: Trial) -> None:
        s.trials.append(t)
        s.search.known(t.choice, t.program)
        s.state.trials += 1
        if t.ratio is None:
            return
        s.search.measured(t.choice, t.ratio)
        s.state.default_ms = t.default_ms
        if t.ratio < s.ratio and t.high < 1:
            s.best, s.ratio = (t.choice, None), t.ratio
        s.state.curve.append((s.state.trials, min(1.0, s.ratio) * t.default_ms))

    def _hint(self, hints: Sequence[Hint]) -> None:
        for s in self.subjects:
            same = [h for h in hints if h[0] == s.task.key]
            alike = [h for h in hints if h[1] == s.task.structure and h[0] != s.task.key]
            order = sorted(same, key=lambda h: h[2])[:HINTS]
            order += sorted(alike, key=lambda h: h[2])[:HINTS]
            s.search.first += [h[3] for h in order]

    def _teach(self, past: Sequence[Trial]) -> None:
        rules = {_of(t): t.array for t in past if not t.choice and t.features}
        for t in past:
            if t.choice and t.ratio and t.features and _of(t) in rules:
                self.model.add(t.array, rules[_of(t)], t.ratio)

    def search(self, cores: Sequence[int] | None) -> None:
        """Measure candidates until the time or the trials are used up, or the spaces.

        Args:
            cores: to compile on (see `Compilers`); None: the machine compiles.
        """
        tasks = [s.task for s in self.subjects]
        for task in tasks[:1]:
            _ = task.default  # what schedules need is imported before there are forks
        compilers = Compilers(tasks, cores, self.settings.seed) if cores is not None else None
        # However few trials there are, every task has some.
        limit = self.settings.limit
        most = BATCH if limit is None else max(1, min(BATCH, limit // max(1, len(tasks))))
        batches = Batches(self.subjects, self.model, compilers, most, self._room)
        try:
            while not self._late() and (found := batches.next()):
                self.measure(self.subjects[found.subject], found.candidate, found.outcome)
                if len(self.trials) % COLLECT == 0:
                    gc.collect()
        finally:
            if compilers is not None:
                compilers.close()

    def _room(self, under_way: int) -> int:
        """How many candidates may be proposed beside those that are under way."""
        if self._late() and under_way:
            return 0
        limit = self._limit
        return BATCH if limit is None else limit - len(self.trials) - self.resumed - under_way

    @property
    def _limit(self) -> int | None:
        """Trials in all. A task whose choices are used up leaves the rest of its share: others have
        enough of their own, and one of them would get most of it."""
        given, every = self.settings.limit, [s.state for s in self.subjects]
        if given is None:
            return None
        share = given // max(1, len(every))
        return given - sum(max(0, share - t.trials) for t in every if t.exhausted)

    def _late(self) -> bool:
        spent = time.perf_counter() - self.settings.start > SEARCH * self.settings.budget_s
        return spent and len(self.trials) > 0  # however small the budget, something is tried

    def prepare(self, s: Subject) -> None:
        """Have the rules' schedule of a task ready to be measured, and know what it computes."""
        if s.run is not None:
            return
        s.inputs = random_arrays(legalize(s.task.function), self.settings.seed)
        s.run = self.machine.kernel(s.task, s.inputs, {})
        s.want = self.machine.result(s.run)

    def made(self, s: Subject, choice: Choice) -> Any:
        """A kernel by a choice that a log has; None if it does not fit any more, or computes
        something else, as the compiler is another one by now."""
        self.prepare(s)
        try:
            run = self.machine.kernel(s.task, s.inputs, choice)
            return run if self.machine.result(run) == s.want else None
        except MachineError:
            raise
        except DtypelabError:
            return None

    def settled(
        self, s: Subject, among: Sequence[Trial], most: int = FINALISTS
    ) -> tuple[Choice, Any] | None:
        """The best of trials of a task, once those that seemed best, so many at most, have been
        measured beside each other: its choice, and a kernel by it; None if none seemed quicker than
        the rules."""
        seemed = [(t.ratio, t.choice) for t in among if t.high < 1 and (t.ratio or 1) < GAIN]
        best: tuple[Choice, Any] | None = None
        for _, choice in sorted(seemed, key=lambda x: x[0] or 0.0)[:most]:
            held = s.best[1] if s.best is not None and s.best[0] == choice else None
            run = self.made(s, choice) if held is None else held
            if run is None:
                continue
            if best is None or self.careful(best[1], run).ratio < 1:
                best = choice, run
        return best

    def careful(self, first: Any, second: Any) -> Comparison:
        """Measure two kernels beside each other as a choice between them asks for."""
        turns = self.machine.turns(first, second)
        return compared(turns, least_s=FINAL_S, narrow=FINAL_NARROW, poor=1.0)

    def confirmed(
        self, s: Subject, among: Sequence[Trial], most: int = FINALISTS
    ) -> tuple[Choice, Any, float] | None:
        """The same, if it is still quicker once it has been measured beside the rules with care:
        its choice, a kernel by it, and its milliseconds; those of the rules are the task's then."""
        found = self.settled(s, among, most)
        if found is None:
            return None
        beside = self.careful(s.run, found[1])
        s.state.default_ms = beside.first_ms
        good = beside.ratio < GAIN and beside.high < 1
        return (*found, beside.ratio * beside.first_ms) if good else None

    def measure(self, s: Subject, candidate: Candidate, outcome: Outcome | None) -> None:
        """Measure a candidate beside the rules' schedule, write it down and learn from it.

        Args:
            s: of which task it is.
            candidate: the candidate.
            outcome: what became of it as it was compiled; None: it is not compiled yet.
        """
        self.prepare(s)
        features = candidate.features
        if outcome is not None and outcome.report is not None:
            features = with_report(features, outcome.report)
        reason = outcome.error if outcome is not None else ""
        found, run = None, None
        if not reason:
            try:
                run = self.machine.linked(s.task, s.inputs, candidate.choice, outcome)
                if self.machine.result(run) != s.want:
                    reason = "its results differ"
            except MachineError:
                raise
            except DtypelabError as e:
                reason = str(e)
        if not reason:
            poor = math.inf if self.settings.exact else min(GAIN, NEAR * s.ratio)
            turns = self.machine.turns(s.run, run)
            found = compared(turns, least_s=self.settings.least_s, poor=poor)
            if not s.state.default_ms:
                self._note_rules(s, found.first_ms)
        self._note(s, candidate, features, found, reason)
        if found is not None:
            self._judge(s, candidate.choice, run, found)
        self._tell(s)

    def _note_rules(self, s: Subject, ms: float) -> None:
        """Write down what others of this task are compared with."""
        s.state.default_ms = ms
        program, features = s.task.default
        rules = self._trial(s, {}, program, features, ms, ms, 1.0, 1.0, "")
        self.journal.append(replace(rules, text=s.task.text).to_line())

    def _note(
        self, s: Subject, c: Candidate, features: Array, found: Comparison | None, reason: str
    ) -> None:
        if found is None:
            trial = self._trial(s, c.choice, c.program, features, 0.0, None, 0.0, 0.0, reason)
        else:
            times = found.first_ms, found.first_ms * found.ratio, found.low, found.high
            trial = self._trial(s, c.choice, c.program, features, *times, "")
        self.journal.append(trial.to_line())
        self.trials.append(trial)
        s.trials.append(trial)
        if found is not None:
            s.search.measured(c.choice, found.ratio)
            self.model.add(features, s.task.default[1], found.ratio)

    def _trial(
        self,
        s: Subject,
        choice: Choice,
        program: str,
        features: Array,
        default_ms: float,
        ms: float | None,
        low: float,
        high: float,
        reason: str,
    ) -> Trial:
        given = self.settings
        where = str(given.target), given.target.isa, given.cpu
        times = round(default_ms, 6), None if ms is None else round(ms, 6)
        interval = round(low, 4), round(high, 4)
        return Trial(
            s.task.key, s.task.structure, program, *where, choice, *times, *interval, reason,
            s.task.cold, given.seed, tuple(float(x) for x in features),
        )  # fmt: skip

    def _judge(self, s: Subject, choice: Choice, run: Any, found: Comparison) -> None:
        """Keep the candidate if it is the best so far, also beside the one that was."""
        if found.ratio < s.ratio and found.high < 1:
            held = None if s.best is None else s.best[1] or self.made(s, s.best[0])
            if held is None or compared(self.machine.turns(held, run)).ratio < 1:
                s.best, s.ratio = (choice, run), found.ratio
        best = min(1.0, s.ratio) if s.best else 1.0
        s.state.curve.append((s.state.trials, best * s.state.default_ms))

    def _tell(self, s: Subject) -> None:
        given = self.settings
        if given.progress is None:
            return
        measured = [x for x in self.subjects if x.state.default_ms]
        given.progress(
            Progress(
                time.perf_counter() - given.start,
                given.budget_s,
                len(self.trials),
                sum(x.best is not None for x in self.subjects),
                s.task.text,
                None if (limit := self._limit) is None else max(0, limit - self.resumed),
                s.ratio if s.best else 1.0,
                math.fsum(x.task.count * x.state.default_ms for x in measured),
                math.fsum(x.task.count * x.state.best_ms for x in measured),
            )
        )


def _of(t: Trial) -> tuple[str, bool]:
    """What a trial is of: loops, in caches of a kind."""
    return t.workload, t.cold


def _stands(task: Task, t: Trial) -> bool:
    """Whether a choice of a log still gives the loops that were measured: the compiler may be
    another one by now."""
    try:
        return task.seen(t.choice)[0] == t.program
    except DtypelabError:
        return False


def hints_of(past: Sequence[Trial]) -> list[Hint]:
    """Of trials, those that were faster than the rules."""
    return [
        (t.workload, t.structure, t.ratio, t.choice)
        for t in past
        if t.choice and t.ratio is not None and t.ratio < GAIN
    ]
