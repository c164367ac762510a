"""Compiling candidates: in processes beside the one that measures, where the machine has cores for
them, so that both go on at once and a compiler that dies takes no more than its candidate along.

These processes are forks: they have every datatype, rule and instruction that was registered.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import warnings
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection

from compiler.codegen.backend import Code, backend_of
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
from compiler.target.registry import Target
from compiler.tensor.expr import Buffer
from compiler.tensor.packed_arrays import aligned_empty, pack_into
from compiler.tuning.features import Report, report_of
from compiler.tuning.tasks import Task
from compiler.types.dtypes import Array

TIMEOUT_S = 60.0
"""Seconds after which a candidate that is still being compiled is given up."""
MOST = 8
"""Processes that compile."""
KEPT = 4
"""Orders of the constants of one kernel that are kept for further candidates."""


@dataclass(frozen=True)
class Outcome:
    """Code of a candidate, what LLVM says of it, or why there is none."""

    abi: str = ""
    code: bytes = b""
    tables: tuple[Array, ...] = ()
    report: Report | None = None
    error: str = ""


def compiled(task: Task, choice: Choice) -> Outcome:
    """Schedule and compile one candidate."""
    try:
        source = KernelSource(legalize(task.function), task.target, choice)
        scheduled = source.scheduled()
        code = scheduled.code(task.target)
        made = backend_of(task.target).object(code, task.target)
        return Outcome(
            abi_of(scheduled).to_json(), made, source.tables, reported(code, task.target)
        )
    except DtypelabError as e:
        return Outcome(error=str(e) or type(e).__name__)


def reported(code: Code, target: Target) -> Report | None:
    """What LLVM says of the registers of code, in its assembly; None of other backends' code."""
    if target.kind != "llvm":
        return None
    from compiler.codegen.llvm.jit import commented_assembly

    return report_of(commented_assembly(code.text, target))


class Compilers:
    """Compiles candidates in the order in which they are given, and gives them back in it.

    Args:
        tasks: what candidates are of.
        cores: on each of which a process compiles; none: this process does.
    """

    def __init__(self, tasks: Sequence[Task], cores: Sequence[int]):
        self._tasks = tasks
        self._workers = [_Worker(tasks, core) for core in cores]
        self._waiting: deque[tuple[int, Choice, _Worker | None]] = deque()

    def submit(self, task: int, choice: Choice) -> None:
        """Have a candidate of a task compiled."""
        worker = min(self._workers, key=lambda w: w.busy, default=None)
        if worker is not None:
            worker.give(task, choice)
        self._waiting.append((task, choice, worker))

    def take(self) -> Outcome:
        """What became of the next candidate, once it is compiled."""
        task, choice, worker = self._waiting.popleft()
        return compiled(self._tasks[task], choice) if worker is None else worker.take()

    def close(self) -> None:
        """End the processes."""
        for worker in self._workers:
            worker.end()
        self._workers = []


def spare_cores() -> tuple[int, ...]:
    """The cores that this process may use, but for the one that it measures on (see
    `measure.quiet`, in which there is but that one); none without forks."""
    if not hasattr(os, "fork") or not hasattr(os, "sched_getaffinity"):
        return ()
    return tuple(sorted(os.sched_getaffinity(0))[:-1][:MOST])


class _Worker:
    """A process that compiles, one candidate after the other. One that dies is replaced, and what
    it was compiling is given up."""

    def __init__(self, tasks: Sequence[Task], core: int):
        self._tasks, self._core = tasks, core
        self._given: deque[tuple[int, Choice]] = deque()
        self._start()

    @property
    def busy(self) -> int:
        """Candidates that it has yet to give back."""
        return len(self._given)

    def _start(self) -> None:
        context = multiprocessing.get_context("fork")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(
            target=_serve, args=(self._tasks, theirs, self._pipe, self._core), daemon=True
        )
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
        error = "the compiler died of it"
        try:
            if self._pipe.poll(TIMEOUT_S):
                found: Outcome = self._pipe.recv()
                self._given.popleft()
                return found
            error = f"it takes longer than {TIMEOUT_S:.0f} s to compile"
        except (EOFError, OSError):
            pass
        self._given.popleft()
        self.end()
        self._start()
        for task, choice in self._given:
            self._pipe.send((task, choice))
        return Outcome(error=error)

    def end(self) -> None:
        self._pipe.close()
        self._process.kill()
        self._process.join()


def _serve(tasks: Sequence[Task], pipe: Connection, parents: Connection, core: int) -> None:
    """What a worker does: compile what comes through the pipe until its other end is closed."""
    parents.close()  # so that the end of the parent closes the pipe
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends us
    with suppress(OSError):
        os.sched_setaffinity(0, {core})
        os.nice(5)
    while True:
        try:
            task, choice = pipe.recv()
            pipe.send(compiled(tasks[task], choice))
        except (EOFError, OSError):
            return


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
