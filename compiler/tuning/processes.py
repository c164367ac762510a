"""Processes that look at candidates, compile them and run them for the first time, beside the one
that measures: so that all goes on at once, and a compiler or a candidate that dies takes no more
than itself along. One of them has the core that is measured on whenever that is idle.

These processes are forks: they have every datatype, rule and instruction that was registered.
"""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import signal
import time
import warnings
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import connection
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, TypeVar

from compiler.scheduling.choices import Choice
from compiler.tuning.compilation import FirstRun, Outcome, compiled
from compiler.tuning.tasks import Look, Task

TIMEOUT_S = 60.0
"""Seconds after which a candidate that is still being compiled is given up."""
RUN_S = 5.0
"""Seconds of processor time after which a candidate that still runs, once, is given up."""
MOST = 8
"""Processes that compile."""
LOOK = 0.2
"""How long looking at a candidate takes, as a share of compiling it."""
RECENT = 0.95
"""What the past weighs, each time, in the share of time that this process waits."""

T = TypeVar("T")


@dataclass(frozen=True)
class _Job:
    """What a process is to do with a candidate: look at it, or compile it and run it once."""

    task: int
    choice: Choice
    look: bool

    @property
    def cost(self) -> float:
        return LOOK if self.look else 1.0


class Compilers:
    """Compiles candidates, and looks at others meanwhile.

    Args:
        tasks: what candidates are of.
        cores: on each of which a process compiles and tries; none: one does so anywhere. Without
            forks this process compiles.
        seed: of the data that candidates are tried on.
    """

    def __init__(self, tasks: Sequence[Task], cores: Sequence[int], seed: int = 0):
        self._tasks = tasks
        where: Sequence[int | None] = cores or [None]
        self._workers = [_Worker(tasks, core, seed) for core in where] if forks() else []
        self._waiting: dict[int, tuple[_Job, _Worker | None]] = {}
        self._asked: list[tuple[_Job, _Worker | None]] = []
        self._number = 0
        self._waited, self._passed, self._since = 0.0, 0.0, time.perf_counter()

    def submit(self, task: int, choice: Choice) -> int:
        """Have a candidate of a task compiled; gives its number."""
        self._number += 1
        self._waiting[self._number] = self._given(_Job(task, choice, look=False))
        return self._number

    def take(self) -> tuple[int, Outcome]:
        """A candidate that is compiled, once there is one, and what became of it. Of several, the
        one that was given first."""
        number = self._waiting_for(self._done)
        job, worker = self._waiting.pop(number)
        if worker is not None:
            return number, worker.take()
        return number, compiled(self._tasks[job.task], job.choice)

    def ask(self, task: int, choices: Sequence[Choice]) -> None:
        """Have candidates of a task looked at, the ones before having been answered."""
        self._asked = [self._given(_Job(task, c, look=True)) for c in choices]

    def answered(self) -> bool:
        """Whether all have been looked at."""
        wanted = [worker for _, worker in self._asked if worker is not None]
        return all(w.looks >= wanted.count(w) for w in self._workers)

    def answers(self) -> list[Look]:
        """What was seen of them, once they have been looked at."""
        asked, self._asked = self._asked, []
        return [
            self._tasks[job.task].look(job.choice) if w is None else self._waiting_for(w.look)
            for job, w in asked
        ]

    def _done(self) -> int:
        """Wait for a candidate that is compiled, or is to be compiled here."""
        while True:
            for number, (_, worker) in self._waiting.items():
                if worker is None or worker.outcomes:
                    return number
            at_work = {w.pipe: w for _, w in self._waiting.values() if w is not None}
            if not connection.wait(list(at_work), TIMEOUT_S):
                next(iter(at_work.values())).late()

    def close(self) -> None:
        """End the processes."""
        for worker in self._workers:
            worker.end()
        self._workers = []

    def _given(self, job: _Job) -> tuple[_Job, _Worker | None]:
        """Give a job to the process that will be the first to have done it."""
        worker = min(self._workers, key=lambda w: self._delay(w, job), default=None)
        if worker is not None:
            worker.give(job)
        return job, worker

    def _delay(self, worker: _Worker, job: _Job) -> float:
        """How long a process takes to have done a job, too, in the time in which one that has a
        core of its own compiles a candidate. The one on the core that is measured on works while
        this process waits."""
        share = 1.0
        if len(self._workers) > 1 and worker is self._workers[-1] and self._passed:
            share = max(0.01, self._waited / self._passed)
        return (worker.left + job.cost) / share

    def _waiting_for(self, get: Callable[[], T]) -> T:
        """Take something from a process, and note how long that took, and what was before it."""
        before, start = self._since, time.perf_counter()
        found = get()
        self._since = time.perf_counter()
        self._waited = RECENT * self._waited + self._since - start
        self._passed = RECENT * self._passed + self._since - before
        return found


def forks() -> bool:
    """Whether processes can be started here that have what this one has."""
    return hasattr(os, "fork") and hasattr(os, "sched_getaffinity")


def compiling_cores() -> tuple[int, ...]:
    """Cores that this process may use, the one that it measures on last (see `measure.quiet`, in
    which there is but that one); none without forks."""
    cores = sorted(os.sched_getaffinity(0)) if forks() else []
    return (*cores[:-1][: MOST - 1], *cores[-1:])


