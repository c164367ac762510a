"""Transformers as exporters write them in plain ONNX operators, with random weights.

A network has the widths of the one that it is named after; how many layers is a choice.
Vocabularies shrink with the layers, so that embeddings and logits keep their share of the work.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

Array = NDArray[Any]

FAR = -1e9
"""What masks add to scores that count for nothing."""


class Graph:
    """Collects the nodes and weights of one network; names of values are strings."""

    def __init__(self, seed: int = 0):
        self.rng = np.random.default_rng(seed)
        self.nodes: list[Any] = []
        self.weights: dict[str, Array] = {}

    def const(self, value: object, dtype: DTypeLike = np.float32) -> str:
        """A stored array."""
        name = f"w{len(self.weights)}"
        self.weights[name] = np.asarray(value, dtype)
        return name

    def normal(self, *shape: int, scale: float = 1.0) -> str:
        """Stored normal float32 numbers."""
        return self.const(self.rng.standard_normal(shape, np.float32) * np.float32(scale))

    def op(self, operator: str, *inputs: str, **attrs: object) -> str:
        """A node; the name of its output."""
        from onnx import helper

        name = f"{operator}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, list(inputs), [name], name, **attrs))
        return name

    def reshape(self, x: str, *shape: int) -> str:
        """0 keeps a size, -1 is what is left."""
        return self.op("Reshape", x, self.const(shape, np.int64))

    def transpose(self, x: str, *order: int) -> str:
        """Axes in another order."""
        return self.op("Transpose", x, perm=order)

    def cut(self, x: str, start: int, end: int, axis: int, step: int = 1) -> str:
        """Positions `start` up to `end` of an axis."""
        at = (self.const([n], np.int64) for n in (start, end, axis, step))
        return self.op("Slice", x, *at)

    def dense(self, x: str, inputs: int, outputs: int, bias: bool = True, scale: float = 1) -> str:
        """x @ w + b, as torch exports Linear on more than two axes."""
        y = self.op("MatMul", x, self.normal(inputs, outputs, scale=scale * inputs**-0.5))
        return self.op("Add", self.normal(outputs, scale=0.1), y) if bias else y

    def conv(
        self, x: str, inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1,
        bias: bool = True, dilation: int = 1,
    ) -> str:  # fmt: skip
        """A convolution padded so that it keeps sizes (without strides), as after folding of batch
        norm."""
        taps = inputs // groups * kernel * kernel
        weight = self.normal(outputs, inputs // groups, kernel, kernel, scale=(2 / taps) ** 0.5)
        more = [self.normal(outputs, scale=0.1)] if bias else []
        return self.op(
            "Conv", x, weight, *more, kernel_shape=[kernel] * 2, strides=[stride] * 2,
            pads=[dilation * (kernel // 2)] * 4, group=groups, dilations=[dilation] * 2,
        )  # fmt: skip

    def layer_norm(self, x: str, width: int) -> str:
        """With gains near 1."""
        gain = self.const(self.rng.uniform(0.7, 1.3, width))
        return self.op(
            "LayerNormalization", x, gain, self.normal(width, scale=0.1), axis=-1, epsilon=1e-5
        )

    def rms_norm(self, x: str, width: int) -> str:
        """As torch exports Llama's."""
        mean = self.op("ReduceMean", self.op("Pow", x, self.const(2.0)), axes=[-1], keepdims=1)
        root = self.op("Sqrt", self.op("Add", mean, self.const(1e-5)))
        unit = self.op("Mul", x, self.op("Div", self.const(1.0), root))
        return self.op("Mul", self.const(self.rng.uniform(0.7, 1.3, width)), unit)

    def gelu(self, x: str) -> str:
        """By erf."""
        bent = self.op("Erf", self.op("Div", x, self.const(2**0.5)))
        both = self.op("Mul", x, self.op("Add", bent, self.const(1.0)))
        return self.op("Mul", both, self.const(0.5))

    def gelu_tanh(self, x: str) -> str:
        """By tanh, as GPT-2 has it."""
        cube = self.op("Mul", self.op("Pow", x, self.const(3.0)), self.const(0.044715))
        inside = self.op("Mul", self.op("Add", x, cube), self.const((2 / np.pi) ** 0.5))
        factor = self.op("Add", self.op("Tanh", inside), self.const(1.0))
        return self.op("Mul", self.op("Mul", x, self.const(0.5)), factor)

    def attention(self, q: str, k: str, v: str, size: int, mask: str = "") -> str:
        """Heads [n, heads, tokens, size] -> [n, tokens, heads * size]; k is transposed here."""
        scores = self.op("MatMul", q, self.transpose(k, 0, 1, 3, 2))
        scores = self.op("Mul", scores, self.const(size**-0.5))
        if mask:
            scores = self.op("Add", scores, mask)
        seen = self.op("MatMul", self.op("Softmax", scores, axis=-1), v)
        return self.transpose(seen, 0, 2, 1, 3)

    def split_heads(self, x: str, heads: int, size: int) -> str:
        """[n, tokens, heads * size] -> [n, heads, tokens, size]."""
        return self.transpose(self.reshape(x, 0, 0, heads, size), 0, 2, 1, 3)

    def self_attention(self, x: str, width: int, heads: int, mask: str = "") -> str:
        """With projections before and after."""
        size = width // heads
        q, k, v = (self.split_heads(self.dense(x, width, width), heads, size) for _ in range(3))
        y = self.reshape(self.attention(q, k, v, size, mask), 0, 0, width)
        return self.dense(y, width, width)

    def pre_norm_layer(
        self,
        x: str,
        width: int,
        heads: int,
        mask: str = "",
        gelu: Callable[[str], str] | None = None,
    ) -> str:
        """A layer that normalizes what attention and the dense layers read."""
        x = self.op("Add", x, self.self_attention(self.layer_norm(x, width), width, heads, mask))
        y = self.dense(self.layer_norm(x, width), width, 4 * width)
        return self.op("Add", x, self.dense((gelu or self.gelu)(y), 4 * width, width))

    def model(
        self,
        inputs: Mapping[str, Array],
        result: str,
        output: str = "output",
        opset: int = 17,
    ) -> bytes:
        """The ONNX file, with inputs of the shapes and dtypes of these arrays."""
        from onnx import TensorProto, helper, numpy_helper

        self.nodes.append(helper.make_node("Identity", [result], [output], "result"))
        given = [
            helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
            for n, a in inputs.items()
        ]
        stored = [numpy_helper.from_array(a, n) for n, a in self.weights.items()]
        out = helper.make_tensor_value_info(output, TensorProto.FLOAT, None)
        graph = helper.make_graph(self.nodes, "transformer", given, [out], stored)
        version = helper.make_opsetid("", opset)
        made = helper.make_model(graph, opset_imports=[version], ir_version=8)
        return bytes(made.SerializeToString())


