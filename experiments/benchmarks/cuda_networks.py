"""The networks that dot products of bytes were first shown with on NVIDIA's GPUs, as exporters
write them: those of the onnx package, and others with random weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from compiler.errors import UnsupportedError
from experiments.benchmarks import models, tuned_networks
from experiments.benchmarks.transformer_graphs import Graph
from experiments.zoo.light import picture

if TYPE_CHECKING:
    from compiler.ir.expr import IRModule

SIDE, CLASSES = 224, 1000
"""Of pictures, and what they show."""
CALIBRATION = 2
"""Batches that int8 networks are calibrated with."""
#: (batch, files given by hand) -> the network in float32.
Builder = Callable[[int, tuned_networks.Files], "IRModule"]


def _head(g: Graph, x: str, width: int) -> bytes:
    y = g.op("Flatten", g.op("GlobalAveragePool", x))
    x = g.dense(y, width, CLASSES)
    return g.model({"x": np.zeros((1, 3, SIDE, SIDE), np.float32)}, x)


def resnext50() -> bytes:
    """ResNeXt-50 (32x4d; Xie et al., 2017): `x`, float32 [1, 3, 224, 224]."""
    g, width = Graph(), 64
    x = g.op("Relu", g.conv("x", 3, width, 7, 2))
    x = g.op("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    for level, blocks in enumerate((3, 4, 6, 3)):
        inner, outer = 128 << level, 256 << level
        for block in range(blocks):
            stride = 2 if level and not block else 1
            y = g.op("Relu", g.conv(x, width, inner, 1))
            y = g.op("Relu", g.conv(y, inner, inner, 3, stride, groups=32))
            y = g.conv(y, inner, outer, 1)
            kept = x if block else g.conv(x, width, outer, 1, stride)
            x, width = g.op("Relu", g.op("Add", y, kept)), outer
    return _head(g, x, width)


DRN = (
    # channels, stride, dilation of the first convolution and of the rest, blocks, residual
    (16, 1, 1, 1, 1, True), (32, 2, 1, 1, 1, True), (64, 2, 1, 1, 2, True),
    (128, 2, 1, 1, 2, True), (256, 1, 1, 2, 2, True), (512, 1, 2, 4, 2, True),
    (512, 1, 2, 2, 1, False), (512, 1, 1, 1, 1, False),
)  # fmt: skip
"""The levels of DRN-C-26 (Yu, Koltun, Funkhouser, 2017)."""


def drn_c_26() -> bytes:
    """A dilated residual network: `x`, float32 [1, 3, 224, 224]."""
    g, width = Graph(), 16
    x = g.op("Relu", g.conv("x", 3, width, 7))
    for channels, stride, first, dilation, blocks, residual in DRN:
        for block in range(blocks):
            step, near = (stride, first) if not block else (1, dilation)
            y = g.op("Relu", g.conv(x, width, channels, 3, step, dilation=near))
            y = g.conv(y, channels, channels, 3, dilation=dilation)
            if residual:
                same = step == 1 and width == channels
                y = g.op("Add", y, x if same else g.conv(x, width, channels, 1, step))
            x, width = g.op("Relu", y), channels
    return _head(g, x, width)


def _light(name: str, batch: int, files: tuned_networks.Files) -> IRModule:
    import compiler

    model, path = models.MODELS[name], models.locate(name, files)
    if path is None:
        raise UnsupportedError(f"{name} is not here: {model.hint}")
    shape = (batch, *model.shape[1:])
    mod: IRModule = compiler.from_onnx(path, shapes={models.input_name(path): shape})
    return mod


def _written(
    write: Callable[[], bytes], rest: tuple[int, ...], batch: int, files: tuned_networks.Files
) -> IRModule:
    import compiler

    mod: IRModule = compiler.from_onnx(write(), shapes={"x": (batch, *rest)})
    return mod


_PICTURE = (3, SIDE, SIDE)
NETWORKS: Mapping[str, Builder] = {
    "vgg19": partial(_light, "vgg19"),
    "resnet50": partial(_light, "resnet50"),
    "inception_v2": partial(_light, "inception_v2"),
    "resnext50": partial(_written, resnext50, _PICTURE),
    "drn_c_26": partial(_written, drn_c_26, _PICTURE),
    "deformable": partial(_written, tuned_networks.deformable, (32, 56, 56)),
}
"""Name -> what builds it for a batch."""


def inputs(mod: IRModule, count: int, seed: int) -> list[Any]:
    """`count` batches for a module with one input; the same for the same seed."""
    rng = np.random.default_rng(seed)
    (x,) = mod["main"].params
    type_: Any = x.type
    shape = tuple(int(str(d)) for d in type_.shape)
    return [picture(shape, rng) for _ in range(count)]


def in_int8(mod: IRModule) -> IRModule:
    """The network in int8, calibrated with some inputs."""
    import quantize

    out: IRModule = quantize.quantize(mod, inputs(mod, CALIBRATION, seed=1))
    return out
