"""One ONNX node in onnxruntime."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import onnxruntime
from onnx import helper

from compiler.types.dtypes import Array


def onnx_run(op: str, attrs: Mapping[str, Any], arrays: Mapping[str, Array]) -> Array:
    """The first output of `op`; names that start with "_" stand for operands that are left out."""
    names = ["" if n.startswith("_") else n for n in arrays]
    node = helper.make_node(op, names, ["y"], **attrs)
    inputs = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for n, a in arrays.items()
        if not n.startswith("_")
    ]
    graph = helper.make_graph([node], "g", inputs, [helper.make_empty_tensor_value_info("y")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    feeds = {n: a for n, a in arrays.items() if not n.startswith("_")}
    result: Array = session.run(None, feeds)[0]
    return result
