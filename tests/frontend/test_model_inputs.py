"""What a model file says of its inputs before it is imported."""

from __future__ import annotations

import pytest
from onnx import TensorProto, helper
from onnx_models import model

import compiler
from compiler.errors import ModelError
from compiler.frontend.model_inputs import model_inputs


def test_inputs_are_those_that_are_no_weights_with_the_sizes_that_are_known() -> None:
    def info(name, shape):
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)

    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "w"], ["y"])],
        "g",
        [info("x", ["n", 3, None, -1]), info("w", [3]), info("unknown", None)],
        [info("y", None)],
        [helper.make_tensor("w", TensorProto.FLOAT, [3], [1.0, 2.0, 3.0])],
    )
    content = helper.make_model(graph).SerializeToString()
    assert model_inputs(content) == {"x": (None, 3, None, None), "unknown": None}


def test_two_sizes_for_one_dimension_name_the_axis() -> None:
    node = helper.make_node("Concat", ["a", "b"], ["y"], axis=0)
    proto = model([node], {"a": [1, "batch"], "b": [2, "batch"]}, ["y"])
    with pytest.raises(ModelError, match=r"batch is given two values: 3, and 4 for axis 1 of inp"):
        compiler.from_onnx(proto, shapes={"a": (1, 3), "b": (2, 4)})
