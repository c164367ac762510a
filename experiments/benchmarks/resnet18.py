"""ResNet-18 as torch exports it (He et al., 2015, table 1): 11.7 million random weights, and batch
norms that are not folded yet."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

STAGES = (64, 128, 256, 512)
CLASSES = 1000
SHAPE = (1, 3, 224, 224)


class _Network:
    def __init__(self, seed: int):
        self.rng = np.random.default_rng(seed)
        self.nodes: list[Any] = []
        self.weights: list[Any] = []

    def node(self, op: str, name: str, *inputs: str, **attrs: Any) -> str:
        """Add an operator; its result is called `name`."""
        from onnx import helper

        self.nodes.append(helper.make_node(op, list(inputs), [name], name=name, **attrs))
        return name

    def weight(self, name: str, values: NDArray[Any]) -> str:
        from onnx import numpy_helper

        self.weights.append(numpy_helper.from_array(values.astype(np.float32), name))
        return name

    def conv(self, x: str, name: str, channels: tuple[int, int], size: int, stride: int) -> str:
        """A convolution without bias, and its batch norm."""
        given, made = channels
        spread = np.sqrt(2 / (given * size * size))
        filters = self.rng.normal(0, spread, (made, given, size, size))
        y = self.node(
            "Conv", name, x, self.weight(f"{name}.weight", filters), kernel_shape=[size, size],
            strides=[stride, stride], pads=[size // 2] * 4,
        )  # fmt: skip
        drawn = {
            "weight": self.rng.uniform(0.5, 1.5, made),
            "bias": self.rng.normal(0, 0.1, made),
            "running_mean": self.rng.normal(0, 0.1, made),
            "running_var": self.rng.uniform(0.5, 1.5, made),
        }
        given_names = [self.weight(f"{name}.bn.{k}", v) for k, v in drawn.items()]
        return self.node("BatchNormalization", f"{name}.bn", y, *given_names)

    def block(self, x: str, name: str, channels: tuple[int, int], stride: int) -> str:
        """Two convolutions beside what they correct."""
        _, made = channels
        y = self.node("Relu", f"{name}.relu1", self.conv(x, f"{name}.1", channels, 3, stride))
        y = self.conv(y, f"{name}.2", (made, made), 3, 1)
        if stride > 1:
            x = self.conv(x, f"{name}.short", channels, 1, stride)
        return self.node("Relu", f"{name}.relu2", self.node("Add", f"{name}.add", y, x))


def write(path: Path, seed: int = 0) -> Path:
    """Write the network to a file, with an open batch size."""
    import onnx
    from onnx import TensorProto, helper

    net, before = _Network(seed), STAGES[0]
    x = net.node("Relu", "relu", net.conv("input", "first", (3, before), 7, 2))
    x = net.node("MaxPool", "pool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    for stage, made in enumerate(STAGES):
        for k in range(2):
            stride = 2 if stage and not k else 1
            x = net.block(x, f"layer{stage + 1}.{k}", (before, made), stride)
            before = made
    x = net.node("Flatten", "flat", net.node("GlobalAveragePool", "mean", x))
    w = net.weight("fc.weight", net.rng.normal(0, before**-0.5, (CLASSES, before)))
    net.node("Gemm", "output", x, w, net.weight("fc.bias", np.zeros(CLASSES)), transB=1)
    given = helper.make_tensor_value_info("input", TensorProto.FLOAT, ["batch", *SHAPE[1:]])
    out = helper.make_tensor_value_info("output", TensorProto.FLOAT, ["batch", CLASSES])
    graph = helper.make_graph(net.nodes, "resnet18", [given], [out], net.weights)
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    return path
