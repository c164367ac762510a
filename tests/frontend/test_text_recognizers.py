"""Text recognizers imported with an image width that is not known: one build reads every width."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper
from onnx_models import model

import compiler
import quantize
from compiler.codegen import cache
from compiler.ir.expr import tensor_type
from compiler.symbolic import Var as Dim
from compiler.symbolic import imax
from experiments.benchmarks import models

WIDTHS = (96, 320, 640, 101)


class _Graph:
    """Nodes and weights, in the way PyTorch's and Paddle's exporters write them."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: dict[str, np.ndarray] = {}
        self.rng = np.random.default_rng(0)

    def op(self, kind: str, *inputs: str, **attrs: Any) -> str:
        out = f"{kind.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [out], name=f"the_{out}", **attrs))
        return out

    def const(self, value: Any, dtype: Any = np.int64) -> str:
        name = f"c{len(self.weights)}"
        self.weights[name] = np.asarray(value, dtype)
        return name

    def random(self, *shape: int) -> str:
        scale = np.sqrt(2 / max(1, np.prod(shape[1:])))
        return self.const(self.rng.normal(0, scale, shape), np.float32)

    def conv(self, x: str, out: int, channels: int, kernel: int, groups: int = 1, **at: Any) -> str:
        w = self.random(out, channels // groups, kernel, kernel)
        pads = [kernel // 2] * 4
        y = self.op("Conv", x, w, self.random(out), kernel_shape=[kernel] * 2, pads=pads,
                    group=groups, **at)  # fmt: skip
        return self.op("HardSwish", y)

    def length(self, x: str, axis: int) -> str:
        """A dimension as a tensor of one element."""
        d = self.op("Gather", self.op("Shape", x), self.const(axis), axis=0)
        return self.op("Unsqueeze", d, self.const([0]))

    def attention(self, x: str, size: int, heads: int) -> str:
        """Self-attention over [n, t, size], whose reshapes take t from the data's shape."""
        n, t = self.length(x, 0), self.length(x, 1)
        each = size // heads
        qkv = self.op("MatMul", x, self.random(size, 3 * size))
        shape = self.op("Concat", n, t, self.const([3]), self.const([heads]), self.const([each]),
                        axis=0)  # fmt: skip
        split = self.op("Transpose", self.op("Reshape", qkv, shape), perm=[2, 0, 3, 1, 4])
        q, k, v = (self.op("Gather", split, self.const(i), axis=0) for i in range(3))
        scale = self.const(each**-0.5, np.float32)
        score = self.op("MatMul", self.op("Mul", q, scale),
                        self.op("Transpose", k, perm=[0, 1, 3, 2]))  # fmt: skip
        mixed = self.op("MatMul", self.op("Softmax", score, axis=-1), v)
        back = self.op("Transpose", mixed, perm=[0, 2, 1, 3])
        flat = self.op("Reshape", back, self.op("Concat", n, t, self.const([size]), axis=0))
        y = self.op("Add", self.op("MatMul", flat, self.random(size, size)), x)
        return self.op("LayerNormalization", y, self.const(np.ones(size), np.float32),
                       self.const(np.zeros(size), np.float32), axis=-1)  # fmt: skip


@functools.cache
def recognizer() -> onnx.ModelProto:
    """A small network of the form of SVTR: convolutions that narrow the image, attention over its
    columns, characters' probabilities."""
    g = _Graph()
    x = g.conv("x", 16, 3, 3, strides=[2, 2])
    x = g.conv(x, 16, 16, 3, groups=16)
    x = g.conv(x, 24, 16, 1)
    y = g.conv(x, 24, 24, 5, groups=24, strides=[2, 1])
    x = g.conv(y, 32, 24, 1)
    gate = g.op("HardSigmoid", g.op("Conv", g.op("GlobalAveragePool", x), g.random(32, 32, 1, 1)))
    x = g.op("Mul", x, gate)
    wide = g.op("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
    up = g.op("Resize", wide, "", g.const([1, 1, 2, 2], np.float32), mode="nearest",
              coordinate_transformation_mode="asymmetric", nearest_mode="floor")  # fmt: skip
    x = g.op("Concat", g.conv(up, 8, 32, 1), g.conv(up, 24, 32, 3), axis=1)
    x = g.op("AveragePool", x, kernel_shape=[3, 2], strides=[3, 2])
    x = g.op("ReduceMean", x, axes=[2], keepdims=1)
    x = g.op("Transpose", g.op("Squeeze", x, g.const([2])), perm=[0, 2, 1])
    for _ in range(2):
        x = g.attention(x, 32, 4)
    x = g.op("Softmax", g.op("MatMul", x, g.random(32, 50)), axis=2)
    return model(g.nodes, {"x": ["n", 3, 24, "w"]}, [x], g.weights)


def images(height: int, width: int, count: int = 1, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(count, 3, height, width)).astype(np.float32)


def code() -> dict[str, int]:
    """What the compiler has done so far."""
    return cache.statistics()


@pytest.mark.thorough
@pytest.mark.parametrize("threads", [1, 2])
def test_a_recognizer_of_any_width_and_batch_equals_onnxruntime(threads: int) -> None:
    proto = recognizer()
    exe = compiler.build(compiler.from_onnx(proto), threads=threads)
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    before = code()
    for count, width in ((1, 96), (2, 320), (1, 37), (3, 64), (1, 8)):
        x = images(24, width, count)
        (want,) = session.run(None, {"x": x})
        np.testing.assert_allclose(exe(x), want, rtol=0, atol=1e-5)
    assert code() == before, "code was generated after the build"


def test_dimensions_of_the_recognizer_are_floor_divisions_of_its_width() -> None:
    mod = compiler.from_onnx(recognizer(), shapes={"x": (1, 3, 24, "w")})
    (out,) = mod["main"].results
    assert tensor_type(out).shape == (1, imax((Dim("w") + 1) // 4, 1), 50)


@pytest.mark.thorough
def test_an_int8_recognizer_of_any_width_equals_static_builds_bit_for_bit() -> None:
    proto = recognizer()
    mod = compiler.from_onnx(proto, shapes={"x": (1, 3, 24, "w")})
    plan = quantize.calibrate(mod, [images(24, w, seed=w) for w in (64, 96, 160)])
    exe = compiler.build(quantize.realize(mod, plan))
    fixed = {w: compiler.from_onnx(proto, shapes={"x": (1, 3, 24, w)}) for w in (61,)}
    static = {w: compiler.build(quantize.realize(m, plan)) for w, m in fixed.items()}
    before = code()
    for w, one in static.items():
        x = images(24, w)
        np.testing.assert_array_equal(exe(x), one(x))
    assert code() == before


def ppocr() -> Path:
    """PP-OCRv4 rec, which is too large to be shipped."""
    path = models.locate("pp_ocrv4_rec", {})
    if path is None:
        pytest.skip(f"no PP-OCRv4 rec: put pp_ocrv4_rec.onnx in ${models.FOLDER_VARIABLE}")
    return path


@pytest.mark.slow
def test_ppocr_of_any_width_equals_onnxruntime() -> None:
    path = ppocr()
    exe = compiler.build(compiler.from_onnx(path, shapes={"x": (1, 3, 48, "w")}))
    session = onnxruntime.InferenceSession(path)
    before = code()
    for w in WIDTHS:
        x = images(48, w)
        (want,) = session.run(None, {"x": x})
        np.testing.assert_allclose(exe(x), want, rtol=0, atol=1e-3)
    assert code() == before, "code was generated after the build"


@pytest.mark.slow
def test_int8_ppocr_of_any_width_equals_the_interpreter_and_a_static_build() -> None:
    path = ppocr()
    mod = compiler.from_onnx(path, shapes={"x": (1, 3, 48, "w")})
    plan = quantize.calibrate(mod, [images(48, w, seed=w) for w in (96, 160, 320)])
    quantized = quantize.realize(mod, plan)
    exe = compiler.build(quantized)
    fixed = compiler.from_onnx(path, shapes={"x": (1, 3, 48, 320)})
    static = compiler.build(quantize.realize(fixed, plan))
    before = code()
    for w in WIDTHS:
        x = images(48, w)
        np.testing.assert_allclose(exe(x), compiler.evaluate(quantized, x), rtol=0, atol=1e-6)
    x = images(48, 320)
    np.testing.assert_array_equal(exe(x), static(x))
    assert code() == before, "code was generated after the build"
