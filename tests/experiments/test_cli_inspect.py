"""`dtypelab inspect` on the shipped networks, and on files that ask for more than there is."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from cli_runs import Capture, as_json, succeed
from onnx import TensorProto, helper, numpy_helper

from experiments import zoo
from experiments.cli.main import run_command


def test_inspect(capsys: Capture) -> None:
    facts = as_json(capsys, "inspect", "mnist_mlp")
    assert facts["macs"] == 784 * 128 + 128 * 10
    assert facts["opset"] == 18
    assert facts["inputs"] == {"input": "Tensor[(N, 1, 28, 28), float32]"}
    text = succeed(capsys, "inspect", str(zoo.FOLDER / "mnist_mlp.onnx"), "--text")
    assert "101,632" in text
    assert "nn.dense" in text.split("operators")[1]


def test_inspect_reports_what_a_model_needs_before_anything_runs(
    tmp_path: Path, capsys: Capture
) -> None:
    facts = as_json(capsys, "inspect", "mnist_resnet8")
    assert facts["onnx_operators"]["Conv"] == 9
    assert facts["unsupported_operators"] == {}
    assert facts["dynamic_axes"] == {"input": [[0, "N"]]}
    assert facts["element_types"] == {"float": 58, "int64": 1}
    assert facts["problem"] == ""


@pytest.mark.thorough
def test_inspect_shows_how_wide_accumulators_must_be(tmp_path: Path, capsys: Capture) -> None:
    plan, q = str(tmp_path / "p.json"), str(tmp_path / "q.onnx")
    settings = ["--set", "accumulate=certified"]
    succeed(
        capsys, "quantize", "mnist_mlp", "--calib", "mnist1k", *settings, "-o", q, "--plan", plan
    )
    shown = ["inspect", "mnist_mlp", "--accumulators"]
    rows = as_json(capsys, *shown, "--plan", plan)["accumulators"]
    assert [row["node"] for row in rows] == ["linear", "logits"]
    assert all(16 < row["bits"] <= row["step_bits"] < 26 for row in rows)
    text = succeed(capsys, *shown, "--plan", plan)
    assert "least  largest" in text
    assert f"  {rows[0]['low']}" in text
    imported = as_json(capsys, "inspect", q, "--accumulators")["accumulators"]
    assert [row["bits"] for row in imported] == [row["bits"] for row in rows]
    formats = as_json(capsys, *shown, "--dtype", "float8_e4m3fn")["accumulators"]
    assert all(row["unit"] < 0 < row["bits"] for row in formats)
    seen = [*shown, "--dtype", "float8_e4m3fn", "--input", "mnist1k"]
    formats = as_json(capsys, *seen)["accumulators"]
    assert all(10 < row["data_bits"] < row["bits"] for row in formats)
    assert "looked at" not in succeed(capsys, *shown, "--plan", plan, "--input", "mnist1k")
    assert "no sums of integers" in succeed(capsys, *shown)
    assert run_command([*shown, "--plan", plan, "--dtype", "bfloat16"]) == 2
    assert "give one" in capsys.readouterr().err
    assert run_command(["inspect", "mnist_mlp", "--plan", plan]) == 2
    assert "are for --accumulators" in capsys.readouterr().err


def test_a_dialect_is_of_a_model_that_is_written(tmp_path: Path, capsys: Capture) -> None:
    plan = tmp_path / "p.json"
    given = ["quantize", "mnist_mlp", "--calib", "mnist1k", "--plan", str(plan)]
    assert run_command([*given, "--dialect", "qonnx"]) == 2
    assert "--dialect qonnx is how -o is written" in capsys.readouterr().err
    assert not plan.exists()


def test_inspect_reports_operators_that_are_missing(tmp_path: Path, capsys: Capture) -> None:
    from onnx import TensorProto, helper

    nodes = [
        helper.make_node("Softmx", ["x"], ["a"]),
        helper.make_node("HannWindow", ["n"], ["b"]),
        helper.make_node("Relu", ["x"], ["c"]),
    ]
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 3]),
        helper.make_tensor_value_info("n", TensorProto.INT64, []),
        helper.make_tensor_value_info("s", TensorProto.STRING, [1]),
    ]
    outputs = [helper.make_empty_tensor_value_info("c")]
    path = tmp_path / "m.onnx"
    proto = helper.make_model(
        helper.make_graph(nodes, "g", inputs, outputs), opset_imports=[helper.make_opsetid("", 17)]
    )
    onnx.save(proto, path)
    assert run_command(["inspect", str(path)]) == 2
    shown = capsys.readouterr()
    assert "MISSING     Softmx (1 times; nearest: Softmax" in shown.out
    assert "by others   HannWindow" in shown.out
    assert "MISSING     element type string" in shown.out
    assert "axis 0 (batch)" in shown.out
    assert shown.err.count("\n") == 1
    assert "unsupported operators: Softmx" in shown.err


def test_inspect_shows_what_every_pass_did(capsys: Capture) -> None:
    command = ["inspect", "mnist_mlp", "--passes", "--disabled-pass", "FoldBatchNorm"]
    steps = [(r["stage"], r["step"], r["ran"]) for r in as_json(capsys, *command)["passes"]]
    assert steps[:7] == [
        ("import", "UseIntegers", "no"),
        ("weights", "InferType", "before PackWeights"),
        ("weights", "PackWeights", "yes"),
        ("prepare", "InferType", "yes"),
        ("prepare", "SimplifyInference", "yes"),
        ("prepare", "FoldConstant", "yes"),
        ("prepare", "FoldBatchNorm", "disabled"),
    ]
    assert ("stronger", "CanonicalizeOps", "no, at level 2") in steps
    table = succeed(capsys, *command, "--opt-level", "3", "--required-pass", "CombineParallelDense")
    lines = {words[-1]: line for line in table.splitlines() if (words := line[:53].split())}
    assert "3  " in lines["CanonicalizeOps"]
    assert " yes " in lines["CanonicalizeOps"]
    assert " required " in lines["CombineParallelDense"]
    assert "4 -> 4 in 2 kernels" in lines["FuseOps"]
    assert run_command(["inspect", "mnist_mlp", "--passes", "--disabled-pass", "FuseOp"]) == 2
    assert "did you mean 'FuseOps'" in capsys.readouterr().err


@pytest.mark.parametrize("graphviz", [True, False])
def test_inspect_draws_the_graph(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch, graphviz: bool
) -> None:
    if graphviz and not shutil.which("dot"):
        pytest.skip("graphviz is not installed")
    if not graphviz:
        monkeypatch.setenv("PATH", "")
    out = tmp_path / "g.svg"
    succeed(capsys, "inspect", "mnist_mlp", "--graph", str(out))
    picture = out.read_text()
    assert "nn.dense" in picture
    assert "(N, 10)" in picture
    assert run_command(["inspect", "mnist_mlp", "--graph", str(tmp_path / "g.png")]) == 2
    assert [p.name for p in tmp_path.iterdir()] == ["g.svg"]


def test_inspect_draws_what_a_pass_does(tmp_path: Path, capsys: Capture) -> None:
    """Queries, keys and values of an encoder as one product, before and after."""
    rng = np.random.default_rng(0)
    kinds = ("query", "key", "value")
    nodes = [helper.make_node("MatMul", ["x", f"{k}_weight"], [k], name=k) for k in kinds]
    nodes += [helper.make_node("Add", ["query", "key"], ["a"]),
              helper.make_node("Mul", ["a", "value"], ["y"])]  # fmt: skip
    weights = [
        numpy_helper.from_array(rng.normal(0, 1, (8, 8)).astype(np.float32), f"{k}_weight")
        for k in kinds
    ]
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [4, 8]) for n in "xy")
    graph = helper.make_graph(nodes, "g", [x], [y], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    path, drawn = tmp_path / "net.onnx", []
    path.write_bytes(model.SerializeToString())
    for more in ([], ["--required-pass", "CombineParallelDense"]):
        out = tmp_path / f"g{len(drawn)}.svg"
        succeed(capsys, "inspect", str(path), "--graph", str(out), *more)
        drawn.append(out.read_text())
    assert [p.count(">nn.dense<") for p in drawn] == [3, 1]
    assert ["split" in p for p in drawn] == [False, True]
