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
from compiler.analysis import cost
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
