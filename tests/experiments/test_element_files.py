"""Files of arrays whose types numpy does not have: written as numbers that anyone can read."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from experiments.cli.main import run_command

CODES = {
    "bfloat16": TensorProto.BFLOAT16,
    "float8_e5m2": TensorProto.FLOAT8E5M2,
    "float4_e2m1fn": TensorProto.FLOAT4E2M1,
    "int4": TensorProto.INT4,
}
Capture = pytest.CaptureFixture[str]


def saved(path: Path, name: str) -> Path:
    """A model that gives its input, a tensor of `name`."""
    info = [helper.make_tensor_value_info(n, CODES[name], ["n", 4]) for n in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "g", info[:1], info[1:])
    opsets = [helper.make_opsetid("", 23)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=11), path)
    return path


@pytest.mark.parametrize("name", list(CODES))
def test_results_are_numbers_that_are_taken_back(
    name: str, tmp_path: Path, capsys: Capture
) -> None:
    model = str(saved(tmp_path / "m.onnx", name))
    x = np.array([[0.5, -3, 6, 2], [1, 0, -1, 4]]).astype(getattr(ml_dtypes, name))
    plain = np.int8 if name == "int4" else np.float32
    first = x.astype(plain)
    np.savez(tmp_path / "0.npz", x=first)
    for k in range(2):
        source, target = str(tmp_path / f"{k}.npz"), str(tmp_path / f"{k + 1}.npz")
        assert run_command(["run", model, "--input", source, "--output", target]) == 0
        assert name in capsys.readouterr().out
        with np.load(target) as z:
            assert z["y"].dtype == plain
            np.testing.assert_array_equal(z["y"], first)
            np.savez(tmp_path / f"{k + 1}.npz", x=z["y"])


def test_floats_between_the_numbers_are_refused(tmp_path: Path, capsys: Capture) -> None:
    model = str(saved(tmp_path / "m.onnx", "bfloat16"))
    np.savez(tmp_path / "x.npz", x=np.full((1, 4), 1.001, np.float32))
    assert run_command(["run", model, "--input", str(tmp_path / "x.npz")]) == 2
    assert "must be custom[bfloat16]16, not float32" in capsys.readouterr().err


def test_what_numpy_makes_of_such_arrays_is_taken(tmp_path: Path, capsys: Capture) -> None:
    model = str(saved(tmp_path / "m.onnx", "bfloat16"))
    np.savez(tmp_path / "x.npz", x=np.full((1, 4), 1.5, ml_dtypes.bfloat16))
    assert run_command(["run", model, "--input", str(tmp_path / "x.npz")]) == 0
    assert "max 1.5" in capsys.readouterr().out
