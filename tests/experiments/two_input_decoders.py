"""Tiny decoders with data: an embedding, one attention, a head; two inputs and two outputs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

VOCABULARY, WIDTH = 16, 8
Array = NDArray[Any]


def decoder(mask: bool = True, hidden: bool = True, seed: int = 0) -> onnx.ModelProto:
    """input_ids [batch, sequence], and attention_mask of the same shape with `mask`, to logits
    [batch, sequence, 16], and hidden.0 [batch, sequence, 8] with `hidden`."""
    random = np.random.default_rng(seed)
    sizes = {"embed": (VOCABULARY, WIDTH), "head": (WIDTH, VOCABULARY)}
    sizes |= {f"w{k}": (WIDTH, WIDTH) for k in "qkv"}
    weights = {n: random.standard_normal(s) / np.sqrt(s[0]) for n, s in sizes.items()}
    known = {n: a.astype(np.float32) for n, a in weights.items()}
    known |= {"head": known["head"] * 4, "one": np.float32(1), "far": np.float32(-1e4)}
    nodes = [helper.make_node("Gather", ["embed", "input_ids"], ["x"])]
    nodes += [helper.make_node("MatMul", ["x", f"w{k}"], [k]) for k in "qkv"]
    nodes += [
        helper.make_node("Transpose", ["k"], ["kt"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["q", "kt"], ["scores"]),
    ]
    inputs, scores = [("input_ids", TensorProto.INT64, ["batch", "sequence"])], "scores"
    if mask:
        inputs.append(("attention_mask", TensorProto.INT64, ["batch", "sequence"]))
        nodes += [
            helper.make_node("Cast", ["attention_mask"], ["kept"], to=TensorProto.FLOAT),
            helper.make_node("Sub", ["one", "kept"], ["left"]),
            helper.make_node("Mul", ["left", "far"], ["bias"]),
            helper.make_node("Unsqueeze", ["bias", "axis"], ["row"]),
            helper.make_node("Add", ["scores", "row"], ["masked"]),
        ]
        scores = "masked"
    nodes += [
        helper.make_node("Softmax", [scores], ["p"], axis=-1),
        helper.make_node("MatMul", ["p", "v"], ["a"]),
        helper.make_node("Add", ["x", "a"], ["hidden.0"]),
        helper.make_node("MatMul", ["hidden.0", "head"], ["logits"]),
    ]
    outputs = [("logits", TensorProto.FLOAT, ["batch", "sequence", VOCABULARY])]
    outputs += [("hidden.0", TensorProto.FLOAT, ["batch", "sequence", WIDTH])] * hidden
    constants = {**known, "axis": np.array([1])}
    graph = helper.make_graph(
        nodes,
        "decoder",
        [helper.make_tensor_value_info(*i) for i in inputs],
        [helper.make_tensor_value_info(*o) for o in outputs],
        [numpy_helper.from_array(np.asarray(a), n) for n, a in constants.items()],
    )
    opsets = [helper.make_opsetid("", 18)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def data(
    mask: bool = True, n: int = 12, length: int = 6, calib: int = 10, seed: int = 1
) -> dict[str, Array]:
    """Random tokens; the last of a sequence has no label, and with `mask` every third sequence ends
    early."""
    random = np.random.default_rng(seed)
    sizes = {"input_ids": n, "y": n, "input_ids_calib": calib}
    arrays = {k: random.integers(0, VOCABULARY, (s, length)) for k, s in sizes.items()}
    arrays["y"][:, -1] = -100
    if mask:
        arrays["attention_mask"] = np.ones((n, length), np.int64)
        arrays["attention_mask"][::3, length - 2 :] = 0
        arrays["attention_mask_calib"] = np.ones((calib, length), np.int64)
    return arrays


def written(folder: Path, **options: Any) -> tuple[str, str]:
    """Paths of a model and of its data, in `folder`."""
    mask = options.get("mask", True)
    onnx.save(decoder(**options), folder / "m.onnx")
    np.savez(folder / "d.npz", **data(mask))
    return str(folder / "m.onnx"), str(folder / "d.npz")
