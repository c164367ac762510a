"""Whole nets in the vector lowering: every output bit is the library lowering's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import compiler
import datatypes
from compiler.errors import UnsupportedError
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import IRModule
from compiler.types.dtypes import Array
from experiments import zoo
from experiments.benchmarks import models
from experiments.data import datasets

FORMATS = (
    "posit16_es1", "posit16_es2", "posit8_es0", "posit8_es2", "posit32_es2", "bfloat16", "float16",
    "float8_e4m3fn", "float8_e5m2", "fixed16_8", "takum16",
)  # fmt: skip
TARGETS = ("llvm -mcpu=haswell", "llvm -mcpu=x86-64-v2")


def small_net(scale: float) -> IRModule:
    """Convolutions (padded, strided, depthwise, grouped), pooling, softmax."""
    rng = np.random.default_rng(0)
    b = FunctionBuilder()

    def weights(*shape: int) -> Any:
        return b.const((rng.normal(size=shape) * scale).astype(np.float32))

    y: Any = b.param("x", (2, 3, 10, 10))
    y = b.call("nn.conv2d", y, weights(20, 3, 3, 3), weights(20), padding=(1, 1, 1, 1))
    y = b.call("nn.relu", y)
    y = b.call("nn.conv2d", y, weights(20, 1, 3, 3), groups=20, padding=(1, 0, 0, 1))
    y = b.call("nn.conv2d", y, weights(16, 10, 3, 3), groups=2, strides=(2, 2))
    y = b.call("nn.max_pool2d", y, pool_size=(2, 2), padding=(0, 0, 1, 1))
    y = b.call("nn.avg_pool2d", y, pool_size=(3, 3), padding=(1, 1, 1, 1))
    y = b.call("nn.global_avg_pool2d", y)
    y = b.call("nn.dense", b.call("reshape", y, newshape=(0, 16)), weights(7, 16), weights(7))
    return IRModule({"main": b.finish(b.call("nn.softmax", y))})


def agree(mod: IRModule, fmt: str, x: Array, target: str = "llvm") -> None:
    retyped = datatypes.change_dtype(mod, "float32", fmt)
    try:
        vector = compiler.build(retyped, target=target, dtype_lowering="vector")
    except UnsupportedError as e:
        pytest.skip(str(e))
    assert vector(x).tobytes() == compiler.build(retyped, dtype_lowering="library")(x).tobytes()


@pytest.mark.sampled(24)
@pytest.mark.parametrize("scale", [0.3, 30.0], ids=["ordinary", "extreme"])
@pytest.mark.parametrize("fmt", FORMATS)
def test_a_small_net(fmt: str, scale: float) -> None:
    x = np.random.default_rng(1).normal(size=(2, 3, 10, 10)).astype(np.float32)
    agree(small_net(scale), fmt, x)


@pytest.mark.thorough
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("fmt", ["posit16_es1", "bfloat16", "float8_e5m2"])
def test_a_small_net_without_avx512(fmt: str, target: str) -> None:
    x = np.random.default_rng(1).normal(size=(2, 3, 10, 10)).astype(np.float32)
    agree(small_net(0.5), fmt, x, target)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("fmt", ["posit16_es1", "bfloat16"])
def test_inputs_that_are_no_numbers(fmt: str) -> None:
    x = np.random.default_rng(1).normal(size=(2, 3, 10, 10)).astype(np.float32)
    x[0, 1, 3, 4], x[1, 2, 9, 9], x[1, 0, 0, 0] = np.nan, np.inf, -0.0
    agree(small_net(0.3), fmt, x)


@pytest.mark.thorough
def test_a_trained_residual_net() -> None:
    path = zoo.model_path("mnist_resnet8")
    assert path is not None
    images = datasets.load("mnist1k").x[:3]
    agree(compiler.from_onnx(path), "posit16_es1", images)


@pytest.mark.slow
def test_resnet50_on_small_images() -> None:
    """ResNet-50 on 32 x 32 pixels, its last pooling over all that is left of them."""
    onnx = pytest.importorskip("onnx")
    path = models.locate("resnet50", {})
    if path is None:
        pytest.skip(models.MODELS["resnet50"].hint)
    proto, shape = onnx.load(path), (1, 3, 32, 32)
    (pool,) = (n for n in proto.graph.node if n.op_type == "AveragePool")
    pool.op_type = "GlobalAveragePool"
    del pool.attribute[:]
    constants = {t.name for t in proto.graph.initializer}
    (name,) = (i.name for i in proto.graph.input if i.name not in constants)
    mod = compiler.from_onnx(proto, shapes={name: shape})
    agree(mod, "posit16_es1", np.random.default_rng(2).normal(size=shape).astype(np.float32))