# ---- networks ------------------------------------------------------------------------------------
def bert(layers: int, inputs: Mapping[str, Array]) -> bytes:
    """BERT-base (12 layers): `input_ids` and `attention_mask`, int64 [1, tokens]."""
    g, width, words = Graph(), 768, 30522 * layers // 12
    tokens = inputs["input_ids"].shape[1]
    x = g.op("Gather", g.normal(words, width), "input_ids")
    x = g.layer_norm(g.op("Add", x, g.normal(1, tokens, width)), width)
    seen = g.op("Unsqueeze", "attention_mask", g.const([1, 2], np.int64))
    hidden = g.op("Sub", g.const(1.0), g.op("Cast", seen, to=1))
    mask = g.op("Mul", hidden, g.const(FAR))
    for _ in range(layers):
        x = g.layer_norm(g.op("Add", x, g.self_attention(x, width, 12, mask)), width)
        y = g.dense(g.gelu(g.dense(x, width, 4 * width)), 4 * width, width)
        x = g.layer_norm(g.op("Add", y, x), width)
    return g.model(inputs, x)


def vit(layers: int, inputs: Mapping[str, Array]) -> bytes:
    """ViT-B/32 (12 layers): `pixel_values`, float32 [1, 3, 224, 224]."""
    g, width = Graph(), 768
    x = g.op(
        "Conv", "pixel_values", g.normal(width, 3, 32, 32, scale=3072**-0.5), g.normal(width),
        kernel_shape=[32, 32], strides=[32, 32],
    )  # fmt: skip
    x = g.transpose(g.reshape(x, 0, width, -1), 0, 2, 1)
    x = g.op("Concat", g.normal(1, 1, width), x, axis=1)
    x = g.op("Add", x, g.normal(1, 50, width))
    for _ in range(layers):
        x = g.pre_norm_layer(x, width, 12)
    first = g.op("Gather", g.layer_norm(x, width), g.const(0, np.int64), axis=1)
    return g.model(inputs, g.dense(first, width, 1000))


