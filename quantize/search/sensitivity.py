"""How much each node's quantization alone moves the results of a network."""

from __future__ import annotations

from dataclasses import dataclass, replace

from compiler.errors import InputError
from compiler.ir.expr import Binding, Call, Constant, IRModule, Var
from quantize.annotation.graph import Graph
from quantize.annotation.op_facts import activations, is_weighted, multiplies, source
from quantize.calibration.running import Batches, all_results, comparable
from quantize.plan.adapted import adapted
from quantize.plan.node_plan import NodePlan
from quantize.plan.plan import Plan
from quantize.search.energies import decibels, energies

MULTIPLYING = ("integer", "weights", "format")
"""Decisions by which what a node multiplies is rounded."""


@dataclass(frozen=True)
class Sensitivity:
    """What a node's quantization does by itself, everything else in float32.

    Attributes:
        node: name of its value in the prepared module.
        noise: energy of the error of the network's results over the energy of the results.
        macs: its multiply-accumulates, symbolic dimensions counted as 1.
        weights: how many weights it has.
    """

    node: str
    noise: float
    macs: int
    weights: int

    @property
    def sqnr_db(self) -> float:
        """The same as a signal to noise ratio in decibels; inf without error."""
        return decibels(1.0, self.noise)


def sensitivities(
    module: IRModule, plan: Plan, batches: Batches, threads: int = 1
) -> tuple[Sensitivity, ...]:
    """One for every node in integers or formats that multiplies (convolutions, dense layers, matrix
    products), in program order. What a node does is to round what it reads, and its weights.

    Args:
        module: the prepared module that the plan's names refer to.
        plan: made without bias correction, whose shifts make up for more than one node.
        batches: inputs by name.
        threads: threads that the networks run on; the figures do not depend on it.

    Raises:
        InputError: results whose sizes the data decide have no size that can be compared.
    """
    from quantize.realization.simulate import simulate

    graph = Graph(adapted(module, plan).main)
    wanted = all_results(module, batches, threads)
    found = []
    for b, call in graph.calls():
        node = plan.nodes[b.var.name]
        if node.decision not in MULTIPLYING or not multiplies(call):
            continue
        alone = simulate(module, only(graph, plan, b).sequential)
        got, reference = comparable(all_results(alone, batches, threads), wanted)
        if not reference.size:
            raise InputError(
                f"node {b.var.name}: with it in integers, no result of the network has the size "
                "that it has in float, for any of the data: there is nothing to compare"
            )
        signal, noise = energies(got, reference)
        weight = call.args[1]
        size = weight.data.size if is_weighted(call) and isinstance(weight, Constant) else 0
        found.append(Sensitivity(b.var.name, noise / (signal or 1.0), node.macs, size))
    return tuple(found)


def only(graph: Graph, plan: Plan, b: Binding) -> Plan:
    """The plan that quantizes what the node `b` reads and its weights, and nothing else."""
    assert isinstance(b.value, Call)
    kept = plan.nodes[b.var.name]
    nodes: dict[str, NodePlan] = {
        name: n if n.decision == "float" else replace(n, decision="float", reason="left out")
        for name, n in plan.sequential.nodes.items()
    }
    nodes[b.var.name] = replace(kept, accumulate=plan.sequential.nodes[b.var.name].accumulate)
    values = {}
    for a in activations(b.value) if kept.decision == "integer" else ():
        assert isinstance(a, Var)
        values[a.name] = plan.values[source(graph, plan.nodes, a).name]
    return replace(plan, nodes=nodes, values=values)
