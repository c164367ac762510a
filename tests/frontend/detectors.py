"""Small detection models, written as exporters write the large ones: anchors, decoded boxes, what
is found at run time, and non-maximum suppression."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper
from onnx_models import model

rng = np.random.default_rng(11)


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


class Net:
    """Nodes and weights as they come up; every method gives the name of its result."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: dict[str, np.ndarray] = {}

    def const(self, value: Any) -> str:
        """A weight."""
        name = f"w{len(self.weights)}"
        self.weights[name] = np.asarray(value)
        return name

    def __call__(self, op: str, *args: Any, outputs: int = 1, **attrs: Any) -> Any:
        """One node; operands that are no names are weights."""
        names = [a if isinstance(a, str) else self.const(a) for a in args]
        out = [f"v{len(self.nodes)}_{k}" for k in range(outputs)]
        self.nodes.append(helper.make_node(op, names, out, **attrs))
        return out[0] if outputs == 1 else out

    def conv(self, x: str, inner: int, outer: int, kernel: int = 3, stride: int = 1) -> str:
        """A convolution with random weights, and its bias."""
        weight = rng.normal(0, 1 / np.sqrt(inner * kernel**2), (outer, inner, kernel, kernel))
        bias = rng.normal(0, 0.3, outer).astype(np.float32)
        pads = [kernel // 2] * 4
        return str(self("Conv", x, weight.astype(np.float32), bias, kernel_shape=[kernel] * 2,
                        strides=[stride] * 2, pads=pads))  # fmt: skip

    def size(self, x: str, axis: int) -> str:
        """[1]: one size of a tensor."""
        return str(self("Gather", self("Shape", x), ints(axis), axis=0))

    def finish(self, inputs: dict[str, Any], outputs: dict[str, str]) -> onnx.ModelProto:
        """The model with these outputs."""
        for name, value in outputs.items():
            self.nodes.append(helper.make_node("Identity", [value], [name]))
        return model(self.nodes, inputs, list(outputs), self.weights, opset=16)


def grid(net: Net, x: str, stride: int) -> str:
    """[h * w, 2]: the middles of the cells of a feature map, as exporters compute them."""
    rows, columns = (
        net("Range", np.int64(0), net("Squeeze", net.size(x, k), ints(0)), np.int64(1))
        for k in (2, 3)
    )
    shape = net("Concat", net.size(x, 2), net.size(x, 3), axis=0)
    down = net("Expand", net("Unsqueeze", rows, ints(1)), shape)
    along = net("Expand", net("Unsqueeze", columns, ints(0)), shape)
    flat = [net("Reshape", v, ints(-1, 1)) for v in (along, down)]
    cells = net("Cast", net("Concat", *flat, axis=1), to=TensorProto.FLOAT)
    return str(net("Mul", net("Add", cells, np.float32(0.5)), np.float32(stride)))


def yolo(suppress: bool, classes: int = 3) -> onnx.ModelProto:
    """Two scales of cells, each with a box and scores; the tail decodes them, and with `suppress`
    gives (image, class, box) of what is left."""
    net = Net()
    x = net("Relu", net.conv("images", 3, 8, stride=2))
    parts = []
    for stride in (4, 8):
        x = net("Relu", net.conv(x, 8, 8, stride=2))
        out = net.conv(x, 8, 4 + classes, kernel=1)
        flat = net("Reshape", out, ints(0, 4 + classes, -1))
        flat = net("Transpose", flat, perm=[0, 2, 1])
        box, score = net("Split", flat, ints(4, classes), axis=2, outputs=2)
        offset, side = net("Split", box, ints(2, 2), axis=2, outputs=2)
        middle = net("Add", net("Mul", offset, np.float32(stride)), grid(net, x, stride))
        side = net("Mul", net("Exp", side), np.float32(2 * stride))
        parts.append(net("Concat", middle, side, net("Sigmoid", score), axis=2))
    out = net("Concat", *parts, axis=1)
    given = {"images": ["batch", 3, "height", "width"]}
    if not suppress:
        return net.finish(given, {"output0": out})
    box, score = net("Split", out, ints(4, classes), axis=2, outputs=2)
    chosen = net("NonMaxSuppression", box, net("Transpose", score, perm=[0, 2, 1]), ints(20),
                 np.float32([0.45]), np.float32([0.5]), center_point_box=1)  # fmt: skip
    at = net("Gather", chosen, ints(0, 2), axis=1)
    return net.finish(given, {"selected": chosen, "boxes": net("GatherND", box, at)})


def ssd(classes: int = 4) -> onnx.ModelProto:
    """An image [3, h, w] of any size is resized; for every class, boxes with a score above a bound
    are found and the best are kept; then suppression of all classes at once, each moved apart."""
    net = Net()
    height, width = net.size("image", 1), net.size("image", 2)
    batch = net("Unsqueeze", "image", ints(0))
    sizes = net("Concat", ints(1, 3), ints(32, 32), axis=0)
    x = net("Resize", batch, "", "", sizes, mode="linear",
            coordinate_transformation_mode="pytorch_half_pixel")  # fmt: skip
    x = net("Relu", net.conv(net("Relu", net.conv(x, 3, 8, stride=2)), 8, 8, stride=2))
    out = net("Reshape", net("Transpose", net.conv(x, 8, 4 + classes), perm=[0, 2, 3, 1]),
              ints(-1, 4 + classes))  # fmt: skip
    box, logits = net("Split", out, ints(4, classes), axis=1, outputs=2)
    offset, side = net("Split", box, ints(2, 2), axis=1, outputs=2)
    middle = net("Add", net("Mul", offset, np.float32(4)), grid(net, x, 4))
    half = net("Mul", net("Exp", net("Clip", side, "", np.float32(2))), np.float32(4))
    ends = [net(op, middle, half) for op in ("Sub", "Add")]
    boxes = net("Clip", net("Concat", *ends, axis=1), np.float32(0), np.float32(32))
    scores = net("Softmax", logits, axis=1)
    found: dict[str, list[str]] = {"boxes": [], "scores": [], "labels": []}
    for k in range(1, classes):
        score = net("Gather", scores, np.int64(k), axis=1)
        at = net("NonZero", net("Greater", score, np.float32(0.3)))
        at = net("Transpose", at, perm=[1, 0])
        score, mine = net("GatherND", score, at), net("GatherND", boxes, at)
        most = net("ReduceMin", net("Concat", ints(15), net.size(score, 0), axis=0), keepdims=0)
        best, order = net("TopK", score, net("Reshape", most, ints(-1)), outputs=2)
        found["boxes"].append(net("Gather", mine, order))
        found["scores"].append(best)
        label = helper.make_tensor("v", TensorProto.INT64, [1], [k])
        found["labels"].append(net("ConstantOfShape", net("Shape", best), value=label))
    boxes, scores, labels = (net("Concat", *found[k], axis=0) for k in found)
    apart = net("Mul", net("Cast", labels, to=1), np.float32(100))
    moved = net("Add", boxes, net("Unsqueeze", apart, ints(1)))
    wide = [net("Unsqueeze", v, ints(*axes)) for v, axes in ((moved, [0]), (scores, [0, 1]))]
    chosen = net("NonMaxSuppression", *wide, ints(2**62), np.float32([0.5]))
    rows = net("Squeeze", net("Gather", chosen, ints(2), axis=1), ints(1))
    rows = net("Slice", rows, ints(0), ints(25), ints(0))
    scale = net("Cast", net("Concat", width, height, width, height, axis=0), to=1)
    scale = net("Div", scale, np.float32(32))
    kept = net("Mul", net("Gather", boxes, rows), scale)
    score, label = net("Gather", scores, rows), net("Gather", labels, rows)
    return net.finish({"image": [3, "h", "w"]}, {"boxes": kept, "scores": score, "labels": label})


def two_stages() -> onnx.ModelProto:
    """Regions proposed by a first stage are cut out of the level of a pyramid that fits their size,
    and put back in their order."""
    net = Net()
    fine = net("Relu", net.conv("image", 3, 6, stride=2))
    coarse = net("Relu", net.conv(fine, 6, 6, stride=2))
    shape = net("Shape", fine)
    top = net("Resize", coarse, "", "", shape, mode="nearest",
              coordinate_transformation_mode="asymmetric", nearest_mode="floor")  # fmt: skip
    fine = net("Add", fine, top)
    out = net("Reshape", net("Transpose", net.conv(fine, 6, 5), perm=[0, 2, 3, 1]), ints(-1, 5))
    box, score = net("Split", out, ints(4, 1), axis=1, outputs=2)
    offset, side = net("Split", box, ints(2, 2), axis=1, outputs=2)
    middle, half = (
        net("Add", offset, grid(net, fine, 2)),
        net("Mul", net("Exp", side), np.float32(3)),
    )
    boxes = net("Concat", *(net(op, middle, half) for op in ("Sub", "Add")), axis=1)
    score = net("Squeeze", score, ints(1))
    most = net("ReduceMin", net("Concat", ints(40), net.size(score, 0), axis=0), keepdims=0)
    best, order = net("TopK", score, net("Reshape", most, ints(-1)), outputs=2)
    boxes = net("Gather", boxes, order)
    wide = net("Unsqueeze", boxes, ints(0)), net("Unsqueeze", best, ints(0, 1))
    chosen = net("NonMaxSuppression", *wide, ints(30), np.float32([0.4]))
    boxes = net("Gather", boxes, net("Squeeze", net("Gather", chosen, ints(2), axis=1), ints(1)))
    low, high = net("Split", boxes, ints(2, 2), axis=1, outputs=2)
    area = net("ReduceProd", net("Sub", high, low), axes=[1], keepdims=0)
    level = net("Cast", net("Greater", area, np.float32(45)), to=TensorProto.INT64)
    empty = net("ConstantOfShape", net("Concat", net.size(boxes, 0), ints(6, 3, 3), axis=0))
    for k, (features, scale) in enumerate(((fine, 0.5), (coarse, 0.25))):
        at = net("Squeeze", net("NonZero", net("Equal", level, np.int64(k))), ints(0))
        zeros = net("ConstantOfShape", net("Shape", at),
                    value=helper.make_tensor("v", TensorProto.INT64, [1], [0]))  # fmt: skip
        cut = net("RoiAlign", features, net("Gather", boxes, at), zeros, output_height=3,
                  output_width=3, sampling_ratio=2, spatial_scale=scale)  # fmt: skip
        wide_at = net("Expand", net("Reshape", at, ints(-1, 1, 1, 1)), net("Shape", cut))
        empty = net("ScatterElements", empty, wide_at, cut, axis=0)
    head = net("Flatten", empty, axis=1)
    weight = rng.normal(0, 0.2, (54, 3)).astype(np.float32)
    return net.finish(
        {"image": [1, 3, "h", "w"]},
        {"boxes": boxes, "scores": net("Softmax", net("MatMul", head, weight), axis=1)},
    )
