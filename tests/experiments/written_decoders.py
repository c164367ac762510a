"""Decoders of random weights, small enough to compile in a test, and what they compute."""

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from experiments.zoo.language.decoder_graph import decoder_model
from experiments.zoo.language.shape import Shape

TINY = Shape(vocabulary=300, width=16, layers=2, heads=4, kv_heads=2, head_size=4, hidden=24,
             positions=16)  # fmt: skip


def weights_of(shape: Shape, seed: int = 0) -> dict[str, np.ndarray]:
    """Random weights by the names of a state dict."""
    random = np.random.default_rng(seed)
    kv = shape.kv_heads * shape.head_size
    sizes = {"embedding": (shape.vocabulary, shape.width), "norm": (shape.width,)}
    sizes["logits"] = (shape.vocabulary, shape.width)
    for layer in range(shape.layers):
        parts = {
            "before_attention": (shape.width,),
            "before_mlp": (shape.width,),
            "query": (shape.heads * shape.head_size, shape.width),
            "key": (kv, shape.width),
            "value": (kv, shape.width),
            "out": (shape.width, shape.heads * shape.head_size),
            "gate": (shape.hidden, shape.width),
            "up": (shape.hidden, shape.width),
            "down": (shape.width, shape.hidden),
        }
        sizes |= {f"blocks.{layer}.{name}": size for name, size in parts.items()}
    return {f"{n}.weight": random.normal(size=s).astype(np.float32) for n, s in sizes.items()}


def reference(shape: Shape, weights: dict[str, np.ndarray], ids: np.ndarray) -> np.ndarray:
    """Logits [batch, sequence, vocabulary] in float64, from the definition of the network."""
    w = {name.removesuffix(".weight"): a.astype(np.float64) for name, a in weights.items()}
    length, half = ids.shape[1], shape.head_size // 2

    def norm(x: np.ndarray, at: str) -> np.ndarray:
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + shape.epsilon) * w[at]

    def heads(x: np.ndarray, times: int = 1) -> np.ndarray:
        split = x.reshape(*x.shape[:2], -1, shape.head_size).transpose(0, 2, 1, 3)
        return np.repeat(split, times, axis=1)

    angles = np.arange(length)[:, None] / shape.rotary_base ** (np.arange(half) / half)

    def turned(x: np.ndarray) -> np.ndarray:
        z = (x[..., :half] + 1j * x[..., half:]) * np.exp(1j * angles)
        return np.concatenate((z.real, z.imag), -1)

    x = w["embedding"][ids]
    for layer in range(shape.layers):
        at, times = f"blocks.{layer}.", shape.heads // shape.kv_heads
        h = norm(x, at + "before_attention")
        q, k = turned(heads(h @ w[at + "query"].T)), turned(heads(h @ w[at + "key"].T, times))
        scores = q @ k.swapaxes(-1, -2) / np.sqrt(shape.head_size)
        scores = np.where(np.tri(length) > 0, scores, -np.inf)
        p = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = p / p.sum(-1, keepdims=True) @ heads(h @ w[at + "value"].T, times)
        x = x + mixed.transpose(0, 2, 1, 3).reshape(*x.shape[:2], -1) @ w[at + "out"].T
        h = norm(x, at + "before_mlp")
        gate = h @ w[at + "gate"].T
        x = x + (gate / (1 + np.exp(-gate)) * (h @ w[at + "up"].T)) @ w[at + "down"].T
    return norm(x, "norm") @ w["logits"].T


def empty_past(shape: Shape, batch: int) -> dict[str, np.ndarray]:
    """The past before the first id."""
    none = np.zeros((batch, shape.kv_heads, 0, shape.head_size), np.float32)
    return {
        f"past_key_values.{layer}.{part}": none
        for layer in range(shape.layers)
        for part in ("key", "value")
    }


def tiny_file(folder: Path, **sizes: int) -> Path:
    """A decoder of random weights as a file; `sizes` are fields of its `Shape`."""
    from dataclasses import replace

    shape = replace(TINY, **sizes)
    path = folder / "tiny.onnx"
    model = decoder_model(shape, weights_of(shape))
    path.write_bytes(model.SerializeToString(deterministic=True))
    return path


def table_file(folder: Path, scores: np.ndarray, **names: str) -> Path:
    """A decoder without a past: the scores of the next id are a row of a table [ids, ids]."""
    ids, logits = names.get("ids", "input_ids"), names.get("logits", "logits")
    given = helper.make_tensor_value_info(ids, TensorProto.INT64, ["batch", "sequence"])
    dims = ["batch", "sequence", scores.shape[1]]
    result = helper.make_tensor_value_info(logits, TensorProto.FLOAT, dims)
    node = helper.make_node("Gather", ["table", ids], [logits], name="look_up")
    table = numpy_helper.from_array(scores.astype(np.float32), "table")
    graph = helper.make_graph([node], "table", [given], [result], [table])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    onnx.checker.check_model(model)
    path = folder / "table.onnx"
    path.write_bytes(model.SerializeToString())
    return path
