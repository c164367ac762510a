"""The networks that tuning is measured on: those of the other benchmarks, and some whose loops no
rule of schedules was written for, as exporters write them, with random weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from compiler.errors import UnsupportedError
from experiments.benchmarks import models, transformers
from experiments.benchmarks.transformer_graphs import Graph

if TYPE_CHECKING:
    from pathlib import Path

    from compiler.ir.expr import IRModule

Array = Any
Files = Mapping[str, "Path"]
#: (files given by hand) -> the module to tune.
Builder = Callable[[Files], "IRModule"]

MOBILE = (
    # kernel, expanded, out, squeeze and excite, hard swish, stride
    (3, 16, 16, False, False, 1), (3, 64, 24, False, False, 2), (3, 72, 24, False, False, 1),
    (5, 72, 40, True, False, 2), (5, 120, 40, True, False, 1), (5, 120, 40, True, False, 1),
    (3, 240, 80, False, True, 2), (3, 200, 80, False, True, 1), (3, 184, 80, False, True, 1),
    (3, 184, 80, False, True, 1), (3, 480, 112, True, True, 1), (3, 672, 112, True, True, 1),
    (5, 672, 160, True, True, 2), (5, 960, 160, True, True, 1), (5, 960, 160, True, True, 1),
)  # fmt: skip
"""The blocks of MobileNet-v3 large (Howard et al., 2019, table 1)."""
LEVELS = (32, 64, 128, 256)
"""Channels of the levels of the U-Net."""
DILATIONS = (1, 2, 4, 8, 16, 32, 64, 128)
STEPS, FEATURES, HIDDEN = 64, 128, 256
"""Of the LSTM."""
SMALL = ("mnist_dwsep", "mnist_resnet8")
"""Shipped networks that run in number formats as well."""
FORMATS = ("posit16_es1", "float8_e4m3fn")


# ---- graphs --------------------------------------------------------------------------------------
def _act(g: Graph, x: str, hard: bool) -> str:
    return g.op("HardSwish" if hard else "Relu", x)


def mobilenet_v3() -> bytes:
    """MobileNet-v3 large: `x`, float32 [1, 3, 224, 224]."""
    g, x, width = Graph(), "x", 16
    x = _act(g, g.conv(x, 3, width, 3, 2), True)
    for kernel, inner, outputs, squeeze, hard, stride in MOBILE:
        y = x if inner == width else _act(g, g.conv(x, width, inner, 1), hard)
        y = _act(g, g.conv(y, inner, inner, kernel, stride, inner), hard)
        if squeeze:
            few = (inner // 4 + 7) // 8 * 8
            z = g.op("Relu", g.conv(g.op("GlobalAveragePool", y), inner, few, 1))
            z = g.op("HardSigmoid", g.conv(z, few, inner, 1), alpha=1 / 6, beta=0.5)
            y = g.op("Mul", y, z)
        y = g.conv(y, inner, outputs, 1)
        x = g.op("Add", x, y) if stride == 1 and outputs == width else y
        width = outputs
    x = g.op("GlobalAveragePool", _act(g, g.conv(x, width, 960, 1), True))
    x = _act(g, g.dense(g.op("Flatten", x), 960, 1280), True)
    return g.model({"x": np.zeros((1, 3, 224, 224), np.float32)}, g.dense(x, 1280, 1000))


def _group_norm(g: Graph, x: str, channels: int, groups: int = 8) -> str:
    """As torch exports GroupNorm: an instance norm of groups, then a gain and a bias."""
    unit = (g.const(np.ones(groups)), g.const(np.zeros(groups)))
    y = g.op("InstanceNormalization", g.reshape(x, 0, groups, -1), *unit, epsilon=1e-5)
    y = g.op("Reshape", y, g.op("Shape", x))
    gain = g.const(g.rng.uniform(0.7, 1.3, (channels, 1, 1)))
    return g.op("Add", g.op("Mul", y, gain), g.normal(channels, 1, 1, scale=0.1))


def unet() -> bytes:
    """A U-Net with group norms and transposed convolutions: `x`, float32 [1, 3, 128, 128]."""
    g, x, width = Graph(), "x", 3
    kept = []

    def twice(x: str, inputs: int, outputs: int) -> str:
        for n in (inputs, outputs):
            y = g.conv(x, n, outputs, 3, bias=False)
            x = g.op("Relu", _group_norm(g, y, outputs))
        return x

    for level, channels in enumerate(LEVELS):
        x = twice(x, width, channels)
        width = channels
        if level < len(LEVELS) - 1:
            kept.append(x)
            x = g.op("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
    for channels, skip in zip(reversed(LEVELS[:-1]), reversed(kept), strict=True):
        weight = g.normal(width, channels, 2, 2, scale=width**-0.5)
        x = g.op(
            "ConvTranspose", x, weight, g.normal(channels), kernel_shape=[2, 2], strides=[2, 2]
        )
        x = twice(g.op("Concat", skip, x, axis=1), 2 * channels, channels)
        width = channels
    return g.model({"x": np.zeros((1, 3, 128, 128), np.float32)}, g.conv(x, width, 2, 1))


def deformable() -> bytes:
    """Two deformable convolutions, whose offsets and masks convolutions find: `x`, float32
    [1, 32, 56, 56]."""
    g, x = Graph(), "x"
    for inputs, outputs in ((32, 64), (64, 64)):
        offset = g.conv(x, inputs, 18, 3)
        mask = g.op("Sigmoid", g.conv(x, inputs, 9, 3))
        weight = g.normal(outputs, inputs, 3, 3, scale=(9 * inputs) ** -0.5)
        x = g.op(
            "DeformConv", x, weight, offset, g.normal(outputs, scale=0.1), mask,
            kernel_shape=[3, 3], pads=[1] * 4,
        )  # fmt: skip
        x = g.op("Relu", x)
    return g.model({"x": np.zeros((1, 32, 56, 56), np.float32)}, x, opset=19)


def lstm() -> bytes:
    """Two layers of LSTM cells: `x`, float32 [steps, 1, features]."""
    g, x, inputs = Graph(), "x", FEATURES
    for _ in range(2):
        w, r = (g.normal(1, 4 * HIDDEN, n, scale=n**-0.5) for n in (inputs, HIDDEN))
        x = g.op("LSTM", x, w, r, g.normal(1, 8 * HIDDEN, scale=0.1), hidden_size=HIDDEN)
        x, inputs = g.op("Squeeze", x, g.const([1], np.int64)), HIDDEN
    return g.model({"x": np.zeros((STEPS, 1, FEATURES), np.float32)}, x)


def tcn(channels: int = 64, length: int = 512) -> bytes:
    """A temporal convolution net (Bai, Kolter, Koltun, 2018): residual blocks of two dilated causal
    convolutions; `x`, float32 [1, 16, length]."""
    g, x, inputs = Graph(), "x", 16
    for dilation in DILATIONS:
        y, width = x, inputs
        for _ in range(2):
            w = g.normal(channels, width, 3, scale=(3 * width) ** -0.5)
            y = g.op(
                "Conv", y, w, g.normal(channels, scale=0.1), kernel_shape=[3],
                dilations=[dilation], pads=[2 * dilation, 0],
            )  # fmt: skip
            y, width = g.op("Relu", y), channels
        if inputs != channels:
            x = g.op("Conv", x, g.normal(channels, inputs, 1, scale=inputs**-0.5))
        x, inputs = g.op("Relu", g.op("Add", x, y)), channels
    return g.model({"x": np.zeros((1, 16, length), np.float32)}, x)


# ---- modules -------------------------------------------------------------------------------------
def _written(write: Callable[[], bytes], files: Files) -> IRModule:
    import compiler

    mod: IRModule = compiler.from_onnx(write())
    return mod


def _vision(name: str, int8: bool, files: Files) -> IRModule:
    import compiler
    import quantize

    model, path = models.MODELS[name], models.locate(name, files)
    if path is None:
        raise UnsupportedError(f"{name} is not here: {model.hint}")
    shape = (1, *model.shape[1:])
    mod: IRModule = compiler.from_onnx(path, shapes={models.input_name(path): shape})
    if int8:
        mod = quantize.quantize(mod, [x[:1] for x in model.calibration()])
    return mod


def _transformer(name: str, int8: bool, files: Files) -> IRModule:
    import compiler
    import quantize

    network = transformers.NETWORKS[name]
    feeds = network.feeds(2, seed=1)
    mod: IRModule = compiler.from_onnx(network.write(network.layers, feeds[0]))
    return quantize.quantize(mod, [dict(x) for x in feeds]) if int8 else mod


def _retyped(name: str, fmt: str, files: Files) -> IRModule:
    from datatypes import change_dtype
    from experiments.zoo import model_batches, model_files

    mod = model_batches.load_for_batch(model_files.model_file(name), (1, 28, 28), 1)
    retyped: IRModule = change_dtype(mod, "float32", fmt)
    return retyped


GRAPHS: Mapping[str, Callable[[], bytes]] = {
    "mobilenet_v3": mobilenet_v3, "unet": unet, "deformable": deformable, "lstm": lstm, "tcn": tcn,
}  # fmt: skip
"""Name -> the ONNX file of a network that only this benchmark has."""
_VISION = ("resnet50", *(n for n in models.MODELS if n != "resnet50"))
NETWORKS: Mapping[str, Builder] = {
    **{name: partial(_written, write) for name, write in GRAPHS.items()},
    **{f"{n}.{f}": partial(_retyped, n, f) for n in SMALL for f in FORMATS},
    "resnet50.int8": partial(_vision, "resnet50", True),
    "bert": partial(_transformer, "bert", False),
    "bert.int8": partial(_transformer, "bert", True),
    **{name: partial(_vision, name, False) for name in _VISION},
    **{f"{n}.int8": partial(_vision, n, True) for n in _VISION[1:]},
    **{n: partial(_transformer, n, False) for n in transformers.NETWORKS if n != "bert"},
    **{f"{n}.int8": partial(_transformer, n, True) for n in transformers.NETWORKS if n != "bert"},
}
"""Name -> what builds its module, in the order in which they are measured: of a batch of one, and
transformers with all their layers."""
