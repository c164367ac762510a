"""Integer biases for graphs that torch converted with float32 ones, as it does after training."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import numpy as np
import torch

from compiler.errors import UnsupportedError
from compiler.frontend.torch.places import placed
from compiler.ir.expr import Call, Constant
from quantize.annotation.annotate import prepared
from quantize.annotation.graph import Graph
from quantize.torch.reading import data_params, plan_of
from quantize.torch.sites import position, weight_site
from quantize.torch.stripping import stripped
from quantize.torch.writing import bias_of

if TYPE_CHECKING:
    from torch.fx import GraphModule


def with_integer_biases(converted: GraphModule) -> GraphModule:
    """A converted graph with the biases of its integer products rounded to units of the
    accumulator, int32, as `realize` rounds them: half a unit away at most.

    `converted` is not changed; tensors are shared.

    Raises:
        ModelError: it is not what `convert_pt2e` made.
        UnsupportedError: see `plan_of`.
    """
    found, plan = stripped(converted), plan_of(converted)
    at = placed(found.graph)
    graph = Graph(prepared(at.module).main)
    model = torch.fx.GraphModule(converted, copy.deepcopy(converted.graph))
    model.meta.update(converted.meta)
    nodes = {n.name: n for n in model.graph.nodes}
    for name, params in plan.weights.items():
        site = weight_site(name, at.nodes.get(name))
        if site is None or site.bias is None or site.bias.name in found.held:
            continue
        call = graph.at[graph.named[name]].value
        assert isinstance(call, Call)
        bias, data = call.args[2], data_params(graph, plan, name)
        assert isinstance(bias, Constant)
        q = params.bias(bias.data, data)
        if q.dtype != np.int32:
            raise UnsupportedError(f"the sums of {name!r} have 64 bits, and torch's biases 32")
        node, k = nodes[site.node.name], position(site.node, "bias")
        new = bias_of(model, node, site.bias.name, q, params.accumulator_scale(data))
        node.args = tuple(new if i == k else a for i, a in enumerate(node.args))
    model.graph.eliminate_dead_code()
    model.recompile()
    return model
