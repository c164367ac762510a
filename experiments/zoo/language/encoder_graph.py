"""The encoder as ONNX, in the plain operators that exporters write, from its weights alone.

Inputs `input_ids` and `attention_mask` [batch, sequence] int64, output `logits` [batch, classes].
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .decoder_graph import Graph
from .shape import EncoderShape

Weights = Mapping[str, NDArray[np.float32]]
#: What is added to scores of what is not there, as BERT has it. The least float32 would be infinite
#: in bfloat16, and 0 times it NaN.
MASKED = -10000.0


def encoder_model(shape: EncoderShape, weights: Weights) -> Any:
    """The ONNX model of a state dict of `encoder.encoder`; the same bytes for the same weights."""
    from onnx import TensorProto, helper

    g, dims = Graph(), ["batch", "sequence"]
    names = ("input_ids", "attention_mask")
    inputs = [helper.make_tensor_value_info(name, TensorProto.INT64, dims) for name in names]
    scores = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", shape.classes])
    _mask(g)
    x = _embedded(g, shape, weights)
    for layer in range(shape.layers):
        at = f"blocks.{layer}"
        attended = g.add("Add", x, _attention(g, shape, weights, x, at), name=f"{at}.attended")
        x = _norm(g, shape, weights, attended, f"{at}.after_attention")
        result = g.add("Add", x, _mlp(g, weights, x, at), name=f"{at}.result")
        x = _norm(g, shape, weights, result, f"{at}.after_mlp")
    first = g.add("Gather", x, g.constant("zero", 0), name="first", axis=1)
    pooled = g.add("Tanh", _linear(g, weights, first, "pooler"), name="pooled")
    _linear(g, weights, pooled, "scores", "logits")
    return g.model(inputs, [scores], "encoder")


def _linear(g: Graph, weights: Weights, x: str, layer: str, name: str = "") -> str:
    weight = g.constant(f"{layer}.weight", weights[f"{layer}.weight"].T, np.float32)
    product = g.add("MatMul", x, weight, name=f"{layer}.product")
    bias = g.constant(f"{layer}.bias", weights[f"{layer}.bias"], np.float32)
    return g.add("Add", product, bias, name=name or f"{layer}.sum")


def _norm(g: Graph, shape: EncoderShape, weights: Weights, x: str, at: str) -> str:
    parts = [g.constant(f"{at}.{p}", weights[f"{at}.{p}"], np.float32) for p in ("weight", "bias")]
    return g.add("LayerNormalization", x, *parts, name=at, axis=-1, epsilon=shape.epsilon)


def _mask(g: Graph) -> None:
    """`mask` [batch, 1, 1, sequence]: 0 where there is text, far below all scores elsewhere."""
    axes = g.constant("middle_axes", [1, 2])
    wide = g.add("Unsqueeze", "attention_mask", axes, name="wide_mask")
    there = g.add("Cast", wide, name="there", to=1)
    away = g.add("Sub", g.constant("one", 1.0, np.float32), there, name="away")
    g.add("Mul", away, g.constant("masked", MASKED, np.float32), name="mask")


def _embedded(g: Graph, shape: EncoderShape, weights: Weights) -> str:
    ids = g.constant("embedding.weight", weights["embedding.weight"], np.float32)
    words = g.add("Gather", ids, "input_ids", name="words")
    sizes = g.add("Shape", "input_ids", name="ids_shape")
    length = g.add("Gather", sizes, g.constant("axis", 1), name="length", axis=0)
    at = g.add("Range", g.constant("start", 0), length, g.constant("step", 1), name="positions")
    table = g.constant("positions.weight", weights["positions.weight"], np.float32)
    places = g.add("Gather", table, at, name="places")
    return _norm(g, shape, weights, g.add("Add", words, places, name="embedded"), "norm")


def _attention(g: Graph, shape: EncoderShape, weights: Weights, x: str, at: str) -> str:
    """softmax(q k^T / sqrt(size) + mask) v."""
    size = shape.width // shape.heads
    parts = g.constant("heads", [0, 0, shape.heads, size])
    by_head = []
    for part in ("query", "key", "value"):
        whole = _linear(g, weights, x, f"{at}.{part}")
        split = g.add("Reshape", whole, parts, name=f"{at}.{part}.heads")
        perm = [0, 2, 3, 1] if part == "key" else [0, 2, 1, 3]
        by_head.append(g.add("Transpose", split, name=f"{at}.{part}.by_head", perm=perm))
    q, k, v = by_head
    scores = g.add("MatMul", q, k, name=f"{at}.scores")
    root = g.constant("root", size**0.5, np.float32)
    scaled = g.add("Div", scores, root, name=f"{at}.scaled_scores")
    masked = g.add("Add", scaled, "mask", name=f"{at}.masked_scores")
    probabilities = g.add("Softmax", masked, name=f"{at}.probabilities", axis=-1)
    mixed = g.add("MatMul", probabilities, v, name=f"{at}.mixed")
    back = g.add("Transpose", mixed, name=f"{at}.by_position", perm=[0, 2, 1, 3])
    joined = g.constant("joined", [0, 0, shape.width])
    return _linear(g, weights, g.add("Reshape", back, joined, name=f"{at}.joined"), f"{at}.out")


def _mlp(g: Graph, weights: Weights, x: str, at: str) -> str:
    """down(gelu(up x)), GELU by the error function."""
    up = _linear(g, weights, x, f"{at}.up")
    scaled = g.add("Div", up, g.constant("root_2", 2**0.5, np.float32), name=f"{at}.scaled")
    curve = g.add("Erf", scaled, name=f"{at}.erf")
    share = g.add("Add", curve, g.constant("one", 1.0, np.float32), name=f"{at}.share")
    twice = g.add("Mul", up, share, name=f"{at}.twice")
    half = g.constant("half", 0.5, np.float32)
    return _linear(g, weights, g.add("Mul", twice, half, name=f"{at}.gelu"), f"{at}.down")
