"""Where candidates are measured, if that is not this machine; and what is sent there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from compiler.boundary.elements import Elements
from compiler.exporting.export import Relocatable, relocated
from compiler.ir.expr import Binding, Call, Constant, Function, IRModule, TupleGetItem, Var
from compiler.lowering.legalize import legalize
from compiler.runtime.executable import Executable
from compiler.runtime.program_builder import ProgramBuilder
from compiler.saved.libraries import Facts
from compiler.scheduling.choices import Choice
from compiler.scheduling.tuning_log import Record, apply_records, machine_cpu, workload_key
from compiler.target.registry import Target
from compiler.types.dtypes import Array
from compiler.types.tensor_types import TupleType


class Place(Protocol):
    """Measures kernels and networks on one thread of a machine.

    Attributes:
        cpu: what LLVM calls its CPU.
    """

    cpu: str

    def kernel(
        self,
        function: Function,
        target: Target,
        inputs: Sequence[Array],
        choice: Choice | None = None,
    ) -> Any:
        """A primitive function as compiled for that machine, with its inputs as
        `measure.random_arrays` gives them.

        Raises:
            DtypelabError: a choice does not fit.
        """

    def result(self, kernel: Any) -> bytes:
        """What it writes.

        Raises:
            MachineError: the machine was lost, or the kernel was stopped.
        """

    def kernels_in_turns(self, first: Any, second: Any, rounds: int) -> tuple[float, float]:
        """Median milliseconds of two kernels, timed in turns; raises as `result`."""

    def network(self, mod: IRModule, target: Target) -> Executable:
        """A module as compiled for that machine."""

    def networks_in_turns(
        self, first: Executable, second: Executable, inputs: Sequence[Array], rounds: int
    ) -> tuple[float, float]:
        """The same of networks."""


def alone(
    function: Function,
    target: Target,
    inputs: Sequence[Array],
    choice: Choice | None = None,
) -> tuple[Relocatable, list[Array]]:
    """The program of one primitive function, and its inputs in the order of its parameters.

    Args:
        function: the function.
        target: of whatever machine.
        inputs: one array for every input that is no constant, as its loop nest has them.
        choice: stage -> tile, instead of the rule's.

    Raises:
        ConfigError: the choice does not fit.
        LoweringError: the code is rejected.
    """
    target = target.unasked  # what runs it there may be no process that asks
    legal = legalize(function)
    key = workload_key(legal.func, target)
    where = (str(target), target.isa, machine_cpu())
    records = [Record(key, "", *where, choice, 0.0, 0.0, 0, "")] if choice else []
    params = tuple(Var(p.name, p.type) for p in function.params)
    call = Call(function, params)
    result = function.type.result
    out = Var("out", result)
    bindings, results = [Binding(out, call)], [out]
    if isinstance(result, TupleType):
        results = [Var(f"out{k}", t) for k, t in enumerate(result.fields)]
        bindings += [Binding(v, TupleGetItem(out, k)) for k, v in enumerate(results)]
    mod = IRModule({"main": Function(params, tuple(bindings), tuple(results))})
    with apply_records(records):
        program = ProgramBuilder(mod, target, 1).run(False)
    given = dict(zip((a for a in legal.inputs if not isinstance(a, Constant)), inputs, strict=True))
    arrays = [given[p] for p in function.params]
    return relocated(program, Facts(Elements(), ())), arrays
