"""quantize and dequantize nodes in a graph of torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torchao.quantization.pt2e.utils import create_getattr_from_value

from compiler.types.dtypes import Array
from quantize.plan.params import ValueParams, WeightParams
from quantize.torch.sites import tensor

if TYPE_CHECKING:
    from torch.fx import GraphModule, Node

DTYPES = {"int8": torch.int8, "uint8": torch.uint8}
INT32 = (-(2**31), 2**31 - 1, torch.int32)
"""Ends and element type of biases."""


def replaced(model: GraphModule, node: Node, new: Node) -> None:
    """Let all that reads `node` read `new`, and take `node` away."""
    node.replace_all_uses_with(new)
    model.graph.erase_node(node)


def write_value(
    model: GraphModule, node: Node, params: ValueParams, floats: frozenset[str] = frozenset()
) -> None:
    """A quantize and a dequantize in the place of an observer. The nodes called `floats` read what
    it observes."""
    for reader in list(node.users):
        if reader.name in floats:
            reader.replace_input_with(node, node.args[0])
    ops = torch.ops.quantized_decomposed
    ends = (params.scale, params.zero_point, params.qmin, params.qmax, DTYPES[params.dtype])
    with model.graph.inserting_before(node):
        q = model.graph.call_function(ops.quantize_per_tensor.default, (node.args[0], *ends))
        x = model.graph.call_function(ops.dequantize_per_tensor.default, (q, *ends))
    replaced(model, node, x)


def write_weight(
    model: GraphModule, node: Node, params: WeightParams, integers: Array, turned: bool
) -> None:
    """A constant and a dequantize in the place of an observer of weights.

    Args:
        model: the graph; node: the observer.
        params: of the weights; integers: counted from that of 0, the output channel first.
        turned: the output channel is the last axis in the graph.
    """
    half = 1 << (params.bits - 1)
    zeros = np.asarray(params.zero_points or (0,) * len(params.scales), np.int64)
    stored = integers + zeros.reshape(-1, *[1] * (integers.ndim - 1))
    ends = (-half + (not params.zero_points), half - 1, torch.int8)
    shape = tensor(node.args[0]).shape
    q = torch.from_numpy((stored.T if turned else stored).astype(np.int8).reshape(shape))
    axis = len(shape) - 1 if turned else 0
    scales, name = np.asarray(params.scales), str(node.args[0])
    replaced(model, node, dequantized(model, node, name, q, scales, zeros, axis, ends))


def write_bias(model: GraphModule, node: Node, integers: Array, scales: Array) -> None:
    """The same of a bias [C], whose unit is that of the accumulator: `scales`, one or C."""
    replaced(model, node, bias_of(model, node, str(node.args[0]), integers, scales))


def bias_of(model: GraphModule, before: Node, name: str, integers: Array, scales: Array) -> Node:
    """A bias of integers, dequantized in front of a node; see `dequantized`."""
    q, each = torch.from_numpy(integers.astype(np.int32)), scales.reshape(-1)
    return dequantized(model, before, name, q, each, np.zeros(len(each), np.int64), 0, INT32)


def dequantized(
    model: GraphModule,
    before: Node,
    name: str,
    q: torch.Tensor,
    scales: Array,
    zeros: Array,
    axis: int,
    ends: tuple[Any, ...],
) -> Node:
    """A new constant of integers, dequantized in front of a node.

    Args:
        model: the graph; before: the node.
        name: what the constant's begins with.
        q: the integers; scales, zeros: one, or one for each of `axis`.
        ends: the least and the largest integer, and torch's element type.
    """
    ops, graph, stem = torch.ops.quantized_decomposed, model.graph, name.replace(".", "_")
    with graph.inserting_before(before):
        held = create_getattr_from_value(model, graph, f"{stem}_integers_", q)
        if len(scales) == 1:
            given = (held, float(np.float32(scales[0])), int(zeros[0]), *ends)
            return graph.call_function(ops.dequantize_per_tensor.default, given)
        s = torch.from_numpy(scales.astype(np.float32))
        parts = [
            create_getattr_from_value(model, graph, f"{stem}_{what}_", t)
            for what, t in (("scales", s), ("zero_points", torch.from_numpy(zeros)))
        ]
        given = (held, *parts, axis, *ends)
        return graph.call_function(ops.dequantize_per_channel.default, given)
