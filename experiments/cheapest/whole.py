"""Assignments of a network that cannot be cut into pieces: each is built as a whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .exploring import Tell
from .pieces import Values

if TYPE_CHECKING:
    from compiler.ir.expr import IRModule
    from quantize.plan.plan import Plan

Array = NDArray[Any]


class Whole:
    """As `experiments.cheapest.pieces.Pieces`, and with the same figures."""

    def __init__(
        self, module: IRModule, nodes: Sequence[str], batches: Sequence[Values], threads: int
    ):
        self.module, self.nodes = module, tuple(nodes)
        self.batches, self.threads = batches, threads

    def results(self, plans: Sequence[Plan | None]) -> list[Array]:
        """See `experiments.cheapest.pieces.Pieces`."""
        import quantize

        plan = joined(plans, self.nodes)
        return self._run(self.module if plan is None else quantize.realize(self.module, plan))

    @cached_property
    def reference(self) -> list[Array]:
        """What it gives in float32, batch by batch."""
        return self._run(self.module)

    def noises(self, plans: Sequence[Plan | None], tell: Tell) -> NDArray[np.float64]:
        """See `experiments.cheapest.pieces.Pieces`."""
        from quantize.search.sensitivity import sensitivities

        found = np.full((len(self.nodes), len(plans)), np.nan)
        for k, plan in enumerate(plans):
            tell("layers alone", k, len(plans))
            if plan is not None:
                alone = sensitivities(self.module, plan, self.batches, self.threads)
                noises = {s.node: s.noise for s in alone}
                found[:, k] = [noises.get(node, np.nan) for node in self.nodes]
        tell("layers alone", 1, 1)
        return found

    def _run(self, module: IRModule) -> list[Array]:
        from compiler.ir.expr import Var
        from quantize.calibration.running import Runner

        first = module.main.results[0]
        assert isinstance(first, Var)
        run = Runner(module, [first], self.threads)
        return [np.array(run(batch)[0]) for batch in self.batches]


def joined(plans: Sequence[Plan | None], nodes: Sequence[str]) -> Plan | None:
    """The plan in which each node is as in its own plan (None: in float32); None if all are in
    float32. What a node has does not depend on what others have, so that this is the plan of their
    configuration."""
    from quantize.plan.node_plan import SEQUENTIAL

    first = next((p for p in plans if p is not None), None)
    if first is None:
        return None
    decided, formats = dict(first.nodes), dict(first.formats)
    for node, plan in zip(nodes, plans, strict=True):
        if plan is None:
            decided[node] = replace(
                decided[node], decision="float", reason="left in float32", accumulate=SEQUENTIAL
            )
            formats.pop(node, None)
        else:
            compute = "native" if plan.native(node) else "storage"
            decided[node] = replace(plan.nodes[node], compute=compute)
            formats[node] = plan.formats[node]
    return replace(first, nodes=decided, formats=formats)
