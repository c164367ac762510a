"""Converters of reductions over axes."""

from __future__ import annotations

from compiler.dtypes import BOOL
from compiler.frontend.node import Imported, Node, converts

_OPS = {
    "ReduceMean": "mean", "ReduceSum": "sum", "ReduceMax": "max", "ReduceMin": "min",
    "ReduceProd": "prod",
}  # fmt: skip


@converts(*_OPS)
def reduction(n: Node) -> Imported:
    """Axes are an attribute, and an input from opset 13 (ReduceSum) or 18 (the others) on."""
    x, rank = n.atom(0), n.type(0).rank
    axes = n.ints("axes", 1, 13 if n.op == "ReduceSum" else 18)
    if not axes:
        if n.attr("noop_with_empty_axes", 0):
            return x
        axes = tuple(range(rank))
    front = tuple(sorted(n.front(a, rank) for a in axes))
    if not front:
        return x
    keep = bool(n.attr("keepdims", 1))
    if n.type(0).dtype == BOOL:
        bits = n.step("cast", x, dtype="uint8")
        return n.call("cast", n.step(_OPS[n.op], bits, axis=front, keepdims=keep), dtype="bool")
    return n.call(_OPS[n.op], x, axis=front, keepdims=keep)


@converts("GlobalAveragePool", "GlobalMaxPool")
def global_pool(n: Node) -> Imported:
    """Average or maximum of every channel."""
    rank = n.rank_of(0, 3, 4, 5)
    if n.op == "GlobalAveragePool" and rank == 4:
        return n.call("nn.global_avg_pool2d", n.atom(0))
    op = "mean" if n.op == "GlobalAveragePool" else "max"
    return n.call(op, n.atom(0), axis=tuple(range(2, rank)), keepdims=True)


@converts("Softmax", "LogSoftmax")
def softmax(n: Node) -> Imported:
    """Along one axis; before opset 13, over all axes from `axis` on, taken as one."""
    op = "nn.softmax" if n.op == "Softmax" else "nn.log_softmax"
    x, t = n.atom(0), n.type(0)
    axis = n.axis(-1 if n.opset >= 13 else 1, t.rank)
    if n.opset >= 13 or all(d == 1 for d in t.shape[axis + 1 :]):
        return n.call(op, x, axis=axis)
    flat = n.step("flatten", x, axis=axis)
    return n.call("reshape", n.step(op, flat, axis=1), newshape=t.shape)
