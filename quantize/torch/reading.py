"""The plan of a graph that torch converted, by our quantizer or by another one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from compiler.errors import UnsupportedError
from compiler.frontend.torch.places import placed
from compiler.ir.expr import Call, Constant, IRModule, Var
from compiler.transform.preparation import PREPARE_VERSION
from compiler.types.dtypes import Array
from quantize.annotation.annotate import Annotation, annotated, prepared
from quantize.annotation.graph import Graph
from quantize.annotation.op_facts import chain_end, data_of, is_weighted, source
from quantize.config.qconfig import QConfig
from quantize.plan.call_facts import Form, form
from quantize.plan.fingerprint import fingerprint_of
from quantize.plan.params import ValueParams, WeightParams
from quantize.plan.plan import Plan
from quantize.torch.matching import matched
from quantize.torch.sites import CONFIG, weight_site
from quantize.torch.stripping import Held, Stripped, by_value, stripped

if TYPE_CHECKING:
    from torch.fx import GraphModule, Node


def float_module(converted: GraphModule) -> IRModule:
    """The network that a converted graph computes without quantization, in float32: its weights and
    biases are those that its integers stand for.

    Raises:
        ModelError: it is not what `convert_pt2e` made.
        UnsupportedError: operators that we do not import, or scales that are found at run time.
    """
    return placed(stripped(converted).graph).module


def plan_of(
    converted: GraphModule, mod: IRModule | None = None, config: QConfig | None = None
) -> Plan:
    """The plan by which `realize` computes the integers of a converted graph.

    What a plan decides and the graph does not say (which functions become tables, which arithmetic
    scales accumulators) is as in `config`. Nodes of which the graph left something in float stay
    float.

    Args:
        converted: what `convert_pt2e` made, by DtypelabQuantizer or by another quantizer.
        mod: the float32 network that the plan is for, as it was before; without it, it is for
            `float_module(converted)`.
        config: the scheme; without it the one that DtypelabQuantizer had, or the default.

    Raises:
        ModelError: it is not what `convert_pt2e` made.
        ConfigError: `mod` is another network.
        UnsupportedError: as `float_module`, or it quantizes what a plan leaves in float.
    """
    found = stripped(converted)
    config = config or converted.meta.get(CONFIG) or QConfig()
    at = placed(found.graph)
    module = prepared(at.module)
    values = _where_made(Graph(module.main), by_value(at.nodes, found.values))
    held = _weights(module, at.nodes, found)
    annotation, config = _decided(module, config, values, held)
    nodes = annotation.nodes
    kept = _kept(annotation, values)
    weights = {
        b.var.name: held[b.var.name][0]
        for b, call in Graph(module.main).calls()
        if nodes[b.var.name].decision == "integer" and is_weighted(call)
    }
    plan = Plan(PREPARE_VERSION, fingerprint_of(module), config, nodes, kept, weights)
    return plan if mod is None else _for_module(plan, module, held, prepared(mod))


Weights = tuple[WeightParams, Array, Array | None]
"""Parameters, the integers counted from that of 0, and those of the bias if it has any."""


def _weights(module: IRModule, nodes: Mapping[str, Node], found: Stripped) -> dict[str, Weights]:
    """Node -> its weights, of those that have integers."""
    out: dict[str, Weights] = {}
    for b, call in Graph(module.main).calls():
        site = weight_site(b.var.name, nodes.get(b.var.name)) if is_weighted(call) else None
        held = found.held.get(site.weight.name) if site is not None else None
        if site is None or held is None:
            continue
        if len(held.scales) > 1 and held.axis != (held.q.ndim - 1 if site.turned else 0):
            raise UnsupportedError(f"the weights of {b.var.name!r} have scales along an input axis")
        params = held.weights(b.var.name)
        q = held.q.astype(np.int64).T if site.turned else held.q.astype(np.int64)
        zeros = np.asarray(params.zero_points or (0,)).reshape(-1, *[1] * (q.ndim - 1))
        bias = found.held.get(site.bias.name) if site.bias is not None else None
        weight = call.args[1]
        assert isinstance(weight, Constant)
        shaped = (q - zeros).reshape(weight.data.shape)
        out[b.var.name] = params, shaped, _bias(bias)
    return out


def _bias(held: Held | None) -> Array | None:
    return None if held is None else held.q.astype(np.int64)


def _where_made(graph: Graph, values: Mapping[str, ValueParams]) -> dict[str, ValueParams]:
    """Parameters of values, and of those that they alone were moved from, which may as well be
    quantized before as after."""
    out = dict(values)
    for name in values:
        p = graph.producer(graph.named[name])
        while p is not None and isinstance(p.value, Call) and form(p.value) == Form.MOVE:
            x = p.value.args[0]
            if not isinstance(x, Var) or len(graph.uses[x]) != 1 or x.name in out:
                break
            out[x.name] = values[name]
            p = graph.producer(x)
    return out


def _decided(
    module: IRModule, config: QConfig, values: Mapping[str, Any], weights: Mapping[str, Any]
) -> tuple[Annotation, QConfig]:
    """The decisions, with all nodes left in float of which something is not in integers."""
    graph, skipped = Graph(module.main), list(config.skip)
    while True:
        tried = replace(config, skip=tuple(skipped), overrides=())
        annotation = annotated(module, tried)
        nodes = annotation.nodes
        integer = [
            (b, call) for b, call in graph.calls() if nodes[b.var.name].decision == "integer"
        ]
        reading = [
            b.var.name
            for b, call in integer
            if (is_weighted(call) and b.var.name not in weights)
            or any(
                source(graph, nodes, a).name not in values
                for a in data_of(graph, b, nodes[b.var.name])
            )
        ]
        # Only then: a result that nobody reads as integers any more may be a float.
        made = [
            b.var.name
            for b, _ in integer
            if chain_end(graph, nodes, b).var.name in set(annotation.observed) - set(values)
        ]
        if not reading and not made:
            return annotation, tried
        skipped += reading or made


def _kept(annotation: Annotation, values: Mapping[str, ValueParams]) -> dict[str, ValueParams]:
    """The parameters that a plan has: of what is observed, and of results that are narrowed though
    no integer operator reads them.

    Raises:
        UnsupportedError: of others.
    """
    graph, nodes = Graph(annotation.module.main), annotation.nodes
    kept = {k: values[k] for k in annotation.observed if k in values}
    narrowed = {
        chain_end(graph, nodes, b).var.name
        for b, call in graph.calls()
        if nodes[b.var.name].decision == "integer"
    }
    for name, params in values.items():
        if name in kept:
            continue
        v = graph.named[name]
        moved = source(graph, nodes, v).name
        if moved != name and kept.get(moved) == params:
            continue
        if name not in narrowed and v not in graph.f.params:
            why = nodes[name].reason if name in nodes else "it is inside of a node"
            raise UnsupportedError(f"{name!r} is quantized, but a plan leaves it in float: {why}")
        kept[name] = params
    return kept


def _for_module(plan: Plan, module: IRModule, held: Mapping[str, Weights], mod: IRModule) -> Plan:
    """The plan for the network as it was, whose weights and biases are not the integers yet."""
    ours, theirs = Graph(module.main), Graph(mod.main)
    renamed = matched(plan, mod)
    names = dict(zip(plan.nodes, renamed.nodes, strict=True))
    calls = {b.var.name: call for b, call in theirs.calls()}
    weights = dict(renamed.weights)
    for old in plan.weights:
        name = names[old]
        params, integers, q = held[old]
        weight, *rest = (a.data for a in calls[name].args[1:] if isinstance(a, Constant))
        bias = rest[0] if rest else None
        if (params.quantized(weight) != integers).any():
            params = params.rounded_to(weight, integers)
        if q is not None:
            data = data_params(ours, plan, old)
            plain = np.zeros(len(weight), np.float32) if bias is None else bias
            if (params.bias(plain, data) != q).any():
                real = q * params.accumulator_scale(data) - plain
                params = replace(params, shift=tuple(map(float, real.astype(np.float32))))
        weights[name] = params
    return replace(renamed, weights=weights)


def data_params(graph: Graph, plan: Plan, name: str) -> ValueParams:
    """Parameters of what a node with weights reads."""
    (x,) = data_of(graph, graph.at[graph.named[name]], plan.nodes[name])
    return plan.values[source(graph, plan.nodes, x).name]
