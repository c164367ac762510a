"""What onnxruntime computes: one node, or a whole graph with every value that is in it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import onnxruntime
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

Array = np.ndarray[Any, Any]
IR_VERSIONS = {7: 3, 8: 3, 9: 4, 10: 5, 11: 6, 12: 7, 13: 7, 14: 7, 15: 8, 16: 8, 17: 8}
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
CROSSING = "/float32"
"""Ends the names of bfloat16 values where they cross into onnxruntime, and out of it, as float32:
its Python interface has no arrays of them, and float32 holds them all."""

ENDS_ON_NOTHING = ("InstanceNormalization",)
"""What ends the process in onnxruntime where a tensor has no elements."""


class Unavailable(Exception):
    """onnxruntime has no kernel for a node with these dtypes, or refuses it."""


def code_of(a: Array) -> int:
    """ONNX's code of an array's dtype."""
    return 16 if a.dtype == BFLOAT16 else int(helper.np_dtype_to_tensor_dtype(a.dtype))


def model(
    nodes: Sequence[NodeProto],
    inputs: Mapping[str, Array],
    outputs: Iterable[str],
    weights: Mapping[str, Array],
    opset: int,
    shapes: Mapping[str, Sequence[int | str]] | None = None,
) -> ModelProto:
    """A model of these nodes; inputs are of the arrays' dtypes, and of their shapes but for those
    in `shapes`."""
    given = [
        helper.make_tensor_value_info(n, code_of(a), (shapes or {}).get(n, a.shape))
        for n, a in inputs.items()
    ]
    made = [helper.make_empty_tensor_value_info(n) for n in outputs]
    stored = [tensor(a, n) for n, a in weights.items()]
    graph = helper.make_graph(nodes, "g", given, made, stored)
    opsets = [helper.make_opsetid("", opset)]
    opsets += [helper.make_opsetid(d, 1) for d in dict.fromkeys(n.domain for n in nodes) if d]
    return helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSIONS.get(opset, 10))


def tensor(a: Array, name: str) -> TensorProto:
    """A tensor of a model."""
    if a.dtype == BFLOAT16:
        return helper.make_tensor(name, 16, a.shape, a.tobytes(), raw=True)
    return numpy_helper.from_array(np.ascontiguousarray(a).reshape(a.shape), name)


def run(proto: ModelProto, arrays: Mapping[str, Array]) -> list[Array]:
    """The outputs of a model, without graph optimization.

    Raises:
        Unavailable: onnxruntime does not run it.
    """
    carried = [n for n, a in arrays.items() if a.dtype == BFLOAT16]
    feeds = {n: a for n, a in arrays.items() if n not in carried}
    feeds |= {n + CROSSING: arrays[n].astype(np.float32) for n in carried}
    try:
        session = _session(_crossed(proto, carried, []))
        narrow = [o.name for o in session.get_outputs() if o.type == "tensor(bfloat16)"]
        if narrow:
            session = _session(_crossed(proto, carried, narrow))
        found = session.run(None, feeds)
    except Exception as error:  # its exceptions have no class of their own in common
        raise Unavailable(" ".join(str(error).split())) from None
    names = [o.name for o in proto.graph.output]
    return [
        a.astype(BFLOAT16) if n in narrow else np.asarray(a)
        for a, n in zip(found, names, strict=True)
    ]


def _session(proto: ModelProto) -> Any:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(proto.SerializeToString(), options)


def _crossed(proto: ModelProto, inputs: Sequence[str], outputs: Sequence[str]) -> ModelProto:
    """The model with casts where bfloat16 crosses its boundary."""
    if not inputs and not outputs:
        return proto
    made = ModelProto()
    made.CopyFrom(proto)
    g = made.graph
    nodes = list(g.node)
    del g.node[:]
    for e in g.input:
        if e.name in inputs:
            g.node.append(helper.make_node("Cast", [e.name + CROSSING], [e.name], to=16))
            e.name += CROSSING
            e.type.tensor_type.elem_type = TensorProto.FLOAT
    g.node.extend(nodes)
    for e in g.output:
        if e.name in outputs:
            g.node.append(helper.make_node("Cast", [e.name], [e.name + CROSSING], to=1))
            e.name += CROSSING
    return made
