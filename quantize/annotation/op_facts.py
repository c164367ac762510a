"""Facts about the calls of a graph: which operands are activations, and where parameters come
from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from compiler.ir.expr import Atom, Binding, Call, Constant, Var, tensor_type
from compiler.op.opdef import OpDef
from quantize.annotation.graph import Graph
from quantize.annotation.normalization import layer_norm_reach
from quantize.plan.call_facts import ARITHMETIC, Form, form, form_of
from quantize.plan.node_plan import NodePlan
from quantize.plan.params import ValueParams


# ---- calls ---------------------------------------------------------------------------------------
def activations(call: Call) -> Sequence[Atom]:
    """The operands of a call that are quantized as activations."""
    if form(call) in ARITHMETIC:
        return [a for a in call.args if isinstance(a, Var)]
    return call.args if form(call) in (Form.JOIN, Form.MATMUL) else call.args[:1]


def is_weighted(call: Call) -> bool:
    """Whether a call has weights, an accumulator and a requantize (conv2d, dense)."""
    return form(call) == Form.WEIGHTED


def multiplies(call: Call) -> bool:
    """Whether a call sums products in an int32 accumulator, which is narrowed only where integers
    are wanted."""
    return form(call) in (Form.WEIGHTED, Form.MATMUL)


def moves(op: OpDef) -> bool:
    """Whether an operator only moves values, so that it may as well move integers."""
    return form_of(op) in (Form.MOVE, Form.PAD)


def has_clipping(call: Call) -> bool:
    """Whether the integer form of a call ends with clipping, which can do an activation."""
    return form(call) in (*ARITHMETIC, Form.AVERAGE) or multiplies(call)


def has_own_params(call: Call, node: NodePlan) -> bool:
    """Whether a call's integer result has parameters of its own, not those of its operand."""
    own = form(call) in (Form.JOIN, Form.SOFTMAX, Form.LAYER_NORM)
    return bool(node.function_of) or has_clipping(call) or own


def reach_of(call: Call, data: Sequence[ValueParams]) -> float:
    """The largest magnitude of the result of a call without weights; of a layer norm, whatever the
    data."""
    if form(call) == Form.LAYER_NORM:
        return layer_norm_reach(call)
    reaches = [d.reach for d in data]
    reaches += [float(np.abs(a.data).max()) for a in call.args if isinstance(a, Constant)]
    if form(call) == Form.MATMUL:
        return product_terms(call) * reaches[0] * reaches[1]
    if form(call) == Form.MULTIPLY:
        return reaches[0] * reaches[-1]
    return sum(reaches) if form(call) in ARITHMETIC else max(reaches[: len(data)])


MOST_PRODUCTS = (2**31 - 1) // (255 * 255)
"""Of two activations of 8 bits, each at most 255 away from its zero point, that an int32
accumulator holds."""


def product_terms(call: Call) -> int:
    """How many products a product of two activations sums; of an open number the most there may be,
    which programs assume."""
    inner = tensor_type(call.args[0]).shape[-1]
    return inner if isinstance(inner, int) else MOST_PRODUCTS


def data_of(graph: Graph, b: Binding, node: NodePlan) -> Sequence[Var]:
    """The values that an integer node reads as integers."""
    assert isinstance(b.value, Call)
    if node.function_of:
        return (graph.named[node.function_of],)
    return [a for a in activations(b.value) if isinstance(a, Var)]


# ---- values --------------------------------------------------------------------------------------
def source(graph: Graph, nodes: Mapping[str, NodePlan], a: Atom) -> Var:
    """The value whose parameters the integers of `a` have: `a`, or what it was moved from."""
    assert isinstance(a, Var)
    p = graph.producer(a)
    if p is None or not isinstance(p.value, Call):
        return a
    node = nodes.get(p.var.name)
    if node is None or node.decision != "integer" or has_own_params(p.value, node):
        return a
    return source(graph, nodes, activations(p.value)[0])


def chain_end(graph: Graph, nodes: Mapping[str, NodePlan], b: Binding) -> Binding:
    """The last of the activations that are folded into `b`; `b` itself if there is none."""
    readers = graph.uses.get(b.var, [])
    reader = readers[0] if len(readers) == 1 else None
    node = nodes.get(reader.var.name) if reader is not None else None
    if reader is None or node is None or node.decision != "folded":
        return b
    return chain_end(graph, nodes, reader)


def clips_itself(b: Binding, node: NodePlan) -> bool:
    """Whether the activations that follow an integer node may be folded into it."""
    return isinstance(b.value, Call) and has_clipping(b.value) and not node.function_of
