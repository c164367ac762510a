"""The decoder as ONNX, in the plain operators that exporters write, from its weights alone.

Inputs `input_ids` [batch, sequence] int64 and, a layer, `past_key_values.L.key` and `.value`
[batch, kv heads, past, head size]; outputs `logits` [batch, sequence, vocabulary] and, a layer,
`present.L.key` and `.value` [batch, kv heads, past + sequence, head size]. Keys are kept after
their rotation. Positions and the causal mask follow from how long the past is, which may be 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .decoder import rotary_tables
from .shape import Shape

OPSET = 18
#: What a score becomes where a query must not look, as exporters write it.
MASKED = float(np.finfo(np.float32).min)


@dataclass
class Graph:
    """Nodes and initializers of a graph in the making; values are names."""

    nodes: list[Any] = field(default_factory=list)
    initializers: dict[str, NDArray[Any]] = field(default_factory=dict)

    def add(self, operator: str, *inputs: str, name: str, **attributes: Any) -> str:
        """A node with one output, which has its name."""
        from onnx import helper

        self.nodes.append(helper.make_node(operator, inputs, [name], name=name, **attributes))
        return name

    def constant(self, name: str, value: Any, dtype: Any = np.int64) -> str:
        """An initializer; the same name is written once."""
        self.initializers[name] = np.asarray(value, dtype)
        return name

    def model(self, inputs: Sequence[Any], outputs: Sequence[Any], name: str) -> Any:
        """The model proto, checked."""
        import onnx
        from onnx import helper, numpy_helper

        weights = [numpy_helper.from_array(v, n) for n, v in self.initializers.items()]
        graph = helper.make_graph(self.nodes, name, inputs, outputs, weights)
        opsets = [helper.make_opsetid("", OPSET)]
        model = helper.make_model(graph, opset_imports=opsets, producer_name="dtypelab")
        model.ir_version = 8
        onnx.checker.check_model(model, full_check=True)
        return model


def decoder_model(shape: Shape, weights: Mapping[str, NDArray[np.float32]]) -> Any:
    """The ONNX model of a state dict of `decoder.decoder`; the same bytes for the same weights."""
    from onnx import TensorProto, helper

    g = Graph()
    cache = ["batch", shape.kv_heads, "past", shape.head_size]
    grown = ["batch", shape.kv_heads, "total", shape.head_size]
    inputs = [helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["batch", "sequence"])]
    dims = ["batch", "sequence", shape.vocabulary]
    outputs = [helper.make_tensor_value_info("logits", TensorProto.FLOAT, dims)]
    for layer in range(shape.layers):
        for part in ("key", "value"):
            past = f"past_key_values.{layer}.{part}"
            inputs.append(helper.make_tensor_value_info(past, TensorProto.FLOAT, cache))
            present = f"present.{layer}.{part}"
            outputs.append(helper.make_tensor_value_info(present, TensorProto.FLOAT, grown))
    _positions(g, shape)
    x = g.add("Gather", _weight(g, weights, "embedding.weight"), "input_ids", name="embedding")
    for layer in range(shape.layers):
        at = f"blocks.{layer}"
        h = _norm(g, shape, weights, x, f"{at}.before_attention")
        attended = _attention(g, shape, weights, h, layer)
        x = g.add("Add", x, attended, name=f"{at}.attention_residual")
        h = _norm(g, shape, weights, x, f"{at}.before_mlp")
        x = g.add("Add", x, _mlp(g, weights, h, at), name=f"{at}.mlp_residual")
    _linear(g, weights, _norm(g, shape, weights, x, "norm"), "logits", name="logits")
    return g.model(inputs, outputs, "decoder")


def _weight(g: Graph, weights: Mapping[str, NDArray[np.float32]], name: str) -> str:
    return g.constant(name, weights[name], np.float32)


def _linear(
    g: Graph, weights: Mapping[str, NDArray[np.float32]], x: str, layer: str, name: str = ""
) -> str:
    """x times the layer's weight, kept as [in, out] as exporters keep it."""
    weight = g.constant(f"{layer}.weight", weights[f"{layer}.weight"].T, np.float32)
    return g.add("MatMul", x, weight, name=name or f"{layer}.product")


def _positions(g: Graph, shape: Shape) -> None:
    """`cosine` and `sine` [sequence, head size] of the positions, and `mask` [sequence, total]."""
    zero, one = g.constant("zero", 0), g.constant("one", 1)
    ids = g.add("Shape", "input_ids", name="ids_shape")
    kept = g.add("Shape", "past_key_values.0.key", name="past_shape")
    sequence = g.add("Gather", ids, one, name="sequence", axis=0)
    past = g.add("Gather", kept, g.constant("two", 2), name="past", axis=0)
    total = g.add("Add", past, sequence, name="total")
    positions = g.add("Range", past, total, one, name="positions")
    tables = zip(("cosine", "sine"), rotary_tables(shape), strict=True)
    for name, table in tables:
        g.add("Gather", g.constant(f"{name}_table", table, np.float32), positions, name=name)
    keys = g.add("Range", zero, total, one, name="key_positions")
    rows = g.add("Unsqueeze", positions, g.constant("axis_1", [1]), name="query_positions")
    later = g.add("Greater", keys, rows, name="later")
    masked = g.constant("masked", MASKED, np.float32)
    g.add("Where", later, masked, g.constant("open", 0.0, np.float32), name="mask")


