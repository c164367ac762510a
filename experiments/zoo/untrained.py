"""Networks of the digits to train from scratch: `python -m experiments.zoo.untrained FOLDER`.

Files of graphs without weights: each weight is one number repeated, so that they are small. A
training draws its own (`initial = "random"`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from experiments.files import atomic_path

OPSET = 20


class Graph:
    """Collects the nodes of a model; each is called as its result."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.held: list[onnx.TensorProto] = []

    def node(self, op: str, name: str, *inputs: str, **attributes: Any) -> str:
        """A node and its one result."""
        made = helper.make_node(op, list(inputs), [name], name, **attributes)
        self.nodes.append(made)
        return name

    def numbers(self, name: str, values: Sequence[int]) -> str:
        """A constant int64 [n]."""
        self.held.append(numpy_helper.from_array(np.array(values, np.int64), name))
        return name

    def weight(self, name: str, *shape: int, value: float = 0.0) -> str:
        """A float32 weight that is one number everywhere."""
        held = helper.make_tensor("value", TensorProto.FLOAT, [1], [value])
        return self.node("ConstantOfShape", name, self.numbers(f"{name}.shape", shape), value=held)

    def dense(self, name: str, x: str, inputs: int, outputs: int) -> str:
        """The last axis times a matrix, and a bias."""
        product = self.node("MatMul", name, x, self.weight(f"{name}.weight", inputs, outputs))
        return self.node("Add", f"{name}_sum", product, self.weight(f"{name}.bias", outputs))

    def layer_norm(self, name: str, x: str, width: int) -> str:
        """Normalization of the last axis, with gain and shift."""
        gain = self.weight(f"{name}.gain", width, value=1)
        shift = self.weight(f"{name}.shift", width)
        return self.node("LayerNormalization", name, x, gain, shift, axis=-1)

    def conv(self, name: str, x: str, inputs: int, outputs: int) -> str:
        """3 x 3, of every second position, then batch normalization and ReLU."""
        kernel = self.weight(f"{name}.weight", outputs, inputs, 3, 3)
        y = self.node("Conv", name, x, kernel, strides=[2, 2], pads=[1, 1, 1, 1])
        given = {"gain": 1, "shift": 0, "mean": 0, "variance": 1}
        norm = [self.weight(f"{name}_norm.{k}", outputs, value=v) for k, v in given.items()]
        return self.node(
            "Relu", f"{name}_relu", self.node("BatchNormalization", f"{name}_norm", y, *norm)
        )

    def attention(self, name: str, x: str, tokens: int, width: int, heads: int) -> str:
        """Every token with all others, in several heads (Vaswani et al. 2017)."""
        split = self.numbers(f"{name}.split", (0, tokens, heads, width // heads))
        each = {
            part: self.node("Reshape", f"{name}_{part}_heads",
                            self.dense(f"{name}_{part}", x, width, width), split)
            for part in ("queries", "keys", "values")
        }  # fmt: skip
        order = {"queries": (0, 2, 1, 3), "keys": (0, 2, 3, 1), "values": (0, 2, 1, 3)}
        q, k, v = (
            self.node("Transpose", f"{name}_{part}_turned", each[part], perm=order[part])
            for part in order
        )
        scale = (width // heads) ** -0.5
        self.held.append(numpy_helper.from_array(np.array(scale, np.float32), f"{name}.scale"))
        scores = self.node("Mul", f"{name}_scaled", self.node("MatMul", f"{name}_scores", q, k),
                           f"{name}.scale")  # fmt: skip
        shares = self.node("Softmax", f"{name}_shares", scores, axis=-1)
        found = self.node("MatMul", f"{name}_found", shares, v)
        turned = self.node("Transpose", f"{name}_back", found, perm=(0, 2, 1, 3))
        joined = self.numbers(f"{name}.joined", (0, tokens, width))
        return self.dense(
            f"{name}_out", self.node("Reshape", f"{name}_joined", turned, joined), width, width
        )

    def model(self, name: str, scores: str) -> bytes:
        """The model of digits [N, 1, 28, 28]."""
        graph = helper.make_graph(
            self.nodes, name,
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 1, 28, 28])],
            [helper.make_tensor_value_info(scores, TensorProto.FLOAT, ["N", 10])],
            self.held,
        )  # fmt: skip
        opsets = [helper.make_opsetid("", OPSET)]
        made = helper.make_model(
            graph, opset_imports=opsets, ir_version=9, producer_name="dtypelab"
        )
        onnx.checker.check_model(made)
        return bytes(made.SerializeToString(deterministic=True))


def cnn() -> bytes:
    """Two convolutions of 8 and 16 channels, each half as wide and high, with batch normalization
    and ReLU, and a dense layer: 9,122 weights, 78 thousand products a digit."""
    g = Graph()
    y = g.conv("conv2", g.conv("conv1", "x", 1, 8), 8, 16)
    flat = g.node("Flatten", "flat", y)
    matrix, bias = g.weight("scores.weight", 10, 784), g.weight("scores.bias", 10)
    return g.model("mnist_cnn", g.node("Gemm", "scores", flat, matrix, bias, transB=1))


def vit(width: int = 32, heads: int = 4, layers: int = 2) -> bytes:
    """A vision transformer of 16 patches of 7 x 7, 32 wide, two layers of four heads, norms before
    attention and before two dense layers with GELU, and the mean of all patches at the end
    (Dosovitskiy et al. 2020, without a class token)."""
    g, tokens = Graph(), 16
    kernel = g.weight("patches.weight", width, 1, 7, 7)
    bias = g.weight("patches.bias", width)
    y = g.node("Conv", "patches", "x", kernel, bias, strides=[7, 7])
    y = g.node("Reshape", "rows", y, g.numbers("rows.shape", (0, width, tokens)))
    y = g.node("Transpose", "tokens", y, perm=(0, 2, 1))
    y = g.node("Add", "placed", y, g.weight("places", tokens, width))
    for k in range(layers):
        normed = g.layer_norm(f"norm{k}a", y, width)
        y = g.node(
            "Add", f"layer{k}a", y, g.attention(f"attention{k}", normed, tokens, width, heads)
        )
        wide = g.dense(f"wide{k}", g.layer_norm(f"norm{k}b", y, width), width, 2 * width)
        y = g.node(
            "Add",
            f"layer{k}b",
            y,
            g.dense(f"narrow{k}", g.node("Gelu", f"gelu{k}", wide), 2 * width, width),
        )
    y = g.layer_norm("norm", y, width)
    y = g.node("ReduceMean", "mean", y, g.numbers("mean.axes", (1,)), keepdims=0)
    return g.model("mnist_vit_small", g.dense("scores", y, width, 10))


MODELS: dict[str, Callable[[], bytes]] = {"mnist_cnn": cnn, "mnist_vit_small": vit}


def main(folder: str) -> None:
    """Write every network to FOLDER/NAME.onnx."""
    for name, made in MODELS.items():
        with atomic_path(Path(folder) / f"{name}.onnx") as path:
            path.write_bytes(made())


if __name__ == "__main__":
    main(*sys.argv[1:])
