"""Shapes that a model computes from its input's are folded to symbolic expressions at import."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx_models import assert_close, model, run_onnxruntime

import compiler
from compiler.ir.expr import tensor_type

node = helper.make_node
NEAREST = {
    "mode": "nearest",
    "coordinate_transformation_mode": "asymmetric",
    "nearest_mode": "floor",
}


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


@dataclass(frozen=True)
class Graph:
    """Nodes over the input x, constants, x's shape, and the shape that y gets."""

    nodes: list[onnx.NodeProto]
    constants: dict[str, np.ndarray] = field(default_factory=dict)
    shape: tuple[Any, ...] = ("n", 3, 4, "w")
    result: str = ""

    def model(self) -> onnx.ModelProto:
        return model(self.nodes, {"x": list(self.shape)}, ["y"], self.constants)

    def input(self, n: int, w: int) -> np.ndarray:
        shape = [{"n": n, "w": w}.get(d, d) for d in self.shape]
        return np.random.default_rng(w).normal(size=shape).astype(np.float32)


SHAPE = node("Shape", ["x"], ["s"])
GRAPHS = {
    "heads": Graph(
        [
            SHAPE,
            node("Gather", ["s", "at"], ["kept"]),
            node("Concat", ["kept", "heads"], ["to"], axis=0),
            node("Transpose", ["x"], ["t"], perm=[0, 2, 1]),
            node("Reshape", ["t", "to"], ["y"]),
        ],
        {"at": ints(0, 2), "heads": ints(2, -1)},
        ("n", 6, "w"),
        "(n, w, 2, 3)",
    ),
    "flattened": Graph([node("Flatten", ["x"], ["y"], axis=2)], result="(n*3, w*4)"),
    "product": Graph(
        [
            node("Shape", ["x"], ["s"], start=2),
            node("ReduceProd", ["s"], ["p"], keepdims=1),
            node("Concat", ["lead", "p"], ["to"], axis=0),
            node("Reshape", ["x", "to"], ["y"]),
        ],
        {"lead": ints(-1, 3)},
        result="(n, 3, w*4)",
    ),
    "expanded where a size is not -1": Graph(
        [
            SHAPE,
            node("Equal", ["s", "minus"], ["is"]),
            node("Where", ["is", "ones", "s"], ["to"]),
            node("Expand", ["c", "to"], ["y"]),
        ],
        {"minus": ints(-1, -1, -1, -1), "ones": ints(1, 1, 1, 1), "c": np.float32([2])},
        result="(n, 3, 4, w)",
    ),
    "doubled through floats": Graph(
        [
            SHAPE,
            node("Slice", ["s", "two", "four"], ["hw"]),
            node("Cast", ["hw"], ["f"], to=1),
            node("Mul", ["f", "scale"], ["g"]),
            node("Floor", ["g"], ["whole"]),
            node("Cast", ["whole"], ["new"], to=7),
            node("Slice", ["s", "zero", "two"], ["nc"]),
            node("Concat", ["nc", "new"], ["sizes"], axis=0),
            node("Resize", ["x", "", "", "sizes"], ["y"], **NEAREST),
        ],
        {"zero": ints(0), "two": ints(2), "four": ints(4), "scale": np.float32([2, 2])},
        result="(n, 3, 8, w*2)",
    ),
    "rounded up to fours": Graph(
        [
            SHAPE,
            node("Gather", ["s", "at"], ["w"]),
            node("Mod", ["w", "four"], ["m"]),
            node("Sub", ["w", "m"], ["down"]),
            node("Add", ["down", "four"], ["up"]),
            node("Concat", ["ones", "up"], ["to"], axis=0),
            node("Expand", ["c", "to"], ["y"]),
        ],
        {"at": ints(3), "four": ints(4), "ones": ints(1), "c": np.float32([2])},
        result="(1, w - (w % 4) + 4)",
    ),
    "window with a ceiling": Graph(
        [node("MaxPool", ["x"], ["y"], kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1)],
        result="(n, 3, 2, ((w + 1) // 2))",
    ),
    "sequence": Graph(
        [node("Conv", ["x", "k"], ["y"], strides=[2])],
        {"k": np.ones((5, 6, 3), np.float32)},
        ("n", 6, "w"),
        "(n, 5, ((w + 1) // 2) - 1)",
    ),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_a_shape_is_folded_and_right_at_every_size(name: str) -> None:
    graph = GRAPHS[name]
    proto = graph.model()
    mod = compiler.from_onnx(proto)
    (y,) = mod["main"].results
    assert f"Tensor[{graph.result}, float32]" == str(tensor_type(y))
    exe = compiler.build(mod)
    for n, w in ((2, 8), (1, 13), (3, 6)):
        x = graph.input(n, w)
        want = run_onnxruntime(proto, {"x": x})
        assert_close(exe(x), want)
        assert_close(compiler.evaluate(mod, x), want)


@pytest.mark.parametrize(
    "nodes",
    [
        [SHAPE, node("Cast", ["s"], ["f"], to=1), node("Mul", ["f", "half"], ["g"]),
         node("Cast", ["g"], ["to"], to=7), node("Resize", ["x", "", "", "to"], ["y"], **NEAREST)],
        [node("AveragePool", ["x"], ["p"], kernel_shape=[2, 2], strides=[2, 2]), SHAPE,
         node("Resize", ["p", "", "", "s"], ["y"], **NEAREST)],
    ],
    ids=["half", "back"],
)  # fmt: skip
def test_sizes_that_cannot_be_folded_are_computed(nodes: list[onnx.NodeProto]) -> None:
    graph = Graph(nodes, {"half": np.float32([1, 1, 0.5, 0.5])})
    proto = graph.model()
    exe = compiler.build(mod := compiler.from_onnx(proto))
    for n, w in ((2, 8), (1, 13)):
        x = graph.input(n, w)
        want = run_onnxruntime(proto, {"x": x})
        assert_close(exe(x), want)
        assert_close(compiler.evaluate(mod, x), want)