def _norm(
    g: Graph, shape: Shape, weights: Mapping[str, NDArray[np.float32]], x: str, at: str
) -> str:
    """x / sqrt(mean(x^2) + epsilon) * weight (Zhang and Sennrich 2019)."""
    squares = g.add("Pow", x, g.constant("exponent", 2.0, np.float32), name=f"{at}.squares")
    axes = g.constant("last_axis", [-1])
    mean = g.add("ReduceMean", squares, axes, name=f"{at}.mean", keepdims=1)
    epsilon = g.constant("epsilon", shape.epsilon, np.float32)
    root = g.add("Sqrt", g.add("Add", mean, epsilon, name=f"{at}.sum"), name=f"{at}.root")
    inverse = g.add("Reciprocal", root, name=f"{at}.inverse")
    scaled = g.add("Mul", x, inverse, name=f"{at}.scaled")
    return g.add("Mul", scaled, _weight(g, weights, f"{at}.weight"), name=at)


def _heads(g: Graph, x: str, count: int, size: int, name: str) -> str:
    """[batch, sequence, heads * size] as [batch, heads, sequence, size]."""
    parts = g.constant(f"{count}_heads", [0, 0, count, size])
    split = g.add("Reshape", x, parts, name=f"{name}.heads")
    return g.add("Transpose", split, name=f"{name}.by_head", perm=[0, 2, 1, 3])


def _turned(g: Graph, shape: Shape, x: str, name: str) -> str:
    """Rotary embedding: x cos + (-second half, first half) sin."""
    half, ends = shape.head_size // 2, g.constant("far", [np.iinfo(np.int64).max])
    last, start = g.constant("last", [-1]), g.constant("begin", [0])
    middle = g.constant("middle", [half])
    low = g.add("Slice", x, start, middle, last, name=f"{name}.low")
    high = g.add("Slice", x, middle, ends, last, name=f"{name}.high")
    minus = g.add("Neg", high, name=f"{name}.minus")
    other = g.add("Concat", minus, low, name=f"{name}.other_half", axis=-1)
    along = g.add("Mul", x, "cosine", name=f"{name}.along")
    across = g.add("Mul", other, "sine", name=f"{name}.across")
    return g.add("Add", along, across, name=f"{name}.turned")


def _repeated(g: Graph, shape: Shape, x: str, name: str) -> str:
    """Every head of keys or values as often as there are query heads for it."""
    times = shape.heads // shape.kv_heads
    apart = g.add("Unsqueeze", x, g.constant("axis_2", [2]), name=f"{name}.apart")
    wide = g.constant("copies", [1, 1, times, 1, 1])
    copies = g.add("Expand", apart, wide, name=f"{name}.copies")
    joined = g.constant("joined_heads", [0, shape.heads, -1, shape.head_size])
    return g.add("Reshape", copies, joined, name=f"{name}.repeated")


def _attention(
    g: Graph, shape: Shape, weights: Mapping[str, NDArray[np.float32]], x: str, layer: int
) -> str:
    """softmax(q k^T / sqrt(size) + mask) v over the past and the sequence itself."""
    at, size = f"blocks.{layer}", shape.head_size
    q = _heads(g, _linear(g, weights, x, f"{at}.query"), shape.heads, size, f"{at}.query")
    k = _heads(g, _linear(g, weights, x, f"{at}.key"), shape.kv_heads, size, f"{at}.key")
    v = _heads(g, _linear(g, weights, x, f"{at}.value"), shape.kv_heads, size, f"{at}.value")
    q, k = _turned(g, shape, q, f"{at}.query"), _turned(g, shape, k, f"{at}.key")
    grown = []
    for part, new in (("key", k), ("value", v)):
        old, present = f"past_key_values.{layer}.{part}", f"present.{layer}.{part}"
        grown.append(g.add("Concat", old, new, name=present, axis=2))
    keys, values = (_repeated(g, shape, one, one) for one in grown)
    across = g.add("Transpose", keys, name=f"{at}.keys_across", perm=[0, 1, 3, 2])
    scores = g.add("MatMul", q, across, name=f"{at}.scores")
    scale = g.constant("scale", size**-0.5, np.float32)
    scaled = g.add("Mul", scores, scale, name=f"{at}.scaled_scores")
    masked = g.add("Add", scaled, "mask", name=f"{at}.masked_scores")
    weights_of = g.add("Softmax", masked, name=f"{at}.probabilities", axis=-1)
    mixed = g.add("MatMul", weights_of, values, name=f"{at}.mixed")
    back = g.add("Transpose", mixed, name=f"{at}.by_position", perm=[0, 2, 1, 3])
    joined = g.constant("joined", [0, 0, shape.heads * size])
    whole = g.add("Reshape", back, joined, name=f"{at}.attended")
    return _linear(g, weights, whole, f"{at}.out")


def _mlp(g: Graph, weights: Mapping[str, NDArray[np.float32]], x: str, at: str) -> str:
    """down(silu(gate x) * up x) (SwiGLU, Shazeer 2020)."""
    gate, up = _linear(g, weights, x, f"{at}.gate"), _linear(g, weights, x, f"{at}.up")
    sigmoid = g.add("Sigmoid", gate, name=f"{at}.sigmoid")
    silu = g.add("Mul", gate, sigmoid, name=f"{at}.silu")
    product = g.add("Mul", silu, up, name=f"{at}.gated")
    return _linear(g, weights, product, f"{at}.down")
