"""Values beyond all memory: one sentence that names what they are of, in every executor."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import compiler
from compiler.errors import OutOfMemoryError

node = helper.make_node


def outer(n: int, *, run_time: bool) -> compiler.IRModule:
    """x[1] -> the sum of a product of n x n elements each; n, at run time, is an input."""
    nodes = [
        node("Expand", ["x", "sizes"], ["big"]),
        node("Sin", ["big"], ["wave"]),
        node("Exp", ["big"], ["power"]),
        node("MatMul", ["wave", "power"], ["product"]),
        node("ReduceSum", ["product"], ["y"], keepdims=0),
    ]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])]
    sizes = helper.make_tensor("sizes", TensorProto.INT64, [2], [n, n])
    if run_time:
        inputs.append(helper.make_tensor_value_info("sizes", TensorProto.INT64, [2]))
    graph = helper.make_graph(
        nodes, "g", inputs, [helper.make_tensor_value_info("y", TensorProto.FLOAT, [])],
        [] if run_time else [sizes],
    )  # fmt: skip
    opset = helper.make_opsetid("", 18)
    proto: onnx.ModelProto = helper.make_model(graph, opset_imports=[opset], ir_version=9)
    return compiler.from_onnx(proto)


@pytest.mark.parametrize("n", [2**22, pytest.param(2**28, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("run_time", [False, True])
def test_values_without_room_are_named(n: int, run_time: bool) -> None:
    mod = outer(n, run_time=run_time)
    inputs = [np.ones(1, np.float32), *([np.array([n, n])] if run_time else [])]
    with pytest.raises(OutOfMemoryError, match=r"no memory for (sin|exp|broadcast_to) \(%\w+\): "):
        compiler.evaluate(mod, *inputs)
    exe = compiler.build(mod)
    what = r"no memory for .* GiB .*.*; the largest, .* GiB, is"
    with pytest.raises(OutOfMemoryError, match=what):
        exe(*inputs)
    # It is as before for what has room.
    if run_time:
        assert exe(inputs[0], np.array([2, 2])) == compiler.evaluate(mod, inputs[0], [2, 2])


def test_outputs_without_room_are_named() -> None:
    b = compiler.FunctionBuilder()
    n = compiler.symbolic.Var("n")
    x = b.param("x", (n, 1))
    y = b.param("y", (1, n))
    mod = compiler.IRModule({"main": b.finish(b.call("add", x, y))})
    column = np.zeros((2**23, 1), np.float32)
    with pytest.raises(OutOfMemoryError, match="no memory for output "):
        compiler.build(mod)(column, column.reshape(1, -1))
