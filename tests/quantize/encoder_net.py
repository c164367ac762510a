"""A text encoder as exporters of BERT write it, with fixed random weights, as an ONNX model."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from compiler.types.dtypes import Array

VOCABULARY, WIDTH, HEADS, LAYERS = 60, 32, 4, 2


class Encoder:
    """Collects nodes and weights.

    `fused`: layer norm as one node instead of nine, which are as torch writes them, or as
    TensorFlow does (`tensorflow`). `outliers`: factor by which the gains of two channels of every
    layer norm are larger, as they are in trained networks of this kind.
    """

    def __init__(self, fused: bool, outliers: float, tensorflow: bool = False, seed: int = 0):
        self.rng = np.random.default_rng(seed)
        self.fused, self.outliers, self.tensorflow = fused, outliers, tensorflow
        self.nodes: list[Any] = []
        self.weights: dict[str, Array] = {}

    def const(self, value: Any, dtype: Any = np.float32) -> str:
        name = f"w{len(self.weights)}"
        self.weights[name] = np.asarray(value, dtype)
        return name

    def op(self, op: str, *inputs: str, **attrs: Any) -> str:
        name = f"{op}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, list(inputs), [name], name, **attrs))
        return name

    def dense(self, x: str, inputs: int, outputs: int) -> str:
        w = self.rng.normal(0, inputs**-0.5, (inputs, outputs))
        product = self.op("MatMul", x, self.const(w))
        return self.op("Add", product, self.const(self.rng.normal(0, 0.1, outputs)))

    def norm(self, x: str) -> str:
        gain = self.rng.uniform(0.7, 1.3, WIDTH)
        gain[[5, 17]] *= self.outliers
        gamma, beta = self.const(gain), self.const(self.rng.normal(0, 0.1, WIDTH))
        if self.fused:
            return self.op("LayerNormalization", x, gamma, beta, axis=-1, epsilon=1e-5)
        mean = self.op("ReduceMean", x, axes=[-1])
        centred = self.op("Sub", x, mean)
        square = self.op("Pow", centred, self.const(2.0))
        spread = self.op("Add", self.op("ReduceMean", square, axes=[-1]), self.const(1e-5))
        deviation = self.op("Sqrt", spread)
        if self.tensorflow:
            factor = self.op("Mul", self.op("Reciprocal", deviation), gamma)
            rest = self.op("Sub", beta, self.op("Mul", mean, factor))
            return self.op("Add", self.op("Mul", x, factor), rest)
        unit = self.op("Div", centred, deviation)
        return self.op("Add", self.op("Mul", unit, gamma), beta)

    def gelu(self, x: str) -> str:
        bent = self.op("Erf", self.op("Div", x, self.const(2**0.5)))
        both = self.op("Mul", x, self.op("Add", bent, self.const(1.0)))
        return self.op("Mul", both, self.const(0.5))

    def heads(self, x: str, *order: int) -> str:
        shape = self.const([0, 0, HEADS, WIDTH // HEADS], np.int64)
        return self.op("Transpose", self.op("Reshape", x, shape), perm=order)

    def attention(self, x: str) -> str:
        q, k, v = (self.dense(x, WIDTH, WIDTH) for _ in range(3))
        scores = self.op("MatMul", self.heads(q, 0, 2, 1, 3), self.heads(k, 0, 2, 3, 1))
        scaled = self.op("Div", scores, self.const((WIDTH // HEADS) ** 0.5))
        seen = self.op("MatMul", self.op("Softmax", scaled, axis=-1), self.heads(v, 0, 2, 1, 3))
        flat = self.op("Transpose", seen, perm=(0, 2, 1, 3))
        joined = self.op("Reshape", flat, self.const([0, 0, WIDTH], np.int64))
        return self.dense(joined, WIDTH, WIDTH)

    def layer(self, x: str) -> str:
        x = self.norm(self.op("Add", x, self.attention(x)))
        inner = self.gelu(self.dense(x, WIDTH, 4 * WIDTH))
        return self.norm(self.op("Add", x, self.dense(inner, 4 * WIDTH, WIDTH)))


def encoder(
    length: int | str, fused: bool = False, outliers: float = 12.0, tensorflow: bool = False
) -> onnx.ModelProto:
    """Tokens int64 [n, length] -> scores of 5 classes, float32 [n, 5]; see Encoder."""
    e = Encoder(fused, outliers, tensorflow)
    words = e.const(e.rng.normal(0, 1, (VOCABULARY, WIDTH)))
    x = e.norm(e.op("Gather", words, "tokens"))
    for _ in range(LAYERS):
        x = e.layer(x)
    first = e.op("Gather", x, e.const(0, np.int64), axis=1)
    scores = e.dense(e.op("Tanh", e.dense(first, WIDTH, WIDTH)), WIDTH, 5)
    e.nodes.append(helper.make_node("Identity", [scores], ["scores"]))
    tokens = helper.make_tensor_value_info("tokens", TensorProto.INT64, ["n", length])
    stored = [numpy_helper.from_array(a, n) for n, a in e.weights.items()]
    out = helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["n", 5])
    graph = helper.make_graph(e.nodes, "encoder", [tokens], [out], stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def sentences(count: int, length: int, seed: int) -> Array:
    """Random tokens."""
    return np.random.default_rng(seed).integers(0, VOCABULARY, (count, length))
