"""Networks with a state whose batch is behind, and with constant results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import new_user_models
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import compiler
from compiler.errors import InputError
from experiments.cli.common import load_feed, one_call
from experiments.cli.main import run_command
from experiments.data.datasets import Dataset
from experiments.measure import metric_choice
from experiments.systems import pipeline, schemes
from experiments.zoo import model_batches

Capture = pytest.CaptureFixture[str]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("state_batch", ["b", "c", None])
def test_states_have_a_row_for_every_example(
    capsys: Capture, tmp_path: Path, state_batch: str | None
) -> None:
    """Also where the model file gives that axis another name, or none, but needs it to be alike."""
    model, data = new_user_models.voice_detector(np.random.default_rng(1))
    dim = model.graph.input[1].type.tensor_type.shape.dim[1]
    dim.Clear()
    if state_batch:
        dim.dim_param = state_batch
    del data["state"], data["y"], data["input_calib"]
    state = np.random.default_rng(2).standard_normal((2, 6, 8)).astype(np.float32)
    onnx.save(model, tmp_path / "m.onnx")
    np.savez(tmp_path / "d.npz", **data, state=state)
    path, file = str(tmp_path / "m.onnx"), str(tmp_path / "d.npz")
    assert len(one_call(path, load_feed(path, file))) == 6
    assert run_command(["run", path, "--input", file, "--output", str(tmp_path / "y.npz")]) == 0
    capsys.readouterr()
    found = np.load(tmp_path / "y.npz")
    module = compiler.from_onnx(model)
    for k in range(6):
        after, output = compiler.evaluate(
            module, data["input"][k : k + 1], state[:, k : k + 1], data["sr"]
        )
        assert np.allclose(found["output"][k : k + 1], output, atol=1e-6)
        assert np.allclose(found["stateN"][:, k : k + 1], after, atol=1e-6)


def _value(name: str, shape: list[Any], kind: int = TensorProto.FLOAT) -> Any:
    return helper.make_tensor_value_info(name, kind, shape)


def by_rate(folder: Path) -> str:
    """A branch for windows of four samples and one for two, as a rate says."""
    weights = [
        numpy_helper.from_array(np.ones((k, 3), np.float32) / k, f"w{k}") for k in (2, 4)
    ] + [numpy_helper.from_array(np.int64(16), "rate")]
    branches = {
        f"{name}_branch": helper.make_graph(
            [helper.make_node("MatMul", ["x", f"w{k}"], [f"o{k}"])],
            name,
            [],
            [_value(f"o{k}", ["n", 3])],
        )
        for name, k in (("then", 4), ("else", 2))
    }
    nodes = [
        helper.make_node("Equal", ["sr", "rate"], ["fast"]),
        helper.make_node("If", ["fast"], ["y"], **branches),
    ]
    inputs = [_value("x", ["n", "t"]), _value("sr", [], TensorProto.INT64)]
    graph = helper.make_graph(nodes, "g", inputs, [_value("y", ["n", 3])], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, folder / "rates.onnx")
    return str(folder / "rates.onnx")


def test_a_branch_that_other_sizes_would_take_is_no_obstacle(
    capsys: Capture, tmp_path: Path
) -> None:
    path, file = by_rate(tmp_path), str(tmp_path / "d.npz")
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    np.savez(file, x=x, sr=np.array(16))
    plan = str(tmp_path / "p.json")
    for arguments in (
        ["run", path, "--input", file, "--output", str(tmp_path / "y.npz")],
        ["compare", path, "--input", file, "--dtype", "bfloat16"],
        ["quantize", path, "--calib", file, "--plan", plan],
        ["compare", path, "--input", file, "--plan", plan],
    ):
        assert run_command(arguments) == 0, capsys.readouterr().err
    assert np.allclose(np.load(tmp_path / "y.npz")["y"], x.mean(axis=1, keepdims=True))
    np.savez(file, x=x, sr=np.array(8))
    capsys.readouterr()
    assert run_command(["run", path, "--input", file]) == 2
    assert "= 2" in capsys.readouterr().err


def constant_beside(folder: Path, k: int) -> Path:
    """A constant [k] beside a result with rows."""
    nodes = [
        helper.make_node("Identity", ["c"], ["labels"]),
        helper.make_node("Relu", ["x"], ["y"]),
    ]
    weights = [numpy_helper.from_array(np.arange(k, dtype=np.float32), "c")]
    outputs = [_value("labels", [k]), _value("y", ["n", 3])]
    graph = helper.make_graph(nodes, "g", [_value("x", ["n", 3])], outputs, weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, folder / "constant.onnx")
    return folder / "constant.onnx"


@pytest.mark.parametrize("batch", [4, 2])
def test_a_constant_is_no_row_for_every_input(tmp_path: Path, batch: int) -> None:
    path = constant_beside(tmp_path, 4)
    x = np.ones((4, 3), np.float32)
    assert model_batches.result_axes(path, (3,)) == (None, 0)
    for output in ("labels", "y"):
        variant = pipeline.prepare(
            path, schemes.parse("float32"), sample_shape=(3,), calibration=x[:0], target="llvm",
            threads=1, output=output,
        )  # fmt: skip
        compiled = variant.compile(batch)
        if output == "y":
            assert compiled.predict(x).shape == (4, 3)
            continue
        with pytest.raises(InputError, match="no row for every one"):
            compiled.predict(x)


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        (np.zeros((4, 2), np.float32), "the labels 2"),
        (np.array([0.5, 1, 2, 3], np.float32), "top1 needs integer labels"),
        (np.array(["a", "b", "c", "d"]), "needs the texts of the classes"),
    ],
)
def test_labels_that_are_not_used_say_why(labels: np.ndarray, said: str) -> None:
    data = Dataset.of("d", {"x": np.ones((4, 3), np.float32), "y": labels})
    judged = metric_choice.Judged("y", (None, 3))
    assert metric_choice.default(judged, data) == "sqnr"
    assert said in metric_choice.unused(judged, data)
    plain = Dataset.of("d", {"x": np.ones((4, 3), np.float32)})
    assert not metric_choice.unused(judged, plain)
