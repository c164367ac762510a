"""What a network costs by the widths that a plan gives its numbers, of which the realized module
shows only the types that hold them: four bits are held by int8, numbers of a format by float32."""

from __future__ import annotations

import math
from dataclasses import dataclass

from compiler.ir.expr import Atom, Constant, IRModule, Var, tensor_type
from quantize.calls import source
from quantize.graph import Graph
from quantize.plan import Plan
from quantize.scaled.nodes import operands
from quantize.scaled.storage import format_bits, operand_bits


@dataclass(frozen=True)
class PlanCost:
    """What follows from the widths of a plan.

    Attributes:
        bit_operations: every multiply-accumulate of the plan's nodes (symbolic dimensions taken as
            1) times the widths of its two operands; those of a node in float are of 32 bits.
        saved_bytes: what the weights take less than the constants of the realized module.
    """

    bit_operations: int
    saved_bytes: int


def plan_cost(module: IRModule, plan: Plan) -> PlanCost:
    """The cost of a plan.

    Args:
        module: the prepared module that the plan's names refer to.
    """
    operations, saved = 0, 0.0
    graph = Graph(module.main)
    calls = {b.var.name: call for b, call in graph.calls()}
    for name, node in plan.nodes.items():
        if not node.macs:
            continue
        if name not in calls:  # inside of a branch or a loop, where all is float32
            operations += node.macs * 32 * 32
            continue
        factors = operands(calls[name])
        operations += node.macs * math.prod(
            _bits(graph, plan, name, k, a) for k, a in enumerate(factors)
        )
        saved += sum(
            _saved(plan, name, k, a.data.shape)
            for k, a in enumerate(factors)
            if isinstance(a, Constant)
        )
    return PlanCost(operations, math.floor(saved))


def _bits(graph: Graph, plan: Plan, node: str, k: int, a: Atom) -> int:
    """Width of the numbers that operand `k` of a node that multiplies is made of."""
    if node in plan.formats:
        return format_bits(plan.formats[node][k].format)
    if k == 1 and node in plan.weights:
        return plan.weights[node].bits
    if plan.nodes[node].decision == "integer" and isinstance(a, Var):
        return plan.values[source(graph, plan.nodes, a).name].bits
    return tensor_type(a).dtype.bits


def _saved(plan: Plan, node: str, k: int, shape: tuple[int, ...]) -> float:
    """Bytes that a constant operand takes less than the constant of the realized module."""
    size = math.prod(shape)
    if node in plan.formats and plan.config.compute == "storage":
        return 4 * size - operand_bits(shape, plan.formats[node][k]) / 8
    if k == 1 and node in plan.weights:
        params = plan.weights[node]
        return size * ((16 if params.dtype == "int16" else 8) - params.bits) / 8
    return 0.0
