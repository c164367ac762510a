"""Converters of reductions over axes."""

from __future__ import annotations

import numpy as np

from compiler.frontend.choices import axes_of, each_value, same_rank
from compiler.frontend.node import Node, converts
from compiler.frontend.values import Imported, scalar
from compiler.frontend.windows import Emit
from compiler.ir.expr import Atom, tensor_type
from compiler.types.dtypes import BOOL

_OPS = {
    "ReduceMean": "mean", "ReduceSum": "sum", "ReduceMax": "max", "ReduceMin": "min",
    "ReduceProd": "prod",
}  # fmt: skip


@converts(*_OPS)
@each_value(1, axes_of(same_rank))
def reduction(n: Node) -> Imported:
    """Axes are an attribute, and an input from opset 13 (ReduceSum) or 18 (the others) on."""
    x = n.atom(0)
    front = reduced_axes(n, 13 if n.op == "ReduceSum" else 18)
    if not front:
        return x
    keep = bool(n.attr("keepdims", 1))
    if n.type(0).dtype == BOOL:
        bits = n.step("cast", x, dtype="uint8")
        return n.call("cast", _reduced(n, bits, front, keep, n.step), dtype="bool")
    return _reduced(n, x, front, keep, n.call)


def reduced_axes(n: Node, since: int) -> tuple[int, ...]:
    """The axes that a node reduces, ascending: an attribute before opset `since`, then an input;
    all of them if none are given, unless noop_with_empty_axes says otherwise."""
    rank = n.type(0).rank
    axes = n.ints("axes", 1, since)
    if not axes:
        return () if n.attr("noop_with_empty_axes", 0) else tuple(range(rank))
    return tuple(sorted(n.front(a, rank) for a in axes))


def _reduced(n: Node, x: Atom, axes: tuple[int, ...], keep: bool, emit: Emit) -> Atom:
    """The reduction; the largest and the smallest of nothing are the ends of the dtype's range."""
    t = tensor_type(x)
    if n.op not in ("ReduceMax", "ReduceMin") or all(t.shape[a] != 0 for a in axes):
        return emit(_OPS[n.op], x, axis=axes, keepdims=keep)
    ends = (-np.inf, np.inf)
    if not t.dtype.is_float:
        ends = (np.iinfo(t.dtype.storage).min, np.iinfo(t.dtype.storage).max)
    kept = [1 if k in axes else d for k, d in enumerate(t.shape) if keep or k not in axes]
    return emit("broadcast_to", scalar(ends[n.op == "ReduceMin"], t), shape=tuple(kept))


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
