"""annotate: decides which operator calls get an integer form, and why the others stay float."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from weakref import WeakSet

from compiler.ir.expr import Binding, Call, IRModule, Var, tensor_type
from compiler.ir.outside import refuse_outside
from compiler.op.opdef import OpDef
from compiler.passes.manager import PassContext
from compiler.symbolic import Index
from quantize.annotation.graph import INSIDE, Graph, inner_calls
from quantize.annotation.op_facts import (
    chain_end,
    clips_itself,
    data_of,
    has_clipping,
    has_own_params,
    is_weighted,
    multiplies,
    source,
)
from quantize.annotation.reasons import Reasons, names_of
from quantize.annotation.sites import sites
from quantize.config.checks import CERTIFIED
from quantize.config.node_configs import node_configs, product_accumulate
from quantize.config.overrides import Names
from quantize.config.qconfig import QConfig
from quantize.plan.call_facts import Form, clips, form
from quantize.plan.node_plan import SEQUENTIAL, NodePlan


@dataclass(frozen=True, eq=False)
class Annotation:
    """What would be quantized.

    Attributes:
        module: the prepared module that the names refer to.
        nodes: value name -> decision, for every operator call with a float32 result.
        observed: names of the values whose ranges calibration has to find, in program order.
        configs: node or observed value -> the scheme there, overrides applied.
        certified: names of the nodes whose accumulators are to be proven.
    """

    module: IRModule
    nodes: Mapping[str, NodePlan]
    observed: tuple[str, ...]
    configs: Mapping[str, QConfig]
    certified: frozenset[str] = frozenset()


_prepared: WeakSet[IRModule] = WeakSet()


def prepared(mod: IRModule) -> IRModule:
    """`prepare(mod)` with every pass on, whatever the context: plans depend on its names. What it
    returned once is prepared, and returned as it is.

    Raises:
        UnsupportedError: engines compute regions of it.
    """
    from compiler.transform.preparation import prepare

    if mod in _prepared:
        return mod
    refuse_outside(mod, "quantized")
    with PassContext(instruments=PassContext.current().instruments):
        out = prepare(mod)
    _prepared.add(out)
    return out


def annotate(mod: IRModule, config: QConfig | None = None) -> Annotation:
    """The decisions of `config` for a module.

    Weighted operators (conv2d, dense) with constant weights become integer, and products of two
    activations (matmul). What follows them does where it reads integers and an integer operator
    reads its result, so that no value is narrowed to 8 bits only to be widened again. An
    elementwise function of one value, however many operators it is made of, becomes one table.

    Raises:
        ConfigError: a name or pattern of `config.skip` fits no node, one of `config.accumulate`
            decides no accumulator, or one of `config.overrides` decides nothing.
    """
    return annotated(prepared(mod), config or QConfig())


def annotated(module: IRModule, config: QConfig) -> Annotation:
    """`annotate` of a module that is prepared already, and is taken as it is."""
    graph = Graph(module.main)
    reasons = Reasons(graph, config)
    nodes = {b.var.name: _node(graph, b, call, reasons) for b, call in graph.calls()}
    observed = _observed(graph, nodes)
    weighted = [
        b.var.name
        for b, call in graph.calls()
        if nodes[b.var.name].decision in ("format", "weights")
        or (is_weighted(call) and nodes[b.var.name].decision == "integer")
    ]
    values = {name: value_names(graph, nodes, name) for name in observed}
    # What is said of activations holds for the factors of a node that is in formats.
    values |= {n: names_of(graph)[n] for n in weighted if nodes[n].decision == "format"}
    names = names_of(graph)
    products = [
        b.var.name
        for b, call in graph.calls()
        if form(call) == Form.MATMUL and nodes[b.var.name].decision == "integer"
    ]
    configs = node_configs(config, names, weighted, values, products)
    roles = sites(graph) if config.in_formats else {}
    certified: set[str] = set()
    for name in weighted:
        configs[name] = configs[name].at(roles[name][-1]) if name in roles else configs[name]
        ((_, accumulate),) = configs[name].accumulators
        own = configs[name].compute if configs[name].compute != config.compute else ""
        if accumulate == CERTIFIED:  # once all numbers are known
            certified.add(name)
            accumulate = SEQUENTIAL
        nodes[name] = replace(nodes[name], accumulate=accumulate, compute=own)
    for name in products:
        accumulate = product_accumulate(config, names[name], configs[name])
        if accumulate == CERTIFIED:
            certified.add(name)
            accumulate = SEQUENTIAL
        nodes[name] = replace(nodes[name], accumulate=accumulate)
    for name, (b, call) in inner_calls(module.main).items():
        op = getattr(call.op, "name", "function")
        nodes[name] = NodePlan(op, "float", INSIDE, _macs(call, b.var), b.origins)
    return Annotation(module, nodes, observed, configs, frozenset(certified))


def _node(graph: Graph, b: Binding, call: Call, reasons: Reasons) -> NodePlan:
    """What becomes of one call."""
    name, reason = getattr(call.op, "name", "function"), reasons.of.get(b.var, "")
    root = None if b.var in reasons.of else reasons.functions.get(b.var)
    decision = "float" if reason else "integer"
    if not reason and b.var in reasons.of:
        decision = "weights" if b.var in reasons.weights else "format"
    if root is not None and reasons.only_inside(b.var):
        decision, root = "tabled", None
    elif not reason and root is None and _folds(graph, b, call, reasons):
        decision = "folded"
    node = NodePlan(name, decision, reason, _macs(call, b.var), b.origins)
    return node if root is None else replace(node, function_of=root.name)


def value_names(graph: Graph, nodes: Mapping[str, NodePlan], value: str) -> Names:
    """The names by which patterns can mean a value: of all the nodes that were folded into one."""
    made = {b.var.name: b for b, _ in graph.calls()}
    names: list[str] = [value]
    b = made.get(value)
    while b is not None:
        names += [b.var.name, *b.origins]
        assert isinstance(b.value, Call)
        folded = nodes[b.var.name].decision == "folded"
        b = graph.producer(b.value.args[0]) if folded else None
    return tuple(dict.fromkeys(names))


def _macs(call: Call, result: Var) -> int:
    if not isinstance(call.op, OpDef) or call.op.macs is None:
        return 0
    n = call.op.macs(call.attrs, [tensor_type(a) for a in call.args], tensor_type(result))
    return int(n.value(dict.fromkeys(n.vars(), 1)) if isinstance(n, Index) else n)


def _folds(graph: Graph, b: Binding, call: Call, reasons: Reasons) -> bool:
    """Whether the producer's own clipping does this activation."""
    if clips(call) is None:
        return False
    (x,) = call.args
    p = graph.at.get(x) if isinstance(x, Var) else None
    if p is None or not isinstance(p.value, Call) or len(graph.uses[p.var]) != 1:
        return False
    if not reasons.is_integer(p) or p.var in reasons.functions:
        return False
    return has_clipping(p.value) or _folds(graph, p, p.value, reasons)


def _observed(graph: Graph, nodes: Mapping[str, NodePlan]) -> tuple[str, ...]:
    wanted: set[str] = set()
    for b, call in graph.calls():
        node = nodes[b.var.name]
        if node.decision == "integer":
            wanted |= {source(graph, nodes, a).name for a in data_of(graph, b, node)}
            end = chain_end(graph, nodes, b) if clips_itself(b, node) else b
            if end is not b or (has_own_params(call, node) and not multiplies(call)):
                wanted.add(end.var.name)
    order = [*(p.name for p in graph.f.params), *(b.var.name for b in graph.f.bindings)]
    return tuple(n for n in order if n in wanted)