class _Worker:
    """A process that does one job after the other. One that dies is replaced, and what it was at is
    given up. `core`: where it runs; None: wherever this one does."""

    def __init__(self, tasks: Sequence[Task], core: int | None, seed: int):
        self._tasks, self._core, self._seed = tasks, core, seed
        self._jobs: deque[_Job] = deque()
        self._compiled: Outcome | None = None  # of the first job, which is being run
        self._outcomes: deque[Outcome] = deque()
        self._looks: deque[Look | Exception] = deque()
        self._start()

    @property
    def left(self) -> float:
        """What it has yet to do, in candidates that are compiled."""
        self._hear_all()
        return sum(job.cost for job in self._jobs)

    @property
    def outcomes(self) -> int:
        """Candidates that it has compiled, and that have not been taken."""
        self._hear_all()
        return len(self._outcomes)

    @property
    def looks(self) -> int:
        """The same of those that it has looked at."""
        self._hear_all()
        return len(self._looks)

    def give(self, job: _Job) -> None:
        """Have it do something, after everything else."""
        self._jobs.append(job)
        with suppress(OSError):  # a process that has died is noticed as something is heard from it
            self.pipe.send(job)

    def take(self) -> Outcome:
        """What became of the next candidate that it has compiled."""
        return self._outcomes.popleft()

    def look(self) -> Look:
        """What it saw of the next candidate that it was to look at."""
        while not self.looks:
            if not self.pipe.poll(TIMEOUT_S):
                self.late()
        found = self._looks.popleft()
        if isinstance(found, Exception):
            raise found
        return found

    def end(self) -> None:
        self.pipe.close()
        self._process.kill()
        self._process.join()

    def _start(self) -> None:
        context = multiprocessing.get_context("fork")
        self.pipe, theirs = context.Pipe()
        given = (self._tasks, theirs, self.pipe, self._core, self._seed)
        self._process = context.Process(target=_serve, args=given, daemon=True)
        with warnings.catch_warnings():
            # Of forks of processes with threads: idle pools, which the child does not use.
            warnings.simplefilter("ignore", DeprecationWarning)
            self._process.start()
        theirs.close()

    def late(self) -> None:
        """Give up what it is at, of which nothing has been heard for `TIMEOUT_S`."""
        doing = "compile" if self._compiled is None else "run"
        self._give_up(f"it takes longer than {TIMEOUT_S:.0f} s to {doing}")

    def _hear_all(self) -> None:
        """Take what it has said. If it has died, it is replaced."""
        while self._jobs:
            try:
                if not self.pipe.poll(0):
                    return
                self._heard(self.pipe.recv())
            except (EOFError, OSError):
                died = "the compiler died of it"
                self._give_up(died if self._compiled is None else _death(self._process) or died)

    def _heard(self, message: Any) -> None:
        if self._jobs[0].look:
            self._looks.append(message)
        elif self._compiled is None and not message.error:
            self._compiled = message
            return
        else:
            self._outcomes.append(message if message.error else self._compiled or message)
            self._compiled = None
        self._jobs.popleft()

    def _give_up(self, reason: str) -> None:
        """Replace the process, and go on with what comes after what it was at."""
        if self._jobs.popleft().look:
            self._looks.append(None)
        else:
            self._outcomes.append(Outcome(error=reason))
        self._compiled = None
        self.end()
        self._start()
        for job in self._jobs:
            self.pipe.send(job)


def _death(process: BaseProcess) -> str:
    """What a candidate did to the process that tried it; empty if that goes on."""
    process.join(1.0)
    code = process.exitcode
    if code is None:
        return ""
    if code == -signal.SIGVTALRM:
        return f"it runs longer than {RUN_S:.0f} s"
    return f"it crashes: {signal.Signals(-code).name if code < 0 else f'exit status {code}'}"


def _serve(
    tasks: Sequence[Task], pipe: Connection, parents: Connection, core: int | None, seed: int
) -> None:
    """What a worker does: the jobs that come through the pipe, until its other end is closed. It
    says what it sees of a candidate; or what became of it as it was compiled and, if there is
    code, that it has been run."""
    parents.close()  # so that the end of the parent closes the pipe
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends us
    signal.signal(signal.SIGVTALRM, signal.SIG_DFL)
    faulthandler.disable()  # to crash is an answer here
    with suppress(OSError):
        if core is not None and os.sched_getaffinity(0) != {core}:
            os.sched_setaffinity(0, {core})
            os.nice(5)
        else:  # where the other end measures: only while that waits, or little, at least
            os.nice(19)
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    trial = FirstRun(tasks, seed)
    while True:
        try:
            job = pipe.recv()
            if job.look:
                pipe.send(_seen(tasks[job.task], job.choice))
                continue
            found = compiled(tasks[job.task], job.choice)
            pipe.send(found)
            if not found.error:
                # By the system: what loops for ever never comes back to Python.
                signal.setitimer(signal.ITIMER_VIRTUAL, RUN_S)
                error = trial.run(job.task, found)
                signal.setitimer(signal.ITIMER_VIRTUAL, 0)
                pipe.send(Outcome(error=error))
        except (EOFError, OSError):
            return


def _seen(task: Task, choice: Choice) -> Look | Exception:
    """A look, or what went wrong, which the other end is to raise."""
    try:
        return task.look(choice)
    except Exception as error:
        return error
