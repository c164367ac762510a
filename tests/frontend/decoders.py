"""One decoder with a cache of keys and values, as different exporters write it.

Embedding, `LAYERS` of (RMS norm, attention of grouped heads with rotary embedding, RMS norm, gated
layers), RMS norm, logits. Styles:

script: as TorchScript's exporter does, opset 14: sizes by Shape and Gather, a mask of the lowest
    number by Range, Greater, Mul, and ScatterND where padding is written into it.
graph: as torch.export's does, opset 18: sizes by Shape with bounds, masks of bool, the root of the
    scale on both factors, a softmax whose NaN become 0.
standard: ONNX's own Attention, RotaryEmbedding and RMSNormalization, opset 23.
runtime: onnxruntime's GroupQueryAttention and norms, opset 21 (no padding).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from compiler.types.dtypes import Array

STYLES = {"script": 14, "graph": 18, "standard": 23, "runtime": 21}
WORDS, WIDTH, HEADS, OWN, SIZE, LAYERS, MOST = 30, 32, 2, 1, 16, 2, 24
LOWEST = float(np.finfo(np.float32).min)


class Decoder:
    """A decoder in one of STYLES, node after node."""

    def __init__(self, style: str, opset: int = 0):
        self.style, self.opset = style, opset or STYLES[style]
        self.rng = np.random.default_rng(0)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: dict[str, onnx.TensorProto] = {}

    # ---- writing ---------------------------------------------------------------------------------
    def do(self, op: str, *args: str, count: int = 1, **attrs: Any) -> Any:
        """The output (or outputs) of a new node."""
        made = [f"{op}_{len(self.nodes)}_{k}" for k in range(count)]
        self.nodes.append(helper.make_node(op, list(args), made, name=made[0], **attrs))
        return made[0] if count == 1 else made

    def const(self, value: Any, dtype: Any = np.int64) -> str:
        data = np.asarray(value, dtype)
        name = f"c{len(self.weights)}"
        self.weights[name] = numpy_helper.from_array(data, name)
        return name

    def weight(self, name: str, *shape: int, scale: float = 0.3, add: float = 0.0) -> str:
        data = (self.rng.normal(0, scale, shape) + add).astype(np.float32)
        self.weights[name] = numpy_helper.from_array(data, name)
        return name

    def table(self, name: str, data: Array) -> str:
        self.weights[name] = numpy_helper.from_array(data.astype(np.float32), name)
        return name

    def size(self, x: str, axis: int) -> str:
        """A vector of one size."""
        if self.style == "graph":
            return self.do("Shape", x, start=axis, end=axis + 1)
        taken = self.do("Gather", self.do("Shape", x), self.const(axis), axis=0)
        return self.do("Unsqueeze", taken, self.const([0]))

    def scalar(self, vector: str) -> str:
        return self.do("Squeeze", vector, self.const([0]))

    def shape(self, *sizes: str | int) -> str:
        parts = [self.const([s]) if isinstance(s, int) else s for s in sizes]
        return self.do("Concat", *parts, axis=0)

    def cut(self, x: str, start: int, end: int, axis: int) -> str:
        return self.do("Slice", x, self.const([start]), self.const([end]), self.const([axis]))

    # ---- the parts -------------------------------------------------------------------------------
    def norm(self, x: str, name: str) -> str:
        gain = self.weight(name, WIDTH, add=1.0)
        if self.style == "standard":
            return self.do("RMSNormalization", x, gain, axis=-1, epsilon=1e-6)
        if self.style == "runtime":
            return self.do("SimplifiedLayerNormalization", x, gain, axis=-1, epsilon=1e-6)
        square = self.do("Pow", x, self.const(2, np.float32))
        last = {"axes": [-1]} if self.opset < 18 else {}
        more = [] if last else [self.const([-1])]
        mean = self.do("ReduceMean", square, *more, keepdims=1, **last)
        root = self.do("Sqrt", self.do("Add", mean, self.const(1e-6, np.float32)))
        if self.style == "graph":
            inverse = self.do("Reciprocal", root)
        else:
            inverse = self.do("Div", self.const(1, np.float32), root)
        return self.do("Mul", gain, self.do("Mul", x, inverse))

    def heads(self, x: str, name: str, count: int, ids: str) -> str:
        flat = self.do("MatMul", x, self.weight(name, WIDTH, count * SIZE))
        if self.style in ("standard", "runtime"):
            return flat
        to = self.shape(self.size(ids, 0), self.size(ids, 1), count, SIZE)
        return self.do("Transpose", self.do("Reshape", flat, to), perm=[0, 2, 1, 3])

    def rotated(self, x: str, cos: str, sin: str) -> str:
        half = SIZE // 2
        turned = self.do(
            "Concat", self.do("Neg", self.cut(x, half, 2**63 - 1, 3)), self.cut(x, 0, half, 3),
            axis=-1,
        )  # fmt: skip
        return self.do("Add", self.do("Mul", x, cos), self.do("Mul", turned, sin))

    def repeated(self, x: str) -> str:
        """Keys or values once for every head."""
        batch, length = self.size(x, 0), self.size(x, 2)
        wide = self.do("Unsqueeze", x, self.const([2]))
        wide = self.do("Expand", wide, self.shape(batch, OWN, HEADS // OWN, length, SIZE))
        return self.do("Reshape", wide, self.shape(batch, HEADS, length, SIZE))

    def mask(self, length: str, past: str) -> str:
        """What scores are masked by: bool in the style "graph", else numbers to add."""
        total = self.do("Add", length, past)
        one, zero = self.const(1), self.const(0)
        rows = self.do("Range", self.scalar(past), self.scalar(total), one)
        rows = self.do("Unsqueeze", rows, self.const([1]))
        columns = self.do("Range", zero, self.scalar(total), one)
        given = self.do("Unsqueeze", "attention_mask", self.const([1, 2]))
        if self.style == "graph":
            seen = self.do("LessOrEqual", self.do("Unsqueeze", columns, self.const([0])), rows)
            seen = self.do("Unsqueeze", seen, self.const([0, 1]))
            return self.do("And", seen, self.do("Cast", given, to=TensorProto.BOOL))
        lowest = self.const(LOWEST, np.float32)
        square = self.do("Concat", length, total, axis=0)
        full = self.do("Expand", lowest, square)
        later = self.do("Cast", self.do("Greater", columns, rows), to=TensorProto.FLOAT)
        full = self.do("Unsqueeze", self.do("Mul", full, later), self.const([0, 1]))
        batch = self.size("input_ids", 0)
        full = self.do("Expand", full, self.shape(batch, 1, length, total))
        sums = self.do("Add", full, self.do("Cast", given, to=TensorProto.FLOAT))
        padding = self.do("Equal", sums, self.const(0, np.float32))
        filled = self.do("Where", padding, lowest, full)
        return self.do("ScatterND", full, self.everywhere(full), filled)

    def everywhere(self, x: str) -> str:
        """Positions of all elements [..., 4], as assignments to slices are written."""
        sizes = self.do("Shape", x)
        parts = []
        for axis in range(4):
            n = self.do("Gather", sizes, self.const(axis), axis=0)
            row = self.do("Range", self.const(0), n, self.const(1))
            aside = self.const([k for k in range(4) if k != axis])
            wide = self.do("Expand", self.do("Unsqueeze", row, aside), sizes)
            parts.append(self.do("Unsqueeze", wide, self.const([-1])))
        return self.do("Concat", *parts, axis=-1)

    def attention(self, layer: int, x: str, mask: str, angles: tuple[str, str]) -> str:
        q, k, v = (
            self.heads(x, f"{layer}.{n}", c, "input_ids")
            for n, c in (("q", HEADS), ("k", OWN), ("v", OWN))
        )
        past = [f"past_key_values.{layer}.{n}" for n in ("key", "value")]
        present = [f"present.{layer}.{n}" for n in ("key", "value")]
        if self.style == "standard":
            q, k = (
                self.do("RotaryEmbedding", t, *angles, "position_ids", num_heads=h)
                for t, h in ((q, HEADS), (k, OWN))
            )
            out = f"attended{layer}"
            self.nodes.append(helper.make_node(
                "Attention", [q, k, v, mask, *past], [out, *present], is_causal=1,
                q_num_heads=HEADS, kv_num_heads=OWN, name=out))  # fmt: skip
        elif self.style == "runtime":
            out = f"attended{layer}"
            self.nodes.append(helper.make_node(
                "GroupQueryAttention", [q, k, v, *past, *mask.split(), *angles, ""],
                [out, *present], num_heads=HEADS, kv_num_heads=OWN, do_rotary=1, name=out,
                domain="com.microsoft"))  # fmt: skip
        else:
            q, k = (self.rotated(t, *angles) for t in (q, k))
            for old, new, name in zip(past, (k, v), present, strict=True):
                self.nodes.append(helper.make_node("Concat", [old, new], [name], axis=2))
            out = self.attended(q, *map(self.repeated, present), mask)
        return self.do("MatMul", out, self.weight(f"{layer}.o", HEADS * SIZE, WIDTH))

    def attended(self, q: str, k: str, v: str, mask: str) -> str:
        turned = self.do("Transpose", k, perm=[0, 1, 3, 2])
        if self.style == "graph":
            root = self.const(SIZE**-0.25, np.float32)
            scores = self.do("MatMul", self.do("Mul", q, root), self.do("Mul", turned, root))
            bias = self.do("Where", mask, self.const(0, np.float32),
                           self.const(-np.inf, np.float32))  # fmt: skip
            shares = self.do("Softmax", self.do("Add", scores, bias), axis=-1)
            shares = self.do("Where", self.do("IsNaN", shares), self.const(0, np.float32), shares)
        else:
            scores = self.do("Div", self.do("MatMul", q, turned), self.const(4, np.float32))
            shares = self.do("Softmax", self.do("Add", scores, mask), axis=-1)
        y = self.do("Transpose", self.do("MatMul", shares, v), perm=[0, 2, 1, 3])
        ids = self.size("input_ids", 0), self.size("input_ids", 1)
        return self.do("Reshape", y, self.shape(*ids, HEADS * SIZE))

    def angles(self) -> tuple[str, str]:
        turns = np.arange(MOST)[:, None] / 100 ** (np.arange(SIZE // 2) / (SIZE // 2))
        if self.style in ("standard", "runtime"):
            return self.table("cos", np.cos(turns)), self.table("sin", np.sin(turns))
        both = np.concatenate([turns, turns], 1)
        found = []
        for name, f in (("cos", np.cos), ("sin", np.sin)):
            rows = self.do("Gather", self.table(name, f(both)), "position_ids", axis=0)
            found.append(self.do("Unsqueeze", rows, self.const([1])))
        return found[0], found[1]

    # ---- the whole -------------------------------------------------------------------------------
    def model(self) -> onnx.ModelProto:
        x = self.do("Gather", self.weight("words", WORDS, WIDTH), "input_ids", axis=0)
        angles = self.angles()
        if self.style == "standard":
            flags = self.do("Cast", "attention_mask", to=TensorProto.BOOL)
            mask = self.do("Unsqueeze", flags, self.const([1, 2]))
            mask = self.do("Expand", mask, self.shape(1, 1, self.size("input_ids", 1), 1))
        elif self.style == "runtime":
            counts = self.do("ReduceSum", "attention_mask", self.const([1]), keepdims=0)
            less = self.do("Sub", counts, self.const(1))
            total = self.do("Gather", self.do("Shape", "attention_mask"), self.const(1), axis=0)
            mask = " ".join(self.do("Cast", m, to=TensorProto.INT32) for m in (less, total))
        else:
            mask = self.mask(self.size("input_ids", 1), self.size("past_key_values.0.key", 2))
        for layer in range(LAYERS):
            y = self.attention(layer, self.norm(x, f"{layer}.n1"), mask, angles)
            x = self.do("Add", x, y)
            h = self.norm(x, f"{layer}.n2")
            gate = self.do("MatMul", h, self.weight(f"{layer}.gate", WIDTH, 2 * WIDTH))
            gate = self.do("Mul", gate, self.do("Sigmoid", gate))
            up = self.do("MatMul", h, self.weight(f"{layer}.up", WIDTH, 2 * WIDTH))
            y = self.do("Mul", gate, up)
            y = self.do("MatMul", y, self.weight(f"{layer}.down", 2 * WIDTH, WIDTH))
            x = self.do("Add", x, y)
        out = self.do("MatMul", self.norm(x, "norm"), self.weight("head", WIDTH, WORDS))
        self.nodes.append(helper.make_node("Identity", [out], ["logits"]))
        return self.finished()

    def finished(self) -> onnx.ModelProto:
        value = helper.make_tensor_value_info
        whole, floats = TensorProto.INT64, TensorProto.FLOAT
        inputs = [value("input_ids", whole, ["batch", "sequence"])]
        inputs.append(value("attention_mask", whole, ["batch", "past_and_sequence"]))
        used = {i for n in self.nodes for i in n.input}
        if "position_ids" in used:
            inputs.append(value("position_ids", whole, ["batch", "sequence"]))
        outputs = [value("logits", floats, ["batch", "sequence", WORDS])]
        for layer in range(LAYERS):
            for name in ("key", "value"):
                past, present = f"past_key_values.{layer}.{name}", f"present.{layer}.{name}"
                inputs.append(value(past, floats, ["batch", OWN, "past", SIZE]))
                outputs.append(value(present, floats, ["batch", OWN, "past_and_sequence", SIZE]))
        graph = helper.make_graph(self.nodes, "g", inputs, outputs, list(self.weights.values()))
        opsets = [helper.make_opsetid("", self.opset), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def feeds(
    proto: onnx.ModelProto, batch: int, length: int, past: int, padding: int = 0
) -> dict[str, Array]:
    """Inputs of a decoder: `padding` positions of the first row are masked."""
    rng = np.random.default_rng(7)
    mask = np.ones((batch, past + length), np.int64)
    mask[0, :padding] = 0
    given: dict[str, Array] = {
        "input_ids": rng.integers(0, WORDS, (batch, length)),
        "attention_mask": mask,
        "position_ids": np.arange(past, past + length)[None].repeat(batch, 0),
    }
    for layer in range(LAYERS):
        for name in ("key", "value"):
            data = rng.normal(0, 1, (batch, OWN, past, SIZE))
            given[f"past_key_values.{layer}.{name}"] = data.astype(np.float32)
    names = {i.name for i in proto.graph.input}
    return {name: a for name, a in given.items() if name in names}
