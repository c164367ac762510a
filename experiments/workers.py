"""Cells on worker processes of this machine, any of which may die without loss.

A cell whose worker dies is given to a fresh one, a few times; one that takes too long is stopped
together with its worker. Either way it becomes a row. Workers end with the sweep, however it ends.
"""

from __future__ import annotations

import contextlib
import math
import multiprocessing
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait

from compiler.errors import ConfigError

from .cells import Cell, Workload
from .session import Outcome, Session, failed

#: Workers that a cell may cost before it counts as failed; also those that may die while starting.
PATIENCE = 3

_STARTED, _READY = "started", "ready"


def process_outcomes(
    todo: Sequence[Cell], workload: Workload, jobs: int, timeout_s: float = math.inf
) -> Generator[Outcome, None, None]:
    """What the cells give, as they are finished, from `jobs` processes.

    A cell that takes more than `timeout_s` seconds gives status "timeout", one that costs
    `PATIENCE` workers status "error". A worker's first cell of a network includes the float32
    reference.

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
                workers.append(_Worker())
            soonest = max(0.0, min(worker.due for worker in workers) - time.monotonic())
            links = [worker.link for worker in workers]
            ready = wait(links, None if soonest == math.inf else soonest)
            for worker in list(workers):
                task = worker.task
                if worker.link not in ready:
                    if task is not None and worker.due <= time.monotonic():
                        worker.stop()
                        workers.remove(worker)
                        yield failed(task.cell, "timeout", f"took more than {timeout_s:g} s")
                    continue
                try:
                    said: Outcome | str = worker.link.recv()
                except (EOFError, OSError):
                    ending = worker.buried()
                    workers.remove(worker)
                    if task is None:
                        stillborn += 1
                        if stillborn == PATIENCE:
                            raise ConfigError(f"worker processes {ending} as they start") from None
                        continue
                    task.deaths += 1
                    if task.deaths < PATIENCE:
                        waiting.appendleft(task)
                    else:
                        reason = f"its process {ending}, {PATIENCE} times"
                        yield failed(task.cell, "error", reason)
                    continue
                if said == _STARTED:
                    worker.send(workload)
                    continue
                if waiting:
                    worker.start(waiting.popleft(), timeout_s)
                else:
                    worker.stop()
                    workers.remove(worker)
                if isinstance(said, Outcome):
                    yield said
    finally:
        for worker in workers:
            worker.stop()


@dataclass
class _Task:
    cell: Cell
    deaths: int = 0


class _Worker:
    """A process that says when it has started, and, sent the workload, when it is ready; then an
    outcome for every cell it is sent.

    The workload is no argument of the process: `multiprocessing` writes those to a pipe whose other
    end it holds too, and so waits forever if the process dies before it reads more than the pipe
    takes.
    """

    def __init__(self) -> None:
        # A forked copy of a process that runs LLVM and thread pools is not safe: spawn.
        context = multiprocessing.get_context("spawn")
        self.link, theirs = context.Pipe()
        self.process = context.Process(target=_work, args=(theirs,), daemon=True)
        self.process.start()
        theirs.close()  # the link ends when the process does
        self.task: _Task | None = None
        self.due = math.inf

    def start(self, task: _Task, timeout_s: float) -> None:
        self.task, self.due = task, time.monotonic() + timeout_s
        self.send(task.cell)

    def send(self, what: Workload | Cell) -> None:
        with contextlib.suppress(OSError):  # it has died: reading the link will tell
            self.link.send(what)

    def stop(self) -> None:
        self.process.kill()
        self.process.join()
        self.link.close()

    def buried(self) -> str:
        """How a process has ended that closed its link."""
        self.process.join(10)
        self.stop()
        code = self.process.exitcode or 0
        return f"died of {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"


def _work(link: Connection) -> None:
    # Ctrl-C reaches the whole group of processes; the sweep stops its workers itself.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with contextlib.suppress(EOFError, OSError):  # the sweep has ended
        link.send(_STARTED)
        session = Session(link.recv())
        link.send(_READY)
        while True:
            link.send(session.outcome(link.recv()))


def _end_with_parent() -> None:
    """A sweep that is killed cannot stop its workers, and a cell may take hours."""
    parent = multiprocessing.parent_process()
    assert parent is not None, "this is a worker"
    parent.join()
    os._exit(1)
