"""Running a module over calibration batches, for the values inside it."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np

from compiler.boundary.inputs import bind_inputs
from compiler.ir.expr import IRModule, Var, tensor_type
from compiler.transform.alter_op_layout import ANY_LAYOUT
from compiler.types.dtypes import Array

Inputs = Mapping[str, Array]
Batches = Sequence[Inputs]


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
        any_order: those of them whose elements may come in another order and shape, which saves the
            time that putting them in order takes.
    """

    def __init__(
        self,
        module: IRModule,
        wanted: Sequence[Var],
        threads: int,
        any_order: Collection[Var] = (),
    ):
        import compiler

        f = replace(
            module.main, attrs={**module.main.attrs, ANY_LAYOUT: [v in any_order for v in wanted]}
        )
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


def all_results(module: IRModule, batches: Batches, threads: int) -> list[Array]:
    """All results of a module, batch after batch."""
    run = Runner(module, [r for r in module.main.results if isinstance(r, Var)], threads)
    return [np.array(a) for batch in batches for a in run(batch)]


def comparable(*results: Sequence[Array]) -> list[Array]:
    """The float arrays that several networks give for the same data, as one vector for each
    network; without those whose sizes, which depend on the data, differ between networks."""
    same = [
        arrays
        for arrays in zip(*results, strict=True)
        if arrays[0].dtype.kind == "f" and len({a.shape for a in arrays}) == 1
    ]
    if not same:
        return [np.zeros(0) for _ in results]
    return [np.concatenate([np.ravel(a) for a in own]) for own in zip(*same, strict=True)]
