"""Models in float16 and bfloat16, widened to float32, are quantized like others."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import compiler
import datatypes
import quantize
from compiler.transform import prepare
from compiler.types.tensor_types import TensorType

CODES = {"float16": TensorProto.FLOAT16, "bfloat16": TensorProto.BFLOAT16}


def net(kind: str) -> onnx.ModelProto:
    """x -> MatMul -> Mul -> MatMul, weights and data of a shorter float."""
    code, rng = CODES[kind], np.random.default_rng(0)
    numpy_type = helper.tensor_dtype_to_np_dtype(code)
    weights = [
        numpy_helper.from_array(rng.normal(0, 0.4, shape).astype(np.float32).astype(numpy_type), n)
        for n, shape in (("w0", (8, 16)), ("gain", (16,)), ("w1", (16, 4)))
    ]
    nodes = [
        helper.make_node("MatMul", ["x", "w0"], ["a"]),
        helper.make_node("Mul", ["a", "gain"], ["b"]),
        helper.make_node("MatMul", ["b", "w1"], ["y"]),
    ]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes, "g", [value("x", code, ["n", 8])], [value("y", code, ["n", 4])], weights
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)


@pytest.mark.parametrize("kind", CODES)
def test_a_model_of_shorter_floats_becomes_one_of_float32(kind: str) -> None:
    mod = compiler.from_onnx(net(kind))
    wide = datatypes.change_dtype(mod, kind, "float32")
    assert [p.type for p in wide.main.params] == [p.type for p in mod.main.params]
    inside = [b.var.type for b in wide.main.bindings if isinstance(b.var.type, TensorType)]
    assert {str(t.dtype) for t in inside[:-1]} == {"float32"}
    numpy_type = helper.tensor_dtype_to_np_dtype(CODES[kind])
    x = np.random.default_rng(1).normal(0, 1, (5, 8)).astype(np.float32).astype(numpy_type)
    got, want = (compiler.evaluate(m, x).astype(np.float32) for m in (wide, mod))
    np.testing.assert_allclose(got, want, rtol=0.02, atol=0.02 * np.abs(want).max())
    np.testing.assert_array_equal(compiler.build(wide)(x), compiler.evaluate(wide, x))
    plan = quantize.calibrate(wide, [x])
    assert plan.coverage == 1.0
    assert any("qnn" in str(b.value) for b in quantize.realize(wide, plan).main.bindings)


def test_norms_between_casts_are_found_with_their_gain() -> None:
    from compiler.ir.builder import FunctionBuilder

    b = FunctionBuilder()
    given = b.param("x", (3, 8), "float16")
    x = b.call("cast", given, dtype="float32")
    squares = b.call("mean", b.call("multiply", x, x), axis=(1,), keepdims=True)
    root = b.call("sqrt", b.call("add", squares, b.const(np.float32(1e-6))))
    y = b.call("cast", b.call("divide", x, root), dtype="float16")
    y = b.call("multiply", y, b.const(np.arange(8, dtype=np.float16)))
    mod = compiler.IRModule({"main": b.finish(y)})
    wide = prepare(datatypes.change_dtype(mod, "float16", "float32"))
    names = [str(v.value.op) for v in wide.main.bindings if isinstance(v.value, compiler.Call)]
    assert names.count("nn.rms_norm") == 1
    assert "multiply" not in names


@pytest.mark.parametrize("kind", CODES)
def test_weights_that_are_stored_shorter_are_weights(kind: str) -> None:
    """Of more elements than an import folds; they are constants of a layer when it is prepared."""
    numpy_type = helper.tensor_dtype_to_np_dtype(CODES[kind])
    w = np.random.default_rng(0).normal(0, 0.2, (96, 64)).astype(np.float32).astype(numpy_type)
    nodes = [
        helper.make_node("Cast", ["w"], ["r"], to=TensorProto.FLOAT),
        helper.make_node("MatMul", ["x", "r"], ["y"]),
    ]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes, "g", [value("x", TensorProto.FLOAT, ["n", 96])],
        [value("y", TensorProto.FLOAT, ["n", 64])], [numpy_helper.from_array(w, "w")],
    )  # fmt: skip
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)
    mod = compiler.from_onnx(proto)
    (layer,) = prepare(mod).main.bindings
    assert isinstance(layer.value, compiler.Call)
    assert str(layer.value.op) == "nn.dense"
    assert isinstance(layer.value.args[1], compiler.Constant)
    x = np.random.default_rng(1).normal(0, 1, (5, 96)).astype(np.float32)
    want = x @ w.astype(np.float32)
    np.testing.assert_allclose(compiler.evaluate(mod, x), want, rtol=1e-4, atol=1e-4)
    assert quantize.calibrate(mod, [x]).coverage == 1.0
