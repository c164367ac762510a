"""Small networks as people bring them: several outputs, a state and a scalar, NHWC, bytes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Arrays = dict[str, np.ndarray]


def _weights(generator: np.random.Generator, **shapes: tuple[int, ...]) -> list[Any]:
    return [
        numpy_helper.from_array((0.3 * generator.standard_normal(s)).astype(np.float32), name)
        for name, s in shapes.items()
    ]


def _value(name: str, shape: list[int | str], kind: int = TensorProto.FLOAT) -> Any:
    return helper.make_tensor_value_info(name, kind, shape)


def _model(nodes: list[Any], inputs: list[Any], outputs: list[Any], weights: list[Any]) -> Any:
    graph = helper.make_graph(nodes, "g", inputs, outputs, weights)
    opset = [helper.make_opsetid("", 17)]
    model = helper.make_model(graph, opset_imports=opset, ir_version=9)
    onnx.checker.check_model(model)
    return model


def _floats(generator: np.random.Generator, *shape: int) -> np.ndarray:
    return generator.standard_normal(shape).astype(np.float32)


def pitch_tracker(g: np.random.Generator) -> tuple[Any, Arrays]:
    """Three outputs, of which the second has classes; one has a slash in its name."""
    node = helper.make_node
    nodes = [
        node("Conv", ["audio", "k"], ["c"], strides=[4]),
        node("Relu", ["c"], ["r"]),
        node("Flatten", ["r"], ["f"]),
        node("Gemm", ["f", "wp"], ["pitch/hz"]),
        node("Gemm", ["f", "wc"], ["s"]),
        node("Sigmoid", ["s"], ["confidence"]),
        node("ReduceMean", ["f"], ["volume"], axes=[1], keepdims=0),
    ]
    outputs = [
        _value("pitch/hz", ["b", 1]),
        _value("confidence", ["b", 2]),
        _value("volume", ["b"]),
    ]
    weights = _weights(g, k=(4, 1, 8), wp=(60, 1), wc=(60, 2))
    data = {"audio": _floats(g, 6, 1, 64), "audio_calib": _floats(g, 4, 1, 64)}
    return _model(nodes, [_value("audio", ["b", 1, 64])], outputs, weights), data


def voice_detector(g: np.random.Generator) -> tuple[Any, Arrays]:
    """Audio, a state whose batch is its second dimension, and the sample rate, a scalar."""
    node = helper.make_node
    nodes = [
        node("Cast", ["sr"], ["rate"], to=TensorProto.FLOAT),
        node("Div", ["rate", "k16"], ["scale"]),
        node("Mul", ["input", "scale"], ["x"]),
        node("Gemm", ["x", "wx"], ["gx"]),
        node("ReduceMean", ["state"], ["st"], axes=[0], keepdims=0),
        node("Gemm", ["st", "ws"], ["gs"]),
        node("Add", ["gx", "gs"], ["g"]),
        node("Tanh", ["g"], ["h"]),
        node("Gemm", ["h", "wo"], ["o"]),
        node("Unsqueeze", ["h", "zero"], ["u"]),
        node("Concat", ["u", "u"], ["stateN"], axis=0),
        node("Softmax", ["o"], ["output"]),
    ]
    inputs = [
        _value("input", ["b", 32]),
        _value("state", [2, "b", 8]),
        _value("sr", [], TensorProto.INT64),
    ]
    outputs = [_value("stateN", [2, "b", 8]), _value("output", ["b", 2])]
    weights = [
        *_weights(g, wx=(32, 8), ws=(8, 8), wo=(8, 2)),
        numpy_helper.from_array(np.float32(16000), "k16"),
        numpy_helper.from_array(np.zeros(1, np.int64), "zero"),
    ]
    data = {
        "input": _floats(g, 6, 32),
        "input_calib": _floats(g, 4, 32),
        "state": np.zeros((2, 1, 8), np.float32),
        "sr": np.array(16000),
        "y": np.arange(6) % 2,
    }
    return _model(nodes, inputs, outputs, weights), data


def nhwc_resnet(g: np.random.Generator) -> tuple[Any, Arrays]:
    """Names with colons, all sizes but the channels open."""
    node = helper.make_node
    nodes = [
        node("Transpose", ["input:0"], ["t"], perm=[0, 3, 1, 2]),
        node("Conv", ["t", "k1"], ["a"], pads=[1] * 4),
        node("Relu", ["a"], ["b"]),
        node("Conv", ["b", "k2"], ["c"], pads=[1] * 4),
        node("Add", ["c", "b"], ["d"]),
        node("Relu", ["d"], ["e"]),
        node("GlobalAveragePool", ["e"], ["p"]),
        node("Flatten", ["p"], ["f"]),
        node("Gemm", ["f", "w"], ["Identity:0"]),
    ]
    inputs, outputs = [_value("input:0", ["unk__1", "h", "w", 3])], ["unk__1", 10]
    weights = _weights(g, k1=(4, 3, 3, 3), k2=(4, 4, 3, 3), w=(4, 10))
    data = {
        "input:0": _floats(g, 6, 8, 10, 3),
        "input:0_calib": _floats(g, 4, 8, 10, 3),
        "y": np.arange(6),
    }
    return _model(nodes, inputs, [_value("Identity:0", [*outputs])], weights), data


def byte_classifier(g: np.random.Generator) -> tuple[Any, Arrays]:
    """int32 codes; the data has int64, as numpy makes it."""
    node = helper.make_node
    nodes = [
        node("Gather", ["table", "bytes"], ["e"]),
        node("ReduceMean", ["e"], ["m"], axes=[1], keepdims=0),
        node("Gemm", ["m", "w"], ["l"]),
        node("Softmax", ["l"], ["probs"]),
    ]
    inputs = [_value("bytes", ["n", "length"], TensorProto.INT32)]
    data = {
        "bytes": g.integers(0, 256, (6, 20)),
        "bytes_calib": g.integers(0, 256, (4, 20)),
        "y": np.arange(6) % 4,
    }
    weights = _weights(g, table=(256, 8), w=(8, 4))
    return _model(nodes, inputs, [_value("probs", ["n", 4])], weights), data


MODELS: dict[str, Callable[[np.random.Generator], tuple[Any, Arrays]]] = {
    f.__name__: f for f in (pitch_tracker, voice_detector, nhwc_resnet, byte_classifier)
}
#: Model -> what --shape says where no data is given.
SHAPES = {"nhwc_resnet": "input:0=1x8x10x3", "byte_classifier": "bytes=1x20"}
#: Model -> the output that is judged where nobody says which, if there are several.
JUDGED = {"pitch_tracker": "pitch/hz", "voice_detector": "output"}


def write(name: str, folder: Path) -> tuple[str, str]:
    """Write NAME.onnx and NAME.npz; gives their paths."""
    model, data = MODELS[name](np.random.default_rng(1))
    onnx.save(model, folder / f"{name}.onnx")
    np.savez(folder / f"{name}.npz", **data)
    return str(folder / f"{name}.onnx"), str(folder / f"{name}.npz")
