"""Networks with open height and width whose parts meet: pyramids, encoders with decoders."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper
from onnx_models import model

NEAREST = {
    "mode": "nearest",
    "coordinate_transformation_mode": "asymmetric",
    "nearest_mode": "floor",
}


class Net:
    """Nodes over the input x, float32 [n, channels, h, w]; every node is called after its value."""

    def __init__(self, channels: int = 2, shape: Sequence[Any] | None = None, seed: int = 0):
        self.channels, self.rng = channels, np.random.default_rng(seed)
        self.shape = list(shape or ("n", channels, "h", "w"))
        self.nodes: list[onnx.NodeProto] = []
        self.weights: dict[str, np.ndarray] = {}

    def op(self, kind: str, *args: str, **attrs: Any) -> str:
        """Append a node."""
        out = f"{kind.lower()}{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(args), [out], name=out, **attrs))
        return out

    def ints(self, *values: int) -> str:
        """A constant vector."""
        name = f"ints{len(self.weights)}"
        self.weights[name] = np.array(values, np.int64)
        return name

    def conv(self, x: str, kernel: int = 3, stride: int = 1, pad: int = 1, outputs: int = 0) -> str:
        """A convolution of all channels."""
        name = f"w{len(self.weights)}"
        size = (outputs or self.channels, self.channels, kernel, kernel)
        self.weights[name] = self.rng.normal(size=size, scale=0.4).astype(np.float32)
        return self.op("Conv", x, name, strides=[stride] * 2, pads=[pad] * 4)

    def pool(self, x: str, kernel: int = 2, stride: int = 2, pad: int = 0, ceil: int = 0) -> str:
        """Max pooling."""
        more = {"strides": [stride] * 2, "pads": [pad] * 4, "ceil_mode": ceil}
        return self.op("MaxPool", x, kernel_shape=[kernel] * 2, **more)

    def larger(self, x: str, factor: int = 2) -> str:
        """Nearest neighbours."""
        name = f"scales{len(self.weights)}"
        self.weights[name] = np.array([1, 1, factor, factor], np.float32)
        return self.op("Resize", x, "", name, **NEAREST)

    def proto(self, *outputs: str) -> onnx.ModelProto:
        """The model."""
        return model(self.nodes, {"x": self.shape}, outputs, self.weights)


def pyramid(levels: int = 3, join: str = "Add") -> onnx.ModelProto:
    """A feature pyramid: strided convolutions down, and up again by scales."""
    net = Net()
    down = [net.op("Relu", net.conv("x", stride=2))]
    for _ in range(levels - 1):
        down.append(net.op("Relu", net.conv(down[-1], stride=2)))
    top = down.pop()
    while down:
        side, above = net.conv(down.pop(), kernel=1, pad=0), net.larger(top)
        both = net.op(join, side, above) if join != "Concat" else net.op(join, side, above, axis=1)
        net.channels = 4 if join == "Concat" else 2
        top = net.conv(both, outputs=2)
        net.channels = 2
    return net.proto(top)


def decoder() -> onnx.ModelProto:
    """A U-net: pooling rounds down, and what comes up meets what went down."""
    net = Net()
    first = net.conv("x")
    second = net.conv(net.pool(first))
    low = net.conv(net.pool(second))
    middle = net.op("Concat", net.larger(low), second, axis=1)
    net.channels = 4
    up = net.larger(net.conv(middle, outputs=2))
    net.channels = 2
    return net.proto(net.op("Add", up, first))


def detector(classes: int = 3, widths: Sequence[int] = (4, 8, 8)) -> onnx.ModelProto:
    """Of the shape of YOLOv8: a backbone, a pyramid up and down again, a head for each level: boxes
    of a distribution over 4 places, classes by sigmoid, all anchors in one row."""
    net = Net(3)

    def block(x: str, outputs: int, stride: int = 1, kernel: int = 3) -> str:
        y = net.conv(x, kernel, stride, kernel // 2, outputs)
        net.channels = outputs
        return net.op("Mul", y, net.op("Sigmoid", y))

    def joined(a: str, b: str, channels: int) -> str:
        net.channels = channels
        return net.op("Concat", a, b, axis=1)

    a, b, c = widths
    p3 = block(block(block("x", a, 2), a, 2), a, 2)
    p4 = block(p3, b, 2)
    p5 = block(p4, c, 2)
    spread = net.pool(p5, 5, 1, 2)
    p5 = block(joined(p5, spread, 2 * c), c, kernel=1)
    n4 = block(joined(net.larger(p5), p4, b + c), b)
    n3 = block(joined(net.larger(n4), p3, a + b), a)
    net.channels = a
    m4 = block(joined(block(n3, a, 2), n4, a + b), b)
    net.channels = b
    m5 = block(joined(block(m4, b, 2), p5, b + c), c)
    flat = []
    for level, channels in ((n3, a), (m4, b), (m5, c)):
        net.channels = channels
        boxes = net.conv(level, 1, 1, 0, 16)
        scores = net.conv(level, 1, 1, 0, classes)
        both = net.op("Concat", boxes, scores, axis=1)
        flat.append(net.op("Reshape", both, net.ints(0, 16 + classes, -1)))
    row = net.op("Concat", *flat, axis=2)
    boxes = net.op("Slice", row, net.ints(0), net.ints(16), net.ints(1))
    apart = net.op("Reshape", boxes, net.ints(0, 4, 4, -1))
    places = net.op("Softmax", net.op("Transpose", apart, perm=[0, 2, 1, 3]), axis=1)
    net.weights["places"] = np.arange(4, dtype=np.float32).reshape(1, 4, 1, 1)
    expected = net.op("Conv", places, "places")
    sides = net.op("Reshape", expected, net.ints(0, 4, -1))
    scores = net.op("Slice", row, net.ints(16), net.ints(16 + classes), net.ints(1))
    return net.proto(net.op("Concat", sides, net.op("Sigmoid", scores), axis=1))
