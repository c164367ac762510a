"""A small convolutional network and examples, for tests of training."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import compiler
from compiler.ir.expr import IRModule
from experiments.training.network import Network, network

SIZE, CLASSES = 6, 3


def tiny_onnx(batch_norm: bool = True, seed: int = 0) -> bytes:
    """A model of images [N, 1, 6, 6]: convolution, batch normalization, ReLU, dense layer."""
    random = np.random.default_rng(seed)

    def weights(name: str, *shape: int) -> onnx.TensorProto:
        return numpy_helper.from_array(
            random.normal(0, 0.3, shape).astype(np.float32), name
        )  # fmt: skip

    held = [weights("w", 4, 1, 3, 3), weights("b", 4), weights("v", CLASSES, 64), weights("c", 3)]
    nodes = [helper.make_node("Conv", ["x", "w", "b"], ["conv"])]
    last = "conv"
    if batch_norm:
        ones = [numpy_helper.from_array(np.ones(4, np.float32), n) for n in ("gain", "var")]
        zeros = [numpy_helper.from_array(np.zeros(4, np.float32), n) for n in ("shift", "mean")]
        held += [*ones, *zeros]
        names = ["conv", "gain", "shift", "mean", "var"]
        nodes.append(helper.make_node("BatchNormalization", names, ["norm"]))
        last = "norm"
    nodes += [
        helper.make_node("Relu", [last], ["relu"]),
        helper.make_node("Flatten", ["relu"], ["flat"]),
        helper.make_node("Gemm", ["flat", "v", "c"], ["scores"], transB=1),
    ]
    graph = helper.make_graph(
        nodes, "tiny",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 1, SIZE, SIZE])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["N", CLASSES])],
        held,
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    return bytes(model.SerializeToString())


def tiny_module(batch: int = 4, batch_norm: bool = True) -> IRModule:
    """It as a module, for batches of a size."""
    shapes: Any = {"x": (batch, 1, SIZE, SIZE)}
    return compiler.from_onnx(tiny_onnx(batch_norm), shapes=shapes)


def tiny_network(batch: int = 4, batch_norm: bool = True) -> Network:
    """It as a network to train."""
    return network(tiny_module(batch, batch_norm))


def tiny_examples(count: int, seed: int = 1) -> tuple[Any, Any]:
    """Images whose class is that of their brightest third, and these classes."""
    random = np.random.default_rng(seed)
    y = random.integers(0, CLASSES, count)
    x = random.normal(0, 0.5, (count, 1, SIZE, SIZE)).astype(np.float32)
    for k, label in enumerate(y):
        x[k, 0, 2 * label : 2 * label + 2] += 1
    return x, y


def tiny_files(folder: Path, count: int = 48) -> dict[str, Any]:
    """The model and examples as files in a folder, and a specification of them."""
    (folder / "tiny.onnx").write_bytes(tiny_onnx())
    x, y = tiny_examples(count)
    x_test, y_test = tiny_examples(30, seed=2)
    np.savez(folder / "tiny.npz", x=x, y=y, x_test=x_test, y_test=y_test)
    return {
        "models": [str(folder / "tiny.onnx")],
        "dataset": str(folder / "tiny.npz"),
        "epochs": 2,
        "batch": 8,
        "schedule": {"rate": 0.05},
        "checkpoint_steps": 3,
    }
