"""Quantized models with nodes that onnxruntime computes are written as ONNX with these nodes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto as T
from onnx import helper

import compiler
import quantize
from compiler.errors import UnsupportedError

pytest.importorskip("onnxruntime")
RNG = np.random.default_rng(4)


@pytest.fixture(scope="module")
def models() -> Any:
    """The module with models of the tests of the frontend."""
    folder = str(Path(__file__).parent.parent / "frontend")
    sys.path.append(folder)
    try:
        import foreign_models
    finally:
        sys.path.remove(folder)
    return foreign_models


def written(models: Any, proto: Any, batches: list[Any], path: Path) -> tuple[Any, Any]:
    """The integer module of a model, and the file of its quantized form."""
    mod = compiler.from_onnx(proto, engines=models.ENGINES)
    plan = quantize.calibrate(mod, batches)
    quantize.export_onnx(mod, plan, path)
    return quantize.realize(mod, plan), onnx.load(path)


def test_text_in_front(models: Any, tmp_path: Path) -> None:
    text = np.array([f"W{k}" for k in RNG.integers(0, 50, 20)])
    integers, saved = written(
        models, models.words_classifier(), [{"text": text}], tmp_path / "q.onnx"
    )
    assert saved.graph.input[0].type.tensor_type.elem_type == T.STRING
    kinds = [n.op_type for n in saved.graph.node]
    assert {"StringNormalizer", "LabelEncoder", "QuantizeLinear"} <= set(kinds)
    assert kinds.count("StringNormalizer") == 1
    wanted = compiler.build(integers)(text)
    (theirs,) = models.by_onnxruntime(saved, text=text)
    np.testing.assert_allclose(theirs, wanted, atol=0.02 * np.abs(wanted).max())
    again = compiler.from_onnx(tmp_path / "q.onnx", engines=models.ENGINES)
    np.testing.assert_allclose(compiler.build(again)(text), wanted, rtol=1e-6)


def test_an_operator_of_another_domain_between_layers(models: Any, tmp_path: Path) -> None:
    x = RNG.standard_normal((8, 4, 6)).astype(np.float32)
    integers, saved = written(models, models.inverse_of_scores(), [x], tmp_path / "q.onnx")
    assert {o.domain for o in saved.opset_import} == {"", "com.microsoft"}
    wanted = compiler.build(integers)(x)
    (theirs,) = models.by_onnxruntime(saved, x=x)
    np.testing.assert_allclose(theirs, wanted, atol=0.02 * np.abs(wanted).max())


def test_several_results_and_a_sequence(models: Any, tmp_path: Path) -> None:
    x, which = RNG.standard_normal((1, 3, 8, 8)).astype(np.float32), np.array(2)
    batch = {"x": x, "which": which}
    integers, saved = written(models, models.chosen_part(), [batch], tmp_path / "q.onnx")
    for ours, theirs in zip(
        compiler.build(integers)(**batch), models.by_onnxruntime(saved, **batch), strict=True
    ):
        np.testing.assert_allclose(theirs, ours, atol=0.02 * np.abs(ours).max())


def test_the_opset_written_is_one_that_has_the_nodes(models: Any, tmp_path: Path) -> None:
    nodes = [
        helper.make_node("SequenceConstruct", ["x", "x"], ["s"], "make"),
        helper.make_node("ConcatFromSequence", ["s"], ["c"], "join", axis=1),
        helper.make_node("MatMul", ["c", "w"], ["y"], "fc"),
    ]
    for opset in (11, 19, 24):
        proto = models.model(
            nodes,
            {"x": (T.FLOAT, ["n", 4])},
            {"y": (T.FLOAT, ["n", 3])},
            models.weights(w=(8, 3)),
            opset,
        )
        x = RNG.standard_normal((5, 4)).astype(np.float32)
        written(models, proto, [x], tmp_path / "q.onnx")
    nodes[1] = helper.make_node("StringSplit", ["t"], ["parts", "count"], "split", delimiter=" ")
    nodes[2] = helper.make_node("Cast", ["count"], ["f"], to=T.FLOAT)
    nodes[0] = helper.make_node("MatMul", ["x", "w"], ["y"], "fc")
    proto = models.model(
        nodes,
        {"x": (T.FLOAT, ["n", 8]), "t": (T.STRING, ["k"])},
        {"y": (T.FLOAT, ["n", 3]), "f": (T.FLOAT, ["k"])},
        models.weights(w=(8, 3)),
        20,
    )
    x, t = RNG.standard_normal((5, 8)).astype(np.float32), np.array(["a b", "c"])
    _, saved = written(models, proto, [{"x": x, "t": t}], tmp_path / "q.onnx")
    assert next(o.version for o in saved.opset_import if not o.domain) == 21


def test_other_registered_functions_cannot_be_written(tmp_path: Path) -> None:
    from compiler.ir.builder import FunctionBuilder
    from compiler.ir.expr import IRModule
    from compiler.ir.function_calls import call_dps_packed
    from compiler.types.tensor_types import TensorType

    b = FunctionBuilder()
    x = b.param("x", (2, 4))
    w = b.const(RNG.standard_normal((3, 4)).astype(np.float32))
    y = b.call("nn.dense", x, w, name="y")
    z = b.bind(call_dps_packed("mine", (y,), TensorType.of((2, 3), "float32")), "z")
    mod = IRModule({"main": b.finish(z)})
    compiler.register_func("mine", lambda a, out: np.copyto(out, a))
    try:
        plan = quantize.calibrate(mod, [np.ones((2, 4), np.float32)])
        with pytest.raises(UnsupportedError, match="a registered function"):
            quantize.export_onnx(mod, plan, tmp_path / "q.onnx")
    finally:
        from compiler.boundary.external import remove_func

        remove_func("mine")
    assert not (tmp_path / "q.onnx").exists()


def test_nodes_of_newer_versions_are_refused(models: Any, tmp_path: Path) -> None:
    make = helper.make_node
    branches = [
        helper.make_graph([node], "b", [], [helper.make_tensor_value_info("o", T.FLOAT, None)])
        for node in (make("Identity", ["h"], ["o"]), make("Unsqueeze", ["h", "axes"], ["o"]))
    ]
    proto = models.model(
        [
            make("MatMul", ["x", "w"], ["h"], "fc"),
            make("If", ["c"], ["i"], "pick", then_branch=branches[0], else_branch=branches[1]),
            make("ReduceSum", ["i"], ["y"], "sum", keepdims=0),
        ],
        {"x": (T.FLOAT, [2, 8]), "c": (T.BOOL, [])},
        {"y": (T.FLOAT, [])},
        [*models.weights(w=(8, 3)), onnx.numpy_helper.from_array(np.array([0]), "axes")],
        23,
    )
    batch = {"x": RNG.standard_normal((2, 8)).astype(np.float32), "c": np.array(True)}
    with pytest.raises(UnsupportedError, match="mean something else in opset 21"):
        written(models, proto, [batch], tmp_path / "q.onnx")
    assert not (tmp_path / "q.onnx").exists()