def gpt2(layers: int, inputs: Mapping[str, Array]) -> bytes:
    """GPT-2 (12 layers): `input_ids`, int64 [1, tokens]; logits of all tokens."""
    g, width, words = Graph(), 768, 50257 * layers // 12
    tokens = inputs["input_ids"].shape[1]
    x = g.op("Gather", g.normal(words, width), "input_ids")
    x = g.op("Add", x, g.normal(1, tokens, width))
    mask = g.const(np.triu(np.full((1, 1, tokens, tokens), FAR), 1))
    for _ in range(layers):
        x = g.pre_norm_layer(x, width, 12, mask, g.gelu_tanh)
    return g.model(inputs, g.dense(g.layer_norm(x, width), width, words, bias=False), "logits")


def llama(layers: int, inputs: Mapping[str, Array]) -> bytes:
    """A decoder of Llama's operators (12 layers of 1024, 16 heads of which 4 have keys and values):
    `input_ids`, int64 [1, tokens]; logits of all tokens."""
    g, width, heads, shared, inner, words = Graph(), 1024, 16, 4, 2816, 32000 * layers // 12
    size, tokens = width // heads, inputs["input_ids"].shape[1]
    angles = np.outer(np.arange(tokens), 1e4 ** -np.arange(0, 1, 2 / size))
    angles = np.concatenate([angles, angles], 1)
    cos, sin = g.const(np.cos(angles)[None, None]), g.const(np.sin(angles)[None, None])
    mask = g.const(np.triu(np.full((1, 1, tokens, tokens), FAR), 1))

    def rotary(x: str) -> str:
        low, high = g.cut(x, 0, size // 2, 3), g.cut(x, size // 2, size, 3)
        turned = g.op("Concat", g.op("Neg", high), low, axis=-1)
        return g.op("Add", g.op("Mul", x, cos), g.op("Mul", turned, sin))

    def repeated(x: str) -> str:
        apart = g.op("Unsqueeze", x, g.const([2], np.int64))
        sizes = g.const([1, shared, heads // shared, tokens, size], np.int64)
        return g.reshape(g.op("Expand", apart, sizes), 1, heads, tokens, size)

    x = g.op("Gather", g.normal(words, width), "input_ids")
    for _ in range(layers):
        y = g.rms_norm(x, width)
        q, k, v = (
            g.split_heads(g.dense(y, width, n * size, bias=False), n, size)
            for n in (heads, shared, shared)
        )
        y = g.attention(rotary(q), repeated(rotary(k)), repeated(v), size, mask)
        x = g.op("Add", x, g.dense(g.reshape(y, 0, 0, width), width, width, bias=False))
        y = g.rms_norm(x, width)
        gate = g.dense(y, width, inner, bias=False)
        gate = g.op("Mul", gate, g.op("Sigmoid", gate))
        y = g.op("Mul", gate, g.dense(y, width, inner, bias=False))
        x = g.op("Add", x, g.dense(y, inner, width, bias=False))
    return g.model(inputs, g.dense(g.rms_norm(x, width), width, words, bias=False), "logits")


def whisper(layers: int, inputs: Mapping[str, Array]) -> bytes:
    """The encoder of Whisper tiny (4 layers): `input_features`, float32 [1, 80, 2 * positions]."""
    g, width = Graph(), 384
    positions = inputs["input_features"].shape[2] // 2
    x = "input_features"
    for channels, stride in ((80, 1), (width, 2)):
        w = g.normal(width, channels, 3, scale=(3 * channels) ** -0.5)
        moves: dict[str, object] = {"kernel_shape": [3], "pads": [1, 1], "strides": [stride]}
        x = g.gelu(g.op("Conv", x, w, g.normal(width, scale=0.1), **moves))
    x = g.op("Add", g.transpose(x, 0, 2, 1), g.normal(positions, width))
    for _ in range(layers):
        x = g.pre_norm_layer(x, width, 6)
    return g.model(inputs, g.layer_norm(x, width))


def swin(layers: int, inputs: Mapping[str, Array]) -> bytes:
    """Swin-T (12 layers, in stages of 2, 2, 6, 2; fewer leave out the third's, two by two):
    `pixel_values`, float32 [1, 3, 224, 224]."""
    g, window, width, side = Graph(), 7, 96, 56
    x = g.op(
        "Conv", "pixel_values", g.normal(width, 3, 4, 4, scale=48**-0.5), g.normal(width),
        kernel_shape=[4, 4], strides=[4, 4],
    )  # fmt: skip
    x = g.layer_norm(g.transpose(g.reshape(x, 0, width, -1), 0, 2, 1), width)
    for stage, depth in enumerate((2, 2, max(2, layers - 6), 2)):
        for block in range(depth):
            shift = window // 2 if block % 2 and side > window else 0
            x = _window_layer(g, x, width, side, window, shift)
        if stage < 3:
            x = g.reshape(x, 1, side, side, width)
            parts = [
                g.cut(g.cut(x, row, side, 1, 2), column, side, 2, 2)
                for column in (0, 1)
                for row in (0, 1)
            ]
            side //= 2
            x = g.reshape(g.op("Concat", *parts, axis=-1), 1, side * side, 4 * width)
            x = g.dense(g.layer_norm(x, 4 * width), 4 * width, 2 * width, bias=False)
            width *= 2
    x = g.op("ReduceMean", g.layer_norm(x, width), axes=[1], keepdims=0)
    return g.model(inputs, g.dense(x, width, 1000))


def _window_layer(g: Graph, x: str, width: int, side: int, window: int, shift: int) -> str:
    """A layer of attention within windows, of a picture moved by `shift`."""
    heads, across, area = width // 32, side // window, window * window
    y = g.reshape(g.layer_norm(x, width), 1, side, side, width)
    y = _rolled(g, y, shift, side)
    y = g.reshape(y, 1, across, window, across, window, width)
    y = g.reshape(g.transpose(y, 0, 1, 3, 2, 4, 5), across * across, area, width)
    bias: Array = g.rng.standard_normal((1, heads, area, area), np.float32)
    if shift:
        bias = np.add(bias, window_mask(side, window, shift)[:, None])
    y = g.self_attention(y, width, heads, g.const(bias))
    y = g.reshape(y, 1, across, across, window, window, width)
    y = g.reshape(g.transpose(y, 0, 1, 3, 2, 4, 5), 1, side, side, width)
    y = g.reshape(_rolled(g, y, side - shift if shift else 0, side), 1, side * side, width)
    x = g.op("Add", x, y)
    y = g.dense(g.gelu(g.dense(g.layer_norm(x, width), width, 4 * width)), 4 * width, width)
    return g.op("Add", x, y)


def _rolled(g: Graph, x: str, by: int, side: int) -> str:
    """A picture [1, side, side, width] whose first `by` rows and columns are the last."""
    for axis in (1, 2) if by else ():
        x = g.op("Concat", g.cut(x, by, side, axis), g.cut(x, 0, by, axis), axis=axis)
    return x


def window_mask(side: int, window: int, shift: int) -> Array:
    """[windows, area, area]: what keeps apart the parts of moved windows that are no neighbours."""
    line: Array = np.zeros(side, int)
    line[side - window : side - shift], line[side - shift :] = 1, 2
    across = side // window
    part: Array = (3 * line[:, None] + line).reshape(across, window, across, window)
    part = part.transpose(0, 2, 1, 3).reshape(across * across, window * window)
    return np.where(part[:, None] == part[:, :, None], 0, -100).astype(np.float32)
