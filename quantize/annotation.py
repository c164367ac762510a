"""annotate: decides which operator calls get an integer form, and why the others stay float."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from compiler.ir.expr import (
    Atom,
    Binding,
    Call,
    Constant,
    IRModule,
    Var,
    tensor_type,
)
from compiler.op.opdef import OpDef, Quantized
from compiler.symbolic import Index
from compiler.transform.passes import PassContext
from quantize.config import QConfig
from quantize.graph import INSIDE, Graph, inner_calls, is_float32
from quantize.node_configs import excluded, node_configs
from quantize.overrides import Names
from quantize.params import ValueParams
from quantize.plan import NodePlan
from quantize.scaled.nodes import format_reason

ACTIVATIONS = ("nn.relu", "clip")
"""Operators that a producer's clipping can do."""
PRODUCT = "nn.matmul"
"""The operator that multiplies activations with activations."""
AVERAGES = ("mean", "nn.global_avg_pool2d", "nn.avg_pool2d")


@dataclass(frozen=True, eq=False)
class Annotation:
    """What would be quantized.

    Attributes:
        module: the prepared module that the names refer to.
        nodes: value name -> decision, for every operator call with a float32 result.
        observed: names of the values whose ranges calibration has to find, in program order.
        configs: node or observed value -> the scheme there, overrides applied.
    """

    module: IRModule
    nodes: Mapping[str, NodePlan]
    observed: tuple[str, ...]
    configs: Mapping[str, QConfig]


def prepared(mod: IRModule) -> IRModule:
    """`prepare(mod)` with every pass on, whatever the context: plans depend on its names."""
    from compiler.transform.preparation import prepare

    with PassContext(instruments=PassContext.current().instruments):
        return prepare(mod)


def annotate(mod: IRModule, config: QConfig | None = None) -> Annotation:
    """The decisions of `config` for a module.

    Weighted operators (conv2d, dense) with constant weights become integer, and products of two
    activations (matmul). What follows them does
    where it reads integers and an integer operator reads its result, so that no value is narrowed
    to 8 bits only to be widened again.

    Raises:
        ConfigError: a name or pattern of `config.skip` fits no node, one of `config.accumulate`
            decides no accumulator, or one of `config.overrides` decides nothing.
    """
    return annotated(prepared(mod), config or QConfig())


def annotated(module: IRModule, config: QConfig) -> Annotation:
    """`annotate` of a module that is prepared already, and is taken as it is."""
    graph = Graph(module.main)
    reasons = _reasons(graph, config)
    nodes: dict[str, NodePlan] = {}
    for b, call in graph.calls():
        reason = reasons.get(b.var, "")
        decision = "float" if reason else "format" if b.var in reasons else "integer"
        if not reason and _folds(graph, b, call, reasons):
            decision = "folded"
        name = getattr(call.op, "name", "function")
        nodes[b.var.name] = NodePlan(name, decision, reason, _macs(call, b.var), b.origins)
    observed = _observed(graph, nodes)
    weighted = [
        b.var.name
        for b, call in graph.calls()
        if nodes[b.var.name].decision == "format"
        or (is_weighted(call) and nodes[b.var.name].decision == "integer")
    ]
    values = {name: value_names(graph, nodes, name) for name in observed}
    configs = node_configs(config, names_of(graph), weighted, values)
    for name in weighted:
        ((_, accumulate),) = configs[name].accumulators
        nodes[name] = replace(nodes[name], accumulate=accumulate)
    for name, (b, call) in inner_calls(module.main).items():
        op = getattr(call.op, "name", "function")
        nodes[name] = NodePlan(op, "float", INSIDE, _macs(call, b.var), b.origins)
    return Annotation(module, nodes, observed, configs)


def names_of(graph: Graph) -> dict[str, Names]:
    """Node -> the names by which patterns can mean it."""
    return {b.var.name: (b.var.name, *b.origins) for b, _ in graph.calls()}


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


