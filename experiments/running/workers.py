"""Cells on worker processes of this machine, any of which may die without loss.

A cell whose worker dies is given to a fresh one, a few times; one that takes too long is stopped
together with its worker. Either way it becomes a row. Workers end with the sweep, however it ends.

Cells with code of a user run on forks of this process, which know everything that was defined here
and are kept from leaving anything behind (see `keeper`). They are not given to another worker when
that code ended theirs: it would do so again.
"""

from __future__ import annotations

import contextlib
import functools
import math
import multiprocessing
import os
import signal
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from compiler.errors import ConfigError
from experiments.spec.cells import Cell, Workload
from experiments.user_code import activity, isolation
from experiments.user_code.activity import Step
from experiments.user_code.wear import State

from .session import Outcome, Session, failed

#: Workers that a cell may cost before it counts as failed; also those that may die while starting.
PATIENCE = 3

_SAFE_PATH = "PYTHONSAFEPATH"
_STARTED, _READY = "started", "ready"


@dataclass(frozen=True)
class Isolation:
    """How cells with code of a user run.

    Attributes:
        memory: bytes that such a process may allocate (None: as much as the machine has left).
        say: is given what it prints.
    """

    memory: int | None = None
    say: isolation.Say = isolation.echo


def process_outcomes(
    todo: Sequence[Cell],
    workload: Workload,
    jobs: int,
    timeout_s: float = math.inf,
    isolated: Isolation | None = None,
) -> Generator[Outcome, None, None]:
    """What the cells give, as they are finished, from `jobs` processes.

    A cell that takes more than `timeout_s` seconds gives status "timeout", one that costs
    `PATIENCE` workers status "error". A worker's first cell of a network includes the float32
    reference. `isolated`: cells run code of a user.

    Raises:
        ConfigError: workers die before they have a cell.
    """
    waiting = deque(_Task(cell) for cell in todo)
    workers: list[_Worker] = []
    stillborn = 0
    try:
        while waiting or workers:
            busy = sum(worker.task is not None for worker in workers)
            while len(workers) < min(jobs, len(waiting) + busy):
                fork = isolated and _Fork(workload, isolated, min(timeout_s, isolation.SILENCE_S))
                workers.append(fork or _Spawned())
            soonest = max(0.0, min(worker.until for worker in workers) - time.monotonic())
            links = [link for worker in workers for link in worker.waitables()]
            ready = wait(links, None if soonest == math.inf else soonest)
            for worker in list(workers):
                task = worker.task
                worker.listen(ready)
                if worker.link not in ready:
                    if worker.until <= time.monotonic():
                        reason = worker.overdue(timeout_s)
                        worker.stop()
                        workers.remove(worker)
                        if task is not None:
                            yield failed(task.cell, "timeout", reason)
                        else:
                            stillborn = _stillborn(stillborn, reason, isolated)
                    continue
                said = worker.received()
                if said is None:
                    ending, own = worker.buried()
                    workers.remove(worker)
                    if task is None:
                        stillborn = _stillborn(stillborn, ending, isolated)
                        continue
                    task.deaths += 1
                    if own:
                        yield failed(task.cell, "error", ending)
                    elif task.deaths < PATIENCE:
                        waiting.appendleft(task)
                    else:
                        yield failed(task.cell, "error", f"{ending}, {PATIENCE} times")
                    continue
                if isinstance(said, Step):
                    worker.note(said)
                    continue
                if said == _STARTED:
                    worker.send(workload)
                    continue
                done = said if isinstance(said, _Done) else None
                if waiting and not (done and done.worn):
                    worker.start(waiting.popleft(), timeout_s)
                else:
                    worker.stop()
                    workers.remove(worker)
                if done:
                    yield done.outcome
    finally:
        for worker in workers:
            worker.ask_to_stop()
        for worker in workers:
            worker.stop()


#: Processes that are no forks import the program that started them.
_IMPORTED = """; a program that sweeps with several jobs is a file, and does so below \
if __name__ == "__main__":"""


def _stillborn(before: int, ending: str, isolated: object) -> int:
    if before + 1 == PATIENCE:
        why = "" if isolated else _IMPORTED
        raise ConfigError(f"worker processes end as they start: {ending}{why}")
    return before + 1


@dataclass
class _Task:
    cell: Cell
    deaths: int = 0


@dataclass(frozen=True)
class _Done:
    """What a cell gave; `worn`: another process should run those that follow."""

    outcome: Outcome
    worn: bool = False


class _Worker(ABC):
    """A process that says when it is ready, then what every cell that it is sent gave."""

    link: Connection

    def __init__(self) -> None:
        self.task: _Task | None = None
        self.due = math.inf

    @property
    def until(self) -> float:
        """When it has taken too long."""
        return self.due

    def waitables(self) -> list[Any]:
        """What there is to read of it."""
        return [self.link]

    @abstractmethod
    def listen(self, ready: Sequence[Any]) -> None:
        """Take care of what it printed."""

    @abstractmethod
    def note(self, step: Step) -> None:
        """It has said what it does."""

    def start(self, task: _Task, timeout_s: float) -> None:
        self.task, self.due = task, time.monotonic() + timeout_s
        self.send(task.cell)

    def send(self, what: Workload | Cell) -> None:
        with contextlib.suppress(OSError):  # it has died: reading the link will tell
            self.link.send(what)

    def received(self) -> Any:
        """What it says; None if it has closed its link."""
        try:
            return self.link.recv()
        except (EOFError, OSError):
            return None

    def overdue(self, timeout_s: float) -> str:
        """What to say of it when it has taken too long."""
        return f"took more than {timeout_s:g} s"

    @abstractmethod
    def ask_to_stop(self) -> None:
        """Begin to end it."""

    @abstractmethod
    def stop(self) -> None:
        """End it."""

    @abstractmethod
    def buried(self) -> tuple[str, bool]:
        """How a process has ended that closed its link, and whether code of a user did it."""


