"""Compiling candidates, and running them for the first time: in processes beside the one that
measures, so that both go on at once and a compiler or a candidate that dies takes no more than
itself along. One of them has the core that is measured on whenever that is idle.

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
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

from compiler.codegen.backend import backend_of
from compiler.codegen.kernel_abi import KernelAbi, order_text
from compiler.errors import DtypelabError
from compiler.ir.expr import Constant
from compiler.lowering.legalize import legalize
from compiler.runtime.kernels import (
    Argument,
    Compiled,
    Kernel,
    KernelSource,
    Written,
    abi_of,
    aligned_copy,
)
from compiler.runtime.loader import loader_of
from compiler.scheduling.choices import Choice
from compiler.tensor.expr import Buffer
from compiler.tensor.packed_arrays import aligned_empty, pack_into
from compiler.tuning.features import Report, report_of
from compiler.tuning.kernel_run import KernelRun, Room, random_arrays
from compiler.tuning.tasks import Task
from compiler.types.dtypes import Array

TIMEOUT_S = 60.0
"""Seconds after which a candidate that is still being compiled is given up."""
RUN_S = 5.0
"""Seconds of processor time after which a candidate that still runs, once, is given up."""
MOST = 8
"""Processes that compile."""
KEPT = 4
"""Orders of the constants of one kernel that are kept for further candidates."""
RECENT = 0.95
"""What the past weighs, after every candidate, in the share of time that this process waits."""


@dataclass(frozen=True)
class Outcome:
    """Code of a candidate, what LLVM says of it, or why there is none. After a process has run it:
    nothing, or why it cannot be run."""

    abi: str = ""
    code: bytes = b""
    tables: tuple[Array, ...] = ()
    report: Report | None = None
    error: str = ""

    @property
    def last(self) -> bool:
        """Whether a process says no more of the candidate: it does not run what has an error."""
        return bool(self.error) or not self.code


def compiled(task: Task, choice: Choice) -> Outcome:
    """Schedule and compile one candidate."""
    try:
        source = KernelSource(legalize(task.function), task.target, choice)
        scheduled = source.scheduled()
        backend = backend_of(task.target)
        made, text = backend.object_and_assembly(scheduled.code(task.target), task.target)
        report = report_of(text) if text else None
        return Outcome(abi_of(scheduled, task.target).to_json(), made, source.tables, report)
    except DtypelabError as e:
        return Outcome(error=str(e) or type(e).__name__)


class Compilers:
    """Compiles candidates in the order in which they are given, and gives them back in it.

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
        self._waiting: deque[tuple[int, Choice, _Worker | None]] = deque()
        self._waited, self._passed, self._taken = 0.0, 0.0, time.perf_counter()

    def submit(self, task: int, choice: Choice) -> None:
        """Have a candidate of a task compiled, by the process that will be the first to have done
        so: one that has the core that is measured on runs while this process waits."""
        worker = min(self._workers, key=self._delay, default=None)
        if worker is not None:
            worker.give(task, choice)
        self._waiting.append((task, choice, worker))

    def take(self) -> Outcome:
        """What became of the next candidate, once it is compiled."""
        task, choice, worker = self._waiting.popleft()
        if worker is None:
            return compiled(self._tasks[task], choice)
        before, start = self._taken, time.perf_counter()
        found = worker.take()
        self._taken = time.perf_counter()
        self._waited = RECENT * self._waited + self._taken - start
        self._passed = RECENT * self._passed + self._taken - before
        return found

    def _delay(self, worker: _Worker) -> float:
        """How long one more candidate takes a process, in the time that one takes a process which
        has a core of its own."""
        share = 1.0
        if len(self._workers) > 1 and worker is self._workers[-1] and self._passed:
            share = max(0.01, self._waited / self._passed)
        return (worker.busy + 1) / share

    def close(self) -> None:
        """End the processes."""
        for worker in self._workers:
            worker.end()
        self._workers = []


def forks() -> bool:
    """Whether processes can be started here that have what this one has."""
    return hasattr(os, "fork") and hasattr(os, "sched_getaffinity")


def compiling_cores() -> tuple[int, ...]:
    """Cores that this process may use, the one that it measures on last (see `measure.quiet`, in
    which there is but that one); none without forks."""
    cores = sorted(os.sched_getaffinity(0)) if forks() else []
    return (*cores[:-1][: MOST - 1], *cores[-1:])


