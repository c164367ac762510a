"""The integers of a converted graph, as torch computes them, beside those of a plan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from compiler.errors import ConfigError
from compiler.frontend.torch.places import placed
from compiler.ir.expr import IRModule
from compiler.types.dtypes import Array
from quantize.annotation.annotate import prepared
from quantize.plan.params import ValueParams
from quantize.plan.plan import Plan
from quantize.reference.integers import quantized
from quantize.reference.trace import Traced, trace_plan
from quantize.torch.matching import matched
from quantize.torch.stripping import stripped

if TYPE_CHECKING:
    from torch.fx import GraphModule


@dataclass(frozen=True)
class Agreement:
    """How many integers two executions have in common.

    Attributes:
        counts: value -> how many integers it has, how many of them differ, and by how much at most.
    """

    counts: dict[str, tuple[int, int, int]]

    @property
    def total(self) -> int:
        """All integers."""
        return sum(n for n, _, _ in self.counts.values())

    @property
    def share(self) -> float:
        """Share of the integers that are the same."""
        return 1.0 - sum(d for _, d, _ in self.counts.values()) / max(self.total, 1)

    @property
    def most(self) -> int:
        """By how much two integers differ at most."""
        return max((m for _, _, m in self.counts.values()), default=0)

    def __str__(self) -> str:
        head = f"{self.total} integers of {len(self.counts)} values: {self.share:.4%} the same"
        apart = [
            f"  {name}: {different} of {count} differ, by {most} at most"
            for name, (count, different, most) in self.counts.items()
            if different
        ]
        return "\n".join([f"{head}, the others at most {self.most} apart", *apart])


def compare(
    converted: GraphModule, mod: IRModule, plan: Plan, *inputs: Array, step_by_step: bool = False
) -> Agreement:
    """Run what `convert_pt2e` made in torch, and the plan in numpy (`trace_plan`), on one batch.

    Args:
        converted: the graph; mod: the float32 network; plan: made for it.
        inputs: one batch, by position.
        step_by_step: have torch compute every value from the plan's integers of those before it, so
            that what is apart early is not counted again later.

    Raises:
        ConfigError: the plan is for another network, or nothing is quantized in both.
    """
    import torch

    found = stripped(converted)
    at = placed(found.graph)
    module = prepared(at.module)
    names = dict(zip(plan.nodes, matched(plan, module).nodes, strict=True))
    ours = {
        at.nodes[names.get(name, name)].name: (name, integers)
        for name, traced in trace_plan(mod, plan, *inputs).items()
        if names.get(name, name) in at.nodes
        and (integers := _integers(traced, plan.values.get(name))) is not None
    }
    counts: dict[str, tuple[int, int, int]] = {}

    class Counting(torch.fx.Interpreter):
        def run_node(self, n: Any) -> Any:
            result = super().run_node(n)
            if found.quantizes.get(n.name) not in ours:
                return result
            name, integers = ours[found.quantizes[n.name]]
            apart = np.abs(result.numpy().astype(np.int64) - integers)
            counts[name] = (apart.size, int(np.count_nonzero(apart)), int(apart.max(initial=0)))
            return torch.from_numpy(integers).to(result.dtype) if step_by_step else result

    with torch.no_grad():
        Counting(converted).run(*(torch.from_numpy(np.asarray(a)) for a in inputs))
    if not counts:
        raise ConfigError("no value is integers both in the graph and by the plan")
    return Agreement(counts)


def _integers(traced: Traced, params: ValueParams | None) -> Array | None:
    """What a value is, or, of a float that integer operators read, what they make of it; None if
    neither is an integer."""
    if traced.kind == "integer":
        return np.asarray(traced.values).astype(np.int64)
    if traced.kind != "float" or params is None:
        return None
    return np.asarray(quantized(traced.values, params)).astype(np.int64)
