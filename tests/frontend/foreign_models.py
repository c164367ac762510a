"""Models with a few nodes that only onnxruntime can run, and what it gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto as T
from onnx import helper

WORDS = [f"w{k}" for k in range(50)]
ENGINES = ["onnxruntime"]


def weights(seed: int = 0, **shapes: tuple[int, ...]) -> list[Any]:
    """Initializers of normally distributed numbers."""
    rng = np.random.default_rng(seed)
    return [
        onnx.numpy_helper.from_array(rng.standard_normal(s).astype(np.float32), name)
        for name, s in shapes.items()
    ]


def model(
    nodes: list[Any], inputs: dict[str, tuple[int, Any]], outputs: dict[str, tuple[int, Any]],
    init: list[Any] | None = None, opset: int = 20,
) -> Any:  # fmt: skip
    """A ModelProto; inputs and outputs are (element type, shape) or TypeProtos by their names."""

    def infos(given: dict[str, Any]) -> list[Any]:
        return [
            helper.make_value_info(n, t)
            if isinstance(t, onnx.TypeProto)
            else helper.make_tensor_value_info(n, *t)
            for n, t in given.items()
        ]

    graph = helper.make_graph(nodes, "g", infos(inputs), infos(outputs), init or [])
    versions = {"": opset, "ai.onnx.ml": 4, "com.microsoft": 1}
    used = {"", *(n.domain for n in nodes)}
    imports = [helper.make_opsetid(d, v) for d, v in versions.items() if d in used]
    imports += [helper.make_opsetid(d, 1) for d in used - set(versions)]
    return helper.make_model(graph, opset_imports=imports, ir_version=9)


def sequence(code: int = T.FLOAT) -> Any:
    """The type of sequences of tensors."""
    return helper.make_sequence_type_proto(helper.make_tensor_type_proto(code, None))


def words_classifier() -> Any:
    """Text -> lower case -> positions in a list of words -> embeddings -> two dense layers."""
    make = helper.make_node
    return model(
        [
            make("StringNormalizer", ["text"], ["lower"], "norm",
                 case_change_action="LOWER", locale="C"),
            make("LabelEncoder", ["lower"], ["ids"], "encode", domain="ai.onnx.ml",
                 keys_strings=WORDS, values_int64s=list(range(len(WORDS))), default_int64=0),
            make("Gather", ["emb", "ids"], ["e"], "embed"),
            make("MatMul", ["e", "w1"], ["h0"], "fc1"),
            make("Relu", ["h0"], ["h1"], "relu"),
            make("MatMul", ["h1", "w2"], ["y"], "fc2"),
        ],
        {"text": (T.STRING, ["n"])},
        {"y": (T.FLOAT, None)},
        weights(emb=(50, 16), w1=(16, 8), w2=(8, 4)),
    )  # fmt: skip


def inverse_of_scores() -> Any:
    """A network with a matrix inverse (com.microsoft) between a dense layer and another."""
    make = helper.make_node
    return model(
        [
            make("MatMul", ["x", "w1"], ["product"], "fc1"),
            make("Add", ["product", "far"], ["h"], "far_from_singular"),
            make("Inverse", ["h"], ["i"], "inverse", domain="com.microsoft"),
            make("MatMul", ["i", "w2"], ["y"], "fc2"),
        ],
        {"x": (T.FLOAT, ["n", 4, 6])},
        {"y": (T.FLOAT, None)},
        [
            *weights(w1=(6, 4), w2=(4, 5)),
            onnx.numpy_helper.from_array(20 * np.eye(4, dtype=np.float32), "far"),
        ],
    )


def chosen_part() -> Any:
    """Parts of a tensor as a sequence, of which one is taken; around it a convolution and a sum."""
    make = helper.make_node
    return model(
        [
            make("Conv", ["x", "k"], ["c"], "conv", pads=[1, 1, 1, 1]),
            make("SplitToSequence", ["c"], ["parts"], "split", axis=1, keepdims=1),
            make("Identity", ["parts"], ["same"], "same"),
            make("SequenceAt", ["same", "which"], ["one"], "at"),
            make("Relu", ["one"], ["r"], "relu"),
            make("ReduceSum", ["r"], ["y"], "sum"),
        ],
        {"x": (T.FLOAT, [1, 3, 8, 8]), "which": (T.INT64, [])},
        {"r": (T.FLOAT, None), "y": (T.FLOAT, None)},
        weights(k=(4, 3, 3, 3)),
    )


def by_onnxruntime(proto: Any, **inputs: Any) -> list[Any]:
    """What onnxruntime gives for the whole model."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 4
    data = proto.SerializeToString()
    session = ort.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    given = {n: x.astype(object) if _is_text(x) else x for n, x in inputs.items()}
    return list(session.run(None, given))


def _is_text(x: Any) -> bool:
    return isinstance(x, np.ndarray) and x.dtype.kind == "U"
