"""Running a module over calibration batches, for the values inside it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from compiler.dtypes import Array
from compiler.ir.expr import IRModule, Var, tensor_type
from compiler.runtime.inputs import bind_inputs

Inputs = Mapping[str, Array]


def processors() -> int:
    """How many processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class Runner:
    """Computes some values of a module, batch after batch, into the same memory each time: fresh
    pages for every inner value of every batch take longer than computing what is in them.

    Args:
        module: `main` computes the values.
        wanted: the variables of `main` whose values are wanted, in any order.
        threads: threads that kernels may use; the values do not depend on it.
    """

    def __init__(self, module: IRModule, wanted: Sequence[Var], threads: int):
        import compiler

        f = module.main
        self.wanted = tuple(wanted)
        self.params = [(p.name, tensor_type(p)) for p in f.params]
        self.program = None
        if wanted:
            observed = module.with_function("main", f.with_body(f.bindings, list(wanted)))
            self.program = compiler.build(observed, threads=threads)
        self._held: list[Array] = []

    def __call__(self, inputs: Inputs) -> list[Array]:
        """The wanted values for `inputs`, valid until the next call.

        Raises:
            InputError: an input is missing, unknown, or of the wrong rank, shape or dtype.
        """
        arrays, dims = bind_inputs(self.params, (), inputs)
        if self.program is not None:
            self._held = self.program.run(arrays, dims, self._held)
        return self._held
