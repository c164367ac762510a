"""Which factors of products are weights, keys, values and probabilities of attention: found by
structure.

A product whose first factor is a softmax, up to operators that move or scale it, takes the averages
of values, its second factor. What the softmax is of, up to scaling and masks, is a product of
queries with keys: wherever these come from (a concatenated cache, repeated heads, rotations).
"""

from __future__ import annotations

from collections.abc import Callable

from compiler.ir.expr import Atom, Binding, Call, Var
from compiler.op.facts import IntegerForm
from compiler.op.opdef import Fusion, OpDef
from quantize.annotation.graph import Graph
from quantize.plan.call_facts import contraction_of

Roles = tuple[str, str]
"""The sites of the two factors of a product."""


def sites(graph: Graph) -> dict[str, Roles]:
    """Name of a product's result -> the sites of its factors, for all products in the function."""
    found: dict[str, Roles] = {}
    for b, call in graph.calls():
        axes = contraction_of(call)
        if axes is not None:
            found[b.var.name] = ("activation", "weight" if axes.by_rows else "activation")
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
