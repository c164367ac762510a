"""Layers of a quantized model are compared where sizes are found while it runs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from experiments.cli.main import run_command


def test_rows_that_a_mask_chooses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make, rng = helper.make_node, np.random.default_rng(2)
    nodes = [
        make("MatMul", ["x", "w"], ["h"]),
        make("Compress", ["h", "mask"], ["chosen"], axis=0),
        make("Relu", ["chosen"], ["r"]),
        make("MatMul", ["r", "v"], ["y"]),
    ]
    weights = [
        numpy_helper.from_array(rng.standard_normal(s).astype(np.float32), name)
        for name, s in (("w", (4, 8)), ("v", (8, 3)))
    ]
    inputs = [
        helper.make_tensor_value_info("x", 1, [6, 4]),
        helper.make_tensor_value_info("mask", onnx.TensorProto.BOOL, [6]),
    ]
    graph = helper.make_graph(
        nodes, "g", inputs, [helper.make_tensor_value_info("y", 1, ["k", 3])], weights
    )
    model, data, plan = (tmp_path / name for name in ("m.onnx", "m.npz", "p.json"))
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)]), model)
    x, mask = rng.standard_normal((6, 4)).astype(np.float32), np.arange(6) % 2 == 0
    np.savez(data, x=x, mask=mask)
    assert run_command(["quantize", str(model), "--calib", str(data), "--plan", str(plan)]) == 0
    capsys.readouterr()
    code = run_command(["compare", str(model), "--input", str(data), "--plan", str(plan)])
    captured = capsys.readouterr()
    assert code == 0, captured.err
    assert "3x8" in captured.out
    assert "3x3" in captured.out