# ---- why a node stays float ----------------------------------------------------------------------
def _reasons(graph: Graph, config: QConfig) -> dict[Var, str]:
    """Variable -> reason, for the calls that stay float: the fewest that the rules allow; and an
    empty text for those that are in number formats.

    Skipping a node changes nothing for the others, but that an activation cannot be folded into it.
    """
    reasons: dict[Var, str] = {}
    names = names_of(graph)
    for b, call in graph.calls():
        chosen = config.for_node(names[b.var.name]) if config.rules else config
        reason = format_reason(call, chosen) if chosen.in_formats else form_reason(call)
        if reason or chosen.in_formats:
            reasons[b.var] = reason
    changed = True
    while changed:
        changed = False
        for b, call in graph.calls():
            if b.var not in reasons and (reason := _context_reason(graph, b, call, reasons)):
                reasons[b.var] = reason
                changed = True
    skipped = excluded(config, names_of(graph))
    for b, call in graph.calls():
        if b.var.name in skipped:
            reasons[b.var] = f"excluded by {skipped[b.var.name]}"
        elif b.var not in reasons and getattr(call.op, "name", "") in ACTIVATIONS:
            p = graph.producer(call.args[0])
            if p is not None and reasons.get(p.var):
                reasons[b.var] = f"it reads %{p.var.name}, which stays float"
    return reasons


def form_reason(call: Call) -> str:
    """Why a call has no integer form, as far as it alone tells; empty if it has one."""
    if not isinstance(call.op, OpDef) or call.op.quantized == Quantized.FLOAT:
        return "it has no integer form"
    op = call.op
    data = activations(call)
    if not data or not all(is_float32(a) for a in data if isinstance(a, Var)):
        return "its operands are not float32"
    if any(isinstance(a, Constant) for a in data):
        return "an operand is constant"
    if op.quantized == Quantized.WEIGHTED:
        return _weight_reason(call)
    known = ("add", "nn.pad", PRODUCT, *ACTIVATIONS, *AVERAGES)
    if op.quantized == Quantized.INTEGER and op.name not in known:
        return "it has no integer form"
    return _product_reason(call) if op.name == PRODUCT else ""


def _product_reason(call: Call) -> str:
    inner = tensor_type(call.args[0]).shape[-1]
    if not isinstance(inner, int):
        return "how many products it sums is known only when it runs"
    # Both operands are at most 255 away from their zero points.
    if inner * 255 * 255 > 2**31 - 1:
        return f"sums of {inner} products could overflow an int32 accumulator"
    return ""


def _weight_reason(call: Call) -> str:
    weight, *bias = call.args[1:]
    if not isinstance(weight, Constant) or not all(isinstance(c, Constant) for c in bias):
        return "its weights are not constant"
    arrays = [c.data for c in (weight, *bias) if isinstance(c, Constant)]
    if not all(np.isfinite(a).all() for a in arrays):
        return "its weights hold NaN or infinity"
    rows = np.abs(weight.data.reshape(weight.data.shape[0], -1).astype(np.float64))
    largest = np.maximum(rows.max(axis=1), np.finfo(np.float32).tiny)
    # Half of the accumulator's range is for the sum of products, the other half for the bias.
    if (255 * (127 * rows.sum(axis=1) / largest + rows.shape[1] / 2)).max() > 2**30:
        return f"sums of {rows.shape[1]} products could overflow an int32 accumulator"
    return ""


def _context_reason(graph: Graph, b: Binding, call: Call, reasons: Mapping[Var, str]) -> str:
    """Why a call that has an integer form is better left in float here; empty if it is not."""
    op = call.op
    assert isinstance(op, OpDef)
    if multiplies(call):
        return ""
    readers = graph.readers(b.var)
    inner = [r for r in readers if r is not None and _is_integer(r, reasons)]
    if not inner:
        return "no integer operator reads its result"
    for a in activations(call):
        p = graph.producer(a)
        given = p is not None and _is_integer(p, reasons)
        if not given and not (_moves(op) and len(inner) == len(readers)):
            return f"it reads {a!r}, which is not an integer"
    return ""


