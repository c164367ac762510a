"""Whether a plan was made for a module, and decides what can be done with it."""

from __future__ import annotations

import math

import numpy as np

from compiler.errors import ConfigError, unknown
from compiler.ir.expr import Call, Constant, IRModule
from compiler.transform.preparation import PREPARE_VERSION
from compiler.types.dtypes import Array
from quantize.annotation.functions import members
from quantize.annotation.graph import INSIDE, Graph, inner_calls
from quantize.annotation.op_facts import is_weighted, multiplies
from quantize.annotation.reasons import OF_SIZES, form_reason, weight_only_reason
from quantize.plan.call_facts import clips
from quantize.plan.fingerprint import has_fingerprint, may_vanish
from quantize.plan.node_plan import SEQUENTIAL, NodePlan
from quantize.plan.plan import Plan
from quantize.realization.formats import check_node


def check_model(module: IRModule, graph: Graph, plan: Plan) -> None:
    """Raise ConfigError unless `plan` was made for this module, which `graph` has rescaled."""
    if plan.prepare_version != PREPARE_VERSION:
        raise ConfigError(
            f"the plan was made with version {plan.prepare_version} of the preparing passes, not "
            f"{PREPARE_VERSION}: calibrate again"
        )
    inner = {name: call for name, (_, call) in inner_calls(module.main).items()}
    calls = inner | {b.var.name: call for b, call in graph.calls()}
    other = "the plan was made for another model"
    for name, node in plan.nodes.items():
        if name not in calls:
            if may_vanish(node.op):  # of sizes that the plan's model leaves open, for some
                continue
            if node.reason == OF_SIZES:
                continue
            raise ConfigError(f"{other}: {unknown('node', name, calls)}")
        call = calls[name]
        op = getattr(call.op, "name", "function")
        if op != node.op:
            raise ConfigError(f"{other}: node {name!r} is {op}, not {node.op}")
        if node.decision == "folded" and not clips(call):
            raise ConfigError(f"node {name!r} ({op}) cannot be folded: it is not an activation")
        if node.decision != "float" and name in inner:
            raise ConfigError(f"node {name!r} ({op}) cannot be {node.decision}: {INSIDE}")
        if node.decision == "format":
            check_node(name, call, plan)
        elif node.accumulate != SEQUENTIAL and not (
            node.decision == "integer" and multiplies(call)
        ):
            raise ConfigError(
                f"node {name!r} ({op}, {node.decision}) has no accumulator: leave out its "
                f"accumulate={node.accumulate!r}"
            )
        if node.decision == "weights":
            if reason := weight_only_reason(call):
                raise ConfigError(f"node {name!r} ({op}) cannot have integer weights: {reason}")
            _check_weights(name, call, plan)
        if node.decision == "integer" and node.function_of:
            _check_function(name, node, graph)
        elif node.decision == "integer":
            if reason := form_reason(call):
                raise ConfigError(f"node {name!r} ({op}) cannot be integer: {reason}")
            if is_weighted(call):
                _check_weights(name, call, plan)
    missing = [n for n in calls if n not in plan.nodes]
    if missing:
        raise ConfigError(f"{other}: it lacks the node {missing[0]!r}")
    if not has_fingerprint(module, plan.model):
        raise ConfigError(
            f"{other} with the same nodes: the weights or attributes differ; calibrate again"
        )


def check_sums(name: str, weight: Array, bias: Array | None) -> None:
    """Raise ConfigError unless sums of products of bytes with these integers fit an int32."""
    wider = weight.astype(np.int16 if weight.dtype == np.int8 else np.int64)
    rows = np.abs(wider).reshape(len(weight), -1).sum(axis=1, dtype=np.int64)
    most = 255 * rows + (0 if bias is None else np.abs(bias.astype(np.int64)))
    if most.max() >= 2**31:
        raise ConfigError(
            f"the weights of {name!r} fill so much of their range that sums of its products could "
            "overflow an int32 accumulator: give them fewer bits, or skip the node"
        )


def _check_function(name: str, node: NodePlan, graph: Graph) -> None:
    if node.function_of not in graph.named:
        raise ConfigError(
            f"node {name!r}: {unknown('value', node.function_of, graph.named)} that it could be a "
            "function of"
        )
    members(graph, graph.named[name], graph.named[node.function_of])


def _check_weights(name: str, call: Call, plan: Plan) -> None:
    params = plan.weights.get(name)
    if params is None:
        raise ConfigError(f"the plan has no scales for the weights of the integer node {name!r}")
    weight = call.args[1]
    assert isinstance(weight, Constant), "form_reason refuses others"
    channels, *inputs = weight.data.shape
    wanted = {1, channels}
    if params.offsets and plan.nodes[name].decision == "integer":
        raise ConfigError(f"node {name!r} is integer: its weights cannot have offsets")
    if params.group and plan.nodes[name].decision == "integer":
        raise ConfigError(f"node {name!r} is integer: its scales cannot be those of groups")
    if params.group:
        wanted = {channels * -(-math.prod(inputs) // params.group)}
    if len(params.scales) not in wanted:
        raise ConfigError(
            f"node {name!r} has {channels} output channels, but the plan gives its weights "
            f"{len(params.scales)} scales"
        )
    if len(params.shift) not in (0, channels):
        raise ConfigError(
            f"node {name!r} has {channels} output channels, but the plan shifts the biases of "
            f"{len(params.shift)}"
        )
