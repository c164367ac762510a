"""Weights of 4 bits: per channel they run on the integer kernels, in blocks they are floats."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.reference
import pytest
from click.testing import CliRunner
from onnx import TensorProto, helper, numpy_helper

import compiler
from compiler.transform.analysis import cost
from compiler.types.dtypes import Array
from experiments.cli.main import cli

KINDS = {"int4": (TensorProto.INT4, -8, 7), "uint4": (TensorProto.UINT4, 0, 15)}


def qdq_model(op: str, kind: str, channels: bool, block: int = 0, seed: int = 0) -> Any:
    """uint8 data, weights of 4 bits, a uint8 result: scales are powers of two, so that sums of
    floats are exact and every runtime has the same integers."""
    rng = np.random.default_rng(seed)
    code, low, high = KINDS[kind]
    shape = (6, 4, 3, 3) if op == "Conv" else (32, 6)
    axis = 0 if op == "Conv" or block else 1
    count = (shape[0] // block, 6) if block else (shape[axis],) if channels else ()
    scales = np.float32(2.0) ** rng.integers(-6, -3, count)
    q = rng.integers(low, high, shape, endpoint=True)
    zeros = np.full(count, 0 if kind == "int4" else 7)
    weights = {
        "sx": np.float32(0.25), "zx": np.uint8(101), "sw": scales.astype(np.float32),
        "sy": np.float32(4.0), "zy": np.uint8(120),
    }  # fmt: skip
    stored = [numpy_helper.from_array(np.asarray(v), k) for k, v in weights.items()]
    stored += [
        helper.make_tensor(name, code, np.shape(v), np.ravel(v).tolist())
        for name, v in (("qw", q), ("zw", zeros))
    ]
    how = {"axis": axis} | ({"block_size": block} if block else {})
    nodes = [
        helper.make_node("DequantizeLinear", ["x", "sx", "zx"], ["xr"]),
        helper.make_node("DequantizeLinear", ["qw", "sw", "zw"], ["wr"], **how),
        helper.make_node(op, ["xr", "wr"], ["y"], name="product"),
        helper.make_node("QuantizeLinear", ["y", "sy", "zy"], ["yq"]),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.UINT8, data(op).shape)
    y = helper.make_tensor_value_info(
        "yq", TensorProto.UINT8, ["a", "b", "c", "d"][: 4 if op == "Conv" else 2]
    )
    graph = helper.make_graph(nodes, "g", [x], [y], stored)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    onnx.checker.check_model(model)
    return model


def data(op: str) -> Array:
    shape = (2, 4, 7, 6) if op == "Conv" else (5, 32)
    return np.random.default_rng(1).integers(0, 255, shape, endpoint=True).astype(np.uint8)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("channels", [True, False])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("op", ["Conv", "MatMul"])
def test_weights_of_four_bits_are_widened_and_give_onnxruntimes_bits(
    op: str, kind: str, channels: bool
) -> None:
    ort = pytest.importorskip("onnxruntime")
    model, x = qdq_model(op, kind, channels), data(op)
    mod = compiler.from_onnx(model)
    assert cost(mod).macs_by_dtypes == {"uint8 x int8": cost(mod).macs}
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (want,) = session.run(None, {"x": x})
    assert 0 < want.min() < want.max() < 255
    np.testing.assert_array_equal(compiler.evaluate(mod, x), want)
    np.testing.assert_array_equal(compiler.build(mod)(x), want)


@pytest.mark.parametrize("kind", KINDS)
def test_weights_in_blocks_are_floats_and_inspect_says_so(kind: str, tmp_path: Path) -> None:
    model, x = qdq_model("MatMul", kind, True, block=16), data("MatMul")
    mod = compiler.from_onnx(model)
    want = onnx.reference.ReferenceEvaluator(model).run(None, {"x": x})[0]
    np.testing.assert_array_equal(compiler.build(mod)(x), want)
    path = tmp_path / "blocks.onnx"
    onnx.save(model, path)
    facts = json.loads(CliRunner().invoke(cli, ["inspect", str(path), "--json"]).stdout)
    assert facts["integer_share"] == 0
    assert facts["macs_by_dtypes"] == {"float32 x float32": facts["macs"]}
    assert "its weights are not dequantized" in next(iter(facts["left_in_float"].values()))
    text = CliRunner().invoke(cli, ["inspect", str(path)]).stdout
    assert "in float    %y: its weights are not dequantized" in text
