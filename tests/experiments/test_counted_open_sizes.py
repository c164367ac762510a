"""What multiply-accumulates took open sizes for, and that they are those of these sizes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import compiler
import experiments
from compiler.transform.analysis import cost
from experiments.cli.main import run_command

DIMS: dict[str, list[int | str]] = {
    "fixed": [1, 3, 8, 8],
    "batch": ["n", 3, 8, 8],
    "picture": [1, 3, "h", "w"],
    "all": ["n", 3, "h", "w"],
}


def network(folder: Path, dims: list[int | str]) -> Path:
    """A convolution that keeps the picture's size."""
    kind = TensorProto.FLOAT
    weights = numpy_helper.from_array(np.ones((4, 3, 3, 3), np.float32), "w")
    graph = helper.make_graph(
        [helper.make_node("Conv", ["x", "w"], ["y"], pads=[1, 1, 1, 1])],
        "g",
        [helper.make_tensor_value_info("x", kind, dims)],
        [helper.make_tensor_value_info("y", kind, [dims[0], 4, *dims[2:]])],
        [weights],
    )
    path = folder / "conv.onnx"
    opset = helper.make_opsetid("", 17)
    onnx.save(helper.make_model(graph, opset_imports=[opset], ir_version=8), path)
    return path


@pytest.mark.parametrize("case", DIMS)
def test_inspect_says_what_open_sizes_were_taken_for(
    case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, dims = network(tmp_path, DIMS[case]), DIMS[case]
    open_dims = [d for d in dims if isinstance(d, str)]
    assert run_command(["inspect", str(path), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["assumed_sizes"] == dict.fromkeys(open_dims, 1)
    sizes = tuple(facts["assumed_sizes"].get(d, d) for d in dims)
    assert facts["macs"] == cost(compiler.from_onnx(path, shapes={"x": sizes})).macs
    # Multiply-accumulates of one input are what is expected; other sizes are not.
    assert run_command(["inspect", str(path)]) == 0
    text = capsys.readouterr().out
    assert ("with " + ", ".join(f"{d} = 1" for d in open_dims) in text) == ("h" in open_dims)
    if "h" in open_dims:
        assert run_command(["inspect", str(path), "--shape", "x=1,3,8,8", "--json"]) == 0
        fixed = json.loads(capsys.readouterr().out)
        assert (fixed["assumed_sizes"], fixed["macs"]) == ({}, 64 * facts["macs"])


def test_rows_count_the_sizes_that_the_data_has(tmp_path: Path) -> None:
    path = network(tmp_path, DIMS["all"])
    np.savez(tmp_path / "d.npz", x=np.ones((3, 3, 5, 7), np.float32))
    rows = experiments.sweep(
        {
            "models": [str(path)],
            "dataset": str(tmp_path / "d.npz"),
            "schemes": ["float32"],
            "latency": {"runs": 0},
        },
        tmp_path / "r.csv",
    )
    assert rows["macs"].tolist() == [5 * 7 * 4 * 27]
    assert rows["notes"].tolist() == [""]


def taking(folder: Path, rows: int) -> Path:
    """A layer of a network whose batch is open, but which makes `rows` rows of it."""
    rng = np.random.default_rng(0)
    arrays = {"shape": np.array([rows, 8]), "w": rng.standard_normal((8, 4)).astype(np.float32)}
    graph = helper.make_graph(
        [
            helper.make_node("Reshape", ["x", "shape"], ["y"]),
            helper.make_node("MatMul", ["y", "w"], ["m"]),
            helper.make_node("Relu", ["m"], ["out"]),
        ],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 2, 4])],
        [helper.make_tensor_value_info("out", TensorProto.FLOAT, ["N", 4])],
        [numpy_helper.from_array(a, name) for name, a in arrays.items()],
    )
    opset = helper.make_opsetid("", 17)
    path = folder / f"rows{rows}.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[opset], ir_version=8), path)
    return path


@pytest.mark.sampled(2)
@pytest.mark.parametrize("rows", [1, 3])
def test_calls_have_the_rows_that_an_open_batch_can_only_have(
    rows: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, data, out = taking(tmp_path, rows), tmp_path / "x.npz", tmp_path / "y.npz"
    x = np.random.default_rng(1).standard_normal((4, 2, 4)).astype(np.float32)
    np.savez(data, x=x, x_calib=np.concatenate([x, x[:2]]))  # whole calls
    given = [str(path), "--input", str(data)]
    assert run_command(["run", *given, "--output", str(out)]) == 0
    mod = compiler.from_onnx(path)
    calls = x[np.minimum(np.arange(-(-4 // rows) * rows), 3)].reshape(-1, rows, 2, 4)
    wanted = np.concatenate([compiler.evaluate(mod, call) for call in calls])[:4]
    np.testing.assert_allclose(np.load(out)["out"], wanted, rtol=1e-5)
    timed = ["--batch", str(rows), "--calib", str(data), "--runs", "1", "--warmup", "0"]
    assert run_command(["bench", str(path), *timed]) == 0
    capsys.readouterr()
    assert run_command(["compare", *given, "--dtype", "bfloat16"]) == 0
    assert f"{rows}x4" in capsys.readouterr().out
    results = experiments.sweep(
        {
            "models": [str(path)],
            "dataset": str(data),
            "metric": "sqnr",
            "schemes": ["int8", "bfloat16"],
            "n_calib": 6,
            "n_eval": 4,
            "latency": {"runs": 0},
        },
        tmp_path / "r.csv",
    )
    assert list(results["status"]) == ["ok", "ok"], list(results["error"])
    assert (results["n_eval"] == 4).all()
    assert results["sqnr_db"].gt(20).all()
