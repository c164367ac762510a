"""What costs take open sizes for: the smallest that the model takes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx_models import model
from open_nets import Net, decoder, detector, pyramid

import compiler
from compiler.errors import InputError
from compiler.transform.analysis import cost
from experiments.cli.main import run_command


def square() -> onnx.ModelProto:
    """Height and width, which must be equal, and more than a window."""
    net = Net(shape=("n", 2, "h", "w"))
    turned = net.op("Transpose", net.conv("x", 3, pad=0), perm=[0, 1, 3, 2])
    return net.proto(net.op("Add", turned, net.conv("x", 3, pad=0)))


def rows() -> onnx.ModelProto:
    """A batch that is three rows or a multiple of them."""
    nodes = [
        onnx.helper.make_node("Reshape", ["x", "shape"], ["r"], name="threes"),
        onnx.helper.make_node("MatMul", ["r", "w"], ["y"]),
    ]
    weights = {"shape": np.array([-1, 12]), "w": np.ones((12, 2), np.float32)}
    return model(nodes, {"x": ["n", 4]}, ["y"], weights)


NETS: dict[str, tuple[Callable[[], onnx.ModelProto], list[int]]] = {
    "pyramid": (pyramid, [1, 7, 7]),
    "decoder": (decoder, [1, 4, 4]),
    "detector": (detector, [1, 25, 25]),
    "square": (square, [1, 3, 3]),
    "rows": (rows, [3]),
}


@pytest.mark.parametrize("name", NETS)
def test_costs_are_those_of_the_smallest_sizes(name: str) -> None:
    make, smallest = NETS[name]
    mod = compiler.from_onnx(make())
    (x,) = mod.main.params
    found = cost(mod)
    assert list(found.assumed.values()) == smallest
    shape = [d if isinstance(d, int) else found.assumed[str(d)] for d in x.type.shape]
    known = cost(compiler.from_onnx(make(), shapes={"x": shape}))
    assert found.macs == known.macs > 0
    compiler.evaluate(mod, np.zeros(shape, np.float32))
    for axis, d in enumerate(x.type.shape):
        if not isinstance(d, int) and shape[axis] > 1:
            less = [n - (k == axis) for k, n in enumerate(shape)]
            with pytest.raises(InputError, match=r"does not fit|too small"):
                compiler.evaluate(mod, np.zeros(less, np.float32))


def test_inspect_says_which(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, said in (("decoder", "n = 1, h = 4, w = 4"), ("rows", "n = 3")):
        path = tmp_path / f"{name}.onnx"
        onnx.save(NETS[name][0](), path)
        assert run_command(["inspect", str(path)]) == 0
        assert f"with {said}; --shape fixes" in capsys.readouterr().out
        assert run_command(["inspect", str(path), "--json"]) == 0
        sizes = json.loads(capsys.readouterr().out)["assumed_sizes"]
        assert list(sizes.values()) == NETS[name][1]
