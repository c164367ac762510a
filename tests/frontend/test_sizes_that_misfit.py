"""Known sizes that a model's parts do not fit are refused with what the model takes for granted, as
calls of the open model are: import, and every verb with a fixed shape."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx_models import model
from open_nets import Net, decoder, detector, pyramid

import compiler
import experiments
from compiler.errors import InputError, ModelError
from experiments.cli.main import run_command

NETS = {"pyramid": pyramid, "decoder": decoder, "detector": detector}


@pytest.mark.parametrize("name", NETS)
def test_the_sentence_is_that_of_the_open_model(name: str) -> None:
    proto = NETS[name]()
    mod = compiler.from_onnx(proto)
    channels = proto.graph.input[0].type.tensor_type.shape.dim[1].dim_value
    x = np.zeros((1, channels, 32, 33), np.float32)
    with pytest.raises(InputError) as called:
        compiler.evaluate(mod, x)
    assert "w = 33 (axis 3 of input 'x') does not fit: node" in str(called.value)
    for shape in (x.shape, ("n", *x.shape[1:]), (None, None, -1, np.int64(33))):
        with pytest.raises(ModelError) as imported:
            compiler.from_onnx(proto, shapes={"x": shape})
        assert str(imported.value) == str(called.value)


def test_other_misfits_are_told_as_they_were() -> None:
    for shapes in ({"x": 3}, {"z": (1,)}, {"x": (1, 2, 3, 4, 5, 6)}):
        with pytest.raises(ModelError, match=r"shapes|input"):
            compiler.from_onnx(decoder(), shapes=shapes)
    net = Net(shape=("n", 2, "h", "w"))
    net.weights["row"] = np.ones((1, 1, 1, 3), np.float32)
    proto = model(
        [onnx.helper.make_node("Add", ["x", "row"], ["y"], name="sum")],
        {"x": ["n", 2, "h", 5]}, ["y"], net.weights,
    )  # fmt: skip
    with pytest.raises(ModelError, match=r"'sum' \(Add\): .* do not broadcast"):
        compiler.from_onnx(proto, shapes={"x": (1, 2, 4, 5)})


@pytest.mark.thorough
def test_every_verb_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, data = tmp_path / "m.onnx", tmp_path / "x.npz"
    onnx.save(decoder(), path)
    np.savez(data, x=np.zeros((2, 2, 8, 9), np.float32))
    sentence = "w = 9 (axis 3 of input 'x') does not fit: node"
    for verb in (
        ["inspect", "--shape", "x=1x2x8x9"],
        ["bench", "--shape", "x=1x2x8x9", "--runs", "1"],
        ["run", "--input", str(data), "--output", str(tmp_path / "y.npz")],
        ["quantize", "--calib", str(data), "-o", str(tmp_path / "q.onnx")],
    ):
        assert run_command([verb[0], str(path), *verb[1:]]) == 2
        assert sentence in "".join(capsys.readouterr()), verb
    spec = {"models": [str(path)], "dataset": str(data), "schemes": ["float32"], "metric": "sqnr"}
    rows = experiments.sweep(spec, tmp_path / "r.csv")
    assert sentence in rows["error"][0]