class _Worker:
    """A process that compiles and tries, one candidate after the other. One that dies is replaced,
    and what it was at is given up. `core`: where it runs; None: wherever this one does."""

    def __init__(self, tasks: Sequence[Task], core: int | None, seed: int):
        self._tasks, self._core, self._seed = tasks, core, seed
        self._given: deque[tuple[int, Choice]] = deque()
        self._come: deque[Outcome] = deque()
        self._start()

    @property
    def busy(self) -> int:
        """Candidates that it has yet to compile and to run."""
        with suppress(EOFError, OSError):  # a process that has died is noticed later
            while self._pipe.poll(0):
                self._come.append(self._pipe.recv())
        return len(self._given) - sum(o.last for o in self._come)

    def _start(self) -> None:
        context = multiprocessing.get_context("fork")
        self._pipe, theirs = context.Pipe()
        given = (self._tasks, theirs, self._pipe, self._core, self._seed)
        self._process = context.Process(target=_serve, args=given, daemon=True)
        with warnings.catch_warnings():
            # Of forks of processes with threads: idle pools, which the child does not use.
            warnings.simplefilter("ignore", DeprecationWarning)
            self._process.start()
        theirs.close()

    def give(self, task: int, choice: Choice) -> None:
        self._given.append((task, choice))
        with suppress(OSError):  # a process that has died is noticed as its answer is taken
            self._pipe.send((task, choice))

    def take(self) -> Outcome:
        found, error = self._answer("to compile")
        if found is not None and not found.error:
            tried, died = self._answer("to run")
            error = "" if tried is not None else _death(self._process) or died
            found = tried if tried is not None and tried.error else found
        self._given.popleft()
        if not error:
            assert found is not None, "without an answer there is an error"
            return found
        self.end()
        self._come.clear()  # nothing comes after what it died of
        self._start()
        for task, choice in self._given:
            self._pipe.send((task, choice))
        return Outcome(error=error)

    def _answer(self, what: str) -> tuple[Outcome | None, str]:
        """What comes through the pipe next, or why nothing does."""
        if self._come:
            return self._come.popleft(), ""
        try:
            if self._pipe.poll(TIMEOUT_S):
                found: Outcome = self._pipe.recv()
                return found, ""
        except (EOFError, OSError):
            return None, "the compiler died of it"
        return None, f"it takes longer than {TIMEOUT_S:.0f} s {what}"

    def end(self) -> None:
        self._pipe.close()
        self._process.kill()
        self._process.join()


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
    """What a worker does: compile what comes through the pipe, say what became of it, run it once
    and say that it has; until the other end of the pipe is closed."""
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
    trial = _FirstRun(tasks, seed)
    while True:
        try:
            task, choice = pipe.recv()
            found = compiled(tasks[task], choice)
            pipe.send(found)
            if not found.error:
                # By the system: what loops for ever never comes back to Python.
                signal.setitimer(signal.ITIMER_VIRTUAL, RUN_S)
                error = trial.run(task, found)
                signal.setitimer(signal.ITIMER_VIRTUAL, 0)
                pipe.send(Outcome(error=error))
        except (EOFError, OSError):
            return


class _FirstRun:
    """Runs candidates once."""

    def __init__(self, tasks: Sequence[Task], seed: int):
        self._tasks, self._seed, self._linker, self._room = tasks, seed, Linker(), Room()
        self._inputs: tuple[int, list[Array]] = -1, []

    def run(self, task: int, outcome: Outcome) -> str:
        """Run a candidate on random data; why it cannot be, or nothing."""
        subject = self._tasks[task]
        if self._inputs[0] != task:
            self._inputs = task, random_arrays(legalize(subject.function), self._seed)
        try:
            kernel, written = self._linker.kernel(subject, outcome)
        except DtypelabError as e:
            return str(e) or type(e).__name__
        KernelRun(kernel, subject.target, self._inputs[1], written, self._room)()
        return ""


class Linker:
    """Makes kernels of code that was compiled elsewhere, with their constants laid out."""

    def __init__(self) -> None:
        self._orders: dict[tuple[str, int, str], Array] = {}

    def kernel(self, task: Task, outcome: Outcome) -> tuple[Kernel, list[Buffer]]:
        """A kernel that can be called, and the parameters that it writes.

        Raises:
            LoweringError: a C function that the code calls cannot be found.
        """
        abi = KernelAbi.from_json(outcome.abi)
        loader_of(task.target).link(outcome.code, [s.symbol for s in abi.stages], task.target)
        legal = legalize(task.function)
        arguments = []
        for k, a in enumerate(legal.inputs):
            array = self._laid_out(task, k, a.data, abi) if isinstance(a, Constant) else None
            arguments.append(Argument(None if isinstance(a, Constant) else a, array))
        f = legal.func
        kernel = Kernel(
            Written("", ""), task.target, abi, Compiled(abi, outcome.code), tuple(arguments),
            f.outputs, outcome.tables, tuple(f.dims),
        )  # fmt: skip
        return kernel, f.params[len(arguments) : len(arguments) + f.outputs]

    def _laid_out(self, task: Task, k: int, source: Array, abi: KernelAbi) -> Array:
        order = abi.packed.get(k)
        key = (task.key, k, "" if order is None else order_text(order))
        if key not in self._orders:
            if any(other[0] != task.key for other in self._orders):
                self._orders.clear()
            while len(self._orders) >= KEPT * 2:
                del self._orders[next(iter(self._orders))]
            if order is None:
                self._orders[key] = aligned_copy(source)
            else:
                out = aligned_empty(order.shape, source.dtype)
                pack_into(out, order, source)
                self._orders[key] = out
        return self._orders[key]
