"""Which operands are weights, keys, values and probabilities of attention, embeddings, or what
makes logits: found by structure.

A product whose first factor is a softmax, up to operators that move or scale it, takes the averages
of values, its second factor. What the softmax is of, up to scaling and masks, is a product of
queries with keys: wherever these come from (a concatenated cache, repeated heads, rotations).
Embeddings are rows of a constant table, looked up at what the network is given (not at positions
that it counts itself). Logits are the first result, up to a bias and its shape.
"""

from __future__ import annotations

from collections.abc import Callable

from compiler.ir.expr import Atom, Binding, Call, Var
from compiler.op.facts import IntegerForm, Moves
from compiler.op.opdef import Fusion, OpDef
from quantize.annotation.graph import Graph
from quantize.plan.call_facts import Form, contraction_of, form, is_lookup

Roles = tuple[str, ...]
"""The sites of the two factors of a product, or of the one operand of something else."""


def sites(graph: Graph) -> dict[str, Roles]:
    """Name of a result -> the sites of the operands, for all products, lookups, softmax and
    normalizations in the function."""
    found: dict[str, Roles] = {}
    head = _head(graph)
    for b, call in graph.calls():
        axes = contraction_of(call)
        if axes is not None:
            weight = "logit" if b is head else "weight"
            found[b.var.name] = ("activation", weight if axes.by_rows else "activation")
        elif _is_softmax(call):
            found[b.var.name] = ("softmax",)
        elif form(call) == Form.LAYER_NORM:
            found[b.var.name] = ("norm",)
        elif is_lookup(call) and _is_given(graph, call.args[1]):
            found[b.var.name] = ("embedding",)
    for b, call in graph.calls():
        axes = contraction_of(call)
        if axes is None or axes.by_rows:
            continue
        for k in (0, 1):
            soft = _behind(graph, call.args[k], _is_softmax)
            if soft is None:
                continue
            found[b.var.name] = ("probability", "value") if k == 0 else ("value", "probability")
            assert isinstance(soft.value, Call)
            scores = _behind(graph, soft.value.args[0], _is_product)
            if scores is not None:
                found[scores.var.name] = ("activation", "key")
            break
    return found


def _is_given(graph: Graph, a: Atom) -> bool:
    """Whether a value is an input of the network, perhaps in another shape or type of integers."""
    while isinstance(a, Var):
        b = graph.at.get(a)
        if b is None:
            return a in graph.f.params
        if not isinstance(b.value, Call) or len(b.value.args) != 1:
            return False
        (a,) = b.value.args
    return False


def _head(graph: Graph) -> Binding | None:
    """The layer that makes the first result."""
    a: Atom = graph.f.results[0]
    while isinstance(a, Var):
        b = graph.at.get(a)
        if b is None or not isinstance(b.value, Call) or not isinstance(b.value.op, OpDef):
            return None
        axes, op = contraction_of(b.value), b.value.op
        if axes is not None:
            return b if axes.by_rows else None
        fixed = [x for x in b.value.args if isinstance(x, Var)]
        same = op.moves in (Moves.VIEW, Moves.PERMUTE, Moves.SAME) or form(b.value) == Form.ADD
        if not same or len(fixed) != 1:
            return None
        a = fixed[0]
    return None


def _is_softmax(call: Call) -> bool:
    return isinstance(call.op, OpDef) and call.op.integer_form == IntegerForm.SOFTMAX


def _is_product(call: Call) -> bool:
    axes = contraction_of(call)
    return axes is not None and not axes.by_rows


def _behind(graph: Graph, a: Atom, wanted: Callable[[Call], bool]) -> Binding | None:
    """The nearest call behind a value that is `wanted`, through what moves, scales or masks it."""
    ahead: list[Atom] = [a]
    seen: set[Var] = set()
    while ahead:
        v = ahead.pop(0)
        b = graph.producer(v)
        if b is None or b.var in seen or not isinstance(b.value, Call):
            continue
        seen.add(b.var)
        if wanted(b.value):
            return b
        op = b.value.op
        if isinstance(op, OpDef) and (op.fusion is Fusion.ELEMENTWISE or op.moves is not None):
            ahead += b.value.args
    return None
