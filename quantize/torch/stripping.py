"""A graph that torch converted, without its quantize and dequantize nodes, and what they said."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from compiler.errors import ModelError, UnsupportedError
from compiler.frontend.torch.exporting import packet
from compiler.types.dtypes import Array
from quantize.plan.params import ValueParams, WeightParams
from quantize.torch.sites import tensor

if TYPE_CHECKING:
    from torch.fx import GraphModule, Node

_ROOM = "quantized_decomposed."
_QUANTIZE = (_ROOM + "quantize_per_tensor", _ROOM + "quantize_per_channel")
_DEQUANTIZE = (_ROOM + "dequantize_per_tensor", _ROOM + "dequantize_per_channel")


@dataclass(frozen=True, eq=False)
class Held:
    """A constant in integers.

    Attributes:
        q: the integers; scales, zeros: one, or one for each of `axis`; low, high: the ends.
    """

    q: Array
    scales: Array
    zeros: Array
    axis: int
    low: int
    high: int

    def weights(self, name: str) -> WeightParams:
        """The parameters, of weights.

        Raises:
            UnsupportedError: a plan has none like them.
        """
        bits = (self.high + 1).bit_length()
        full = self.low == -(self.high + 1)
        if self.high + 1 != 1 << (bits - 1) or not (full or self.low == -self.high) or bits > 8:
            raise UnsupportedError(
                f"the weights of {name!r} are integers from {self.low} to {self.high}; supported: "
                "-127 to 127, -128 to 127, and the same of fewer bits"
            )
        zeros = tuple(map(int, self.zeros)) if full else ()
        return WeightParams(tuple(map(float, self.scales)), bits, zero_points=zeros)


@dataclass(frozen=True, eq=False)
class Stripped:
    """See above.

    Attributes:
        graph: in float32; weights and biases are what their integers stand for.
        values: node -> how what it computes was quantized.
        held: attribute -> its integers.
        quantizes: node that quantized -> the node whose result it did.
    """

    graph: GraphModule
    values: dict[str, ValueParams] = field(default_factory=dict)
    held: dict[str, Held] = field(default_factory=dict)
    quantizes: dict[str, str] = field(default_factory=dict)


def stripped(converted: Any) -> Stripped:
    """Take the quantization out of a graph that `convert_pt2e` made, which is not changed.

    Raises:
        ModelError: it is no such graph.
        UnsupportedError: scales that are found at run time, or integers that plans do not have.
    """
    import torch

    nodes = getattr(getattr(converted, "graph", None), "nodes", ())
    if not any(packet(n.target) in _DEQUANTIZE for n in nodes if n.op == "call_function"):
        raise ModelError(
            f"this takes what convert_pt2e made, and there is nothing quantized in this "
            f"{type(converted).__name__}"
        )
    graph = torch.fx.GraphModule(converted, copy.deepcopy(converted.graph))
    graph.meta.update(converted.meta)
    found = Stripped(graph)
    for n in list(graph.graph.nodes):
        if n.op == "call_function" and packet(n.target) in _DEQUANTIZE:
            _strip(found, n)
    graph.graph.eliminate_dead_code()
    graph.recompile()
    return found


def _strip(found: Stripped, n: Node) -> None:
    source: Any = n.args[0]
    quantized = source.op == "call_function" and packet(source.target) in _QUANTIZE
    made: Any = source.args[0] if quantized else source
    if made.op == "get_attr":
        _strip_constant(found, n, source if quantized else None, made)
        return
    if not quantized:
        raise UnsupportedError(f"node {n.name!r} dequantizes what {source.name!r} computes")
    params = _value(source)
    if _value(n) != params or found.values.setdefault(made.name, params) != params:
        raise UnsupportedError(f"{made.name!r} is quantized in two ways, and a plan has one")
    found.quantizes[source.name] = made.name
    n.replace_all_uses_with(made)


def _strip_constant(found: Stripped, n: Any, quantize: Any, made: Node) -> None:
    import torch

    q = tensor(made)
    with torch.no_grad():
        if quantize is not None:
            q = quantize.target(q, *_known(quantize))
        real = n.target(q, *_known(n))
    scales, zeros, *axis, low, high, _ = _known(n)
    name = f"{n.name}_real"
    found.graph.register_buffer(name, real)
    with found.graph.graph.inserting_before(n):
        held = found.graph.graph.get_attr(name)
    arrays = [np.asarray(a).reshape(-1) for a in (scales, zeros)]
    along = int(axis[0]) if axis else 0
    found.held[held.name] = Held(q.numpy(), arrays[0], arrays[1], along, low, high)
    n.replace_all_uses_with(held)


def _known(n: Node) -> list[Any]:
    """The arguments after the first, tensors for attributes.

    Raises:
        UnsupportedError: the graph computes some.
    """
    out = []
    for a in n.args[1:]:
        if hasattr(a, "op") and a.op != "get_attr":
            raise UnsupportedError(
                f"the scale of {n.name!r} is found at run time: a plan has static ones"
            )
        out.append(tensor(a) if hasattr(a, "op") else a)
    return out


def _value(n: Node) -> ValueParams:
    """What a node says of a value."""
    known = _known(n)
    if len(known) != 5:
        raise UnsupportedError(f"{n.name!r} has a scale a channel: values have one a tensor")
    scale, zero, low, high, dtype = known
    name = str(dtype).rpartition(".")[2]
    bits = int(high - low + 1).bit_length() - 1
    if name in ("int8", "uint8"):
        bits = int(high + 1).bit_length() - (name == "uint8")
        params = ValueParams(float(np.float32(scale)), int(zero), name, bits)
        for p in (params, ValueParams(params.scale, int(zero), name, bits, True)):
            if (p.qmin, p.qmax) == (low, high):
                return p
    raise UnsupportedError(
        f"{n.name!r} has integers from {low} to {high} in {name}: plans have none"
    )


def by_value(nodes: Mapping[str, Node], entries: Mapping[str, Any]) -> dict[str, Any]:
    """Entries by the names of values, of those by the names of the nodes that compute them."""
    return {value: entries[n.name] for value, n in nodes.items() if n.name in entries}
