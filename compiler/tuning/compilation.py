"""Compiling candidates, running them for the first time, and making kernels of what another process
compiled (see `processes`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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
        backend = backend_of(task.target)
        made, text = backend.object_and_assembly(scheduled.code(task.target), task.target)
        report = report_of(text) if text else None
        return Outcome(abi_of(scheduled, task.target).to_json(), made, source.tables, report)
    except DtypelabError as e:
        return Outcome(error=str(e) or type(e).__name__)


class FirstRun:
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