class _Spawned(_Worker):
    """A fresh process. It says when it has started, and, sent the workload, when it is ready.

    The workload is no argument of the process: `multiprocessing` writes those to a pipe whose other
    end it holds too, and so waits forever if the process dies before it reads more than the pipe
    takes.
    """

    def __init__(self) -> None:
        super().__init__()
        # This process may run pools of threads that others than we have started: spawn.
        context = multiprocessing.get_context("spawn")
        self.link, theirs = context.Pipe()
        self.process = context.Process(target=_work, args=(theirs,), daemon=True)
        with _not_from_here():
            self.process.start()
        theirs.close()  # the link ends when the process does

    def listen(self, ready: Sequence[Any]) -> None:
        """Nothing: it prints where this process does."""

    def note(self, step: Step) -> None:
        """Nothing: it runs no code of a user, whose steps matter."""

    def ask_to_stop(self) -> None:
        self.process.kill()

    def stop(self) -> None:
        self.ask_to_stop()
        self.process.join()
        self.link.close()

    def buried(self) -> tuple[str, bool]:
        self.process.join(10)
        self.stop()
        code = self.process.exitcode or 0
        how = f"died of {isolation.signal_name(-code)}" if code < 0 else f"ended with code {code}"
        return f"its process {how}", False


@contextlib.contextmanager
def _not_from_here() -> Iterator[None]:
    """Fresh processes of Python do not import from the current folder, whatever lies there, until
    they have been told from where this one does."""
    before = os.environ.get(_SAFE_PATH)
    os.environ[_SAFE_PATH] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_SAFE_PATH]
        else:
            os.environ[_SAFE_PATH] = before


class _Fork(_Worker):
    """A fork of this process that runs code of a user."""

    def __init__(self, workload: Workload, how: Isolation, silence_s: float) -> None:
        super().__init__()
        body = functools.partial(_work_alone, workload=workload)
        self.watched = isolation.Watched(body, how.memory, silence_s, how.say)
        self.link = self.watched.link

    @property
    def until(self) -> float:
        return min(self.due, self.watched.silent_until)

    def waitables(self) -> list[Any]:
        return self.watched.waitables()

    def listen(self, ready: Sequence[Any]) -> None:
        if self.watched.kept.output in ready:
            self.watched.listen()

    def note(self, step: Step) -> None:
        self.watched.note(step)

    def start(self, task: _Task, timeout_s: float) -> None:
        self.watched.next_cell()
        super().start(task, timeout_s)

    def received(self) -> Any:
        return isolation.received(self.watched)

    def overdue(self, timeout_s: float) -> str:
        if self.due <= time.monotonic():
            return f"{self.watched.step.text}: took more than {timeout_s:g} s"
        return self.watched.silent()

    def ask_to_stop(self) -> None:
        self.watched.kept.ask_to_stop()

    def stop(self) -> None:
        self.watched.kept.stop()

    def buried(self) -> tuple[str, bool]:
        return self.watched.ending()


def _work(link: Connection) -> None:
    # Ctrl-C reaches the whole group of processes; the sweep stops its workers itself.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with contextlib.suppress(EOFError, OSError):  # the sweep has ended
        link.send(_STARTED)
        session = Session(link.recv())
        link.send(_READY)
        while True:
            link.send(_Done(session.outcome(link.recv())))


def _end_with_parent() -> None:
    """A sweep that is killed cannot stop its workers, and a cell may take hours."""
    parent = multiprocessing.parent_process()
    assert parent is not None, "this is a worker"
    parent.join()
    os._exit(1)


def _work_alone(link: Connection, workload: Workload) -> None:
    """As `_work`, on a fork: no exception of the user's code ends it, and it looks after itself."""
    isolation.behave(link)
    own, folder, pristine = os.getpid(), Path.cwd(), State.now()
    session = Session(workload)
    before = State.now()
    with contextlib.suppress(EOFError, OSError):  # the sweep has ended
        link.send(_READY)
        while True:
            cell: Cell = link.recv()
            # Code of the user may change the folder.
            cell = replace(cell, model=replace(cell.model, path=folder / cell.model.path))
            spent = False
            try:
                outcome = session.outcome(cell)
            except BaseException as error:  # SystemExit, KeyboardInterrupt: nobody pressed a key
                outcome, spent = failed(cell, "error", activity.explained(error)), True
            isolation.leave_unless(own)
            now = State.now()
            if changed := now.replaced(pristine):
                reason = f"code of the user replaced {', '.join(changed)}: no figure can be trusted"
                outcome, spent = failed(cell, "error", reason), True
            link.send(_Done(outcome, spent or now.worn(before)))