def _moves(op: OpDef) -> bool:
    """Whether an operator only moves values, so that it may as well move integers."""
    return (op.quantized == Quantized.SAME and op.name != "concatenate") or op.name == "nn.pad"


def _is_integer(b: Binding, reasons: Mapping[Var, str]) -> bool:
    return isinstance(b.value, Call) and is_float32(b.var) and b.var not in reasons


def activations(call: Call) -> Sequence[Atom]:
    """The operands of a call that are quantized as activations."""
    name = getattr(call.op, "name", "")
    return call.args if name in ("add", "concatenate", PRODUCT) else call.args[:1]


def _folds(graph: Graph, b: Binding, call: Call, reasons: Mapping[Var, str]) -> bool:
    """Whether the producer's own clipping does this activation."""
    if getattr(call.op, "name", "") not in ACTIVATIONS:
        return False
    (x,) = call.args
    p = graph.at.get(x) if isinstance(x, Var) else None
    if p is None or not isinstance(p.value, Call) or len(graph.uses[p.var]) != 1:
        return False
    if not _is_integer(p, reasons):
        return False
    return has_clipping(p.value) or _folds(graph, p, p.value, reasons)


def has_clipping(call: Call) -> bool:
    """Whether the integer form of a call ends with clipping, which can do an activation."""
    return getattr(call.op, "name", "") in ("add", *AVERAGES) or multiplies(call)


# ---- which values need parameters ----------------------------------------------------------------
def is_weighted(call: Call) -> bool:
    """Whether a call has weights, an accumulator and a requantize (conv2d, dense)."""
    return isinstance(call.op, OpDef) and call.op.quantized == Quantized.WEIGHTED


def multiplies(call: Call) -> bool:
    """Whether a call sums products in an int32 accumulator, which is narrowed only where integers
    are wanted."""
    return is_weighted(call) or getattr(call.op, "name", "") == PRODUCT


def product_reach(call: Call, a: ValueParams, b: ValueParams) -> float:
    """The largest magnitude of a product of two activations."""
    return product_terms(call) * a.reach * b.reach


def product_terms(call: Call) -> int:
    """How many products a product of two activations sums."""
    inner = tensor_type(call.args[0]).shape[-1]
    assert isinstance(inner, int), "form_reason refuses others"
    return inner


def has_own_params(call: Call) -> bool:
    """Whether a call's integer result has parameters of its own, not those of its operand."""
    return has_clipping(call) or getattr(call.op, "name", "") == "concatenate"


def source(graph: Graph, nodes: Mapping[str, NodePlan], a: Atom) -> Var:
    """The value whose parameters the integers of `a` have: `a`, or what it was moved from."""
    assert isinstance(a, Var)
    p = graph.producer(a)
    if p is None or not isinstance(p.value, Call):
        return a
    node = nodes.get(p.var.name)
    if node is None or node.decision != "integer" or has_own_params(p.value):
        return a
    return source(graph, nodes, activations(p.value)[0])


def _observed(graph: Graph, nodes: Mapping[str, NodePlan]) -> tuple[str, ...]:
    wanted: set[str] = set()
    for b, call in graph.calls():
        node = nodes[b.var.name]
        if node.decision == "integer":
            wanted |= {source(graph, nodes, a).name for a in activations(call)}
            end = chain_end(graph, nodes, b) if has_clipping(call) else b
            if end is not b or (has_own_params(call) and not multiplies(call)):
                wanted.add(end.var.name)
    order = [*(p.name for p in graph.f.params), *(b.var.name for b in graph.f.bindings)]
    return tuple(n for n in order if n in wanted)


def chain_end(graph: Graph, nodes: Mapping[str, NodePlan], b: Binding) -> Binding:
    """The last of the activations that are folded into `b`; `b` itself if there is none."""
    readers = graph.uses.get(b.var, [])
    reader = readers[0] if len(readers) == 1 else None
    node = nodes.get(reader.var.name) if reader is not None else None
    if reader is None or node is None or node.decision != "folded":
        return b
    return chain_end(graph, nodes, reader)
