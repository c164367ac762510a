"""Networks and data that the tests of quantization share."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np

import compiler
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import IRModule, tensor_type
from compiler.symbolic import Var
from compiler.types.dtypes import Array
from quantize import Plan, QConfig, calibrate

ZOO = Path(__file__).parents[2] / "experiments" / "zoo"
NETS = ("mlp", "resnet8", "dwsep")


@cache
def net(name: str) -> IRModule:
    """A shipped MNIST network."""
    return compiler.from_onnx(ZOO / f"mnist_{name}.onnx")


@cache
def sized(name: str, batch: int) -> IRModule:
    """A shipped MNIST network for a batch of one size."""
    (x,) = net(name).main.params
    return compiler.from_onnx(ZOO / f"mnist_{name}.onnx", shapes={x.name: (batch, 1, 28, 28)})


@cache
def images() -> tuple[Array, Array, Array]:
    """(200 calibration images, 1000 test images, their labels), normalized, NCHW."""
    with np.load(ZOO / "mnist1k.npz") as z:
        arrays = {k: z[k] for k in z.files}
    calibration = next(a for k, a in arrays.items() if a.ndim == 4 and len(a) < 1000)
    test = next(a for k, a in arrays.items() if a.ndim == 4 and len(a) == 1000)
    labels = next(a for k, a in arrays.items() if a.ndim == 1 and len(a) == 1000)
    return normalized(calibration), normalized(test), labels


def normalized(pixels: Array) -> Array:
    """Pixels 0..255 as the networks expect them."""
    scaled = (pixels.astype(np.float32) / np.float32(255) - np.float32(0.1307)) / np.float32(0.3081)
    return scaled.astype(np.float32)


@cache
def plan_of(name: str, config: QConfig = QConfig()) -> Plan:  # noqa: B008
    """The plan of a shipped network from 100 images."""
    x = images()[0][:100]
    return calibrate(net(name), [x[i : i + 25] for i in range(0, 100, 25)], config)


def mixed_net(seed: int = 0) -> IRModule:
    """conv, relu, two branches, residual add, max-pool, split, concatenate, pad, average pool,
    log-softmax, dense: integer regions around a float one, with values that are read by both
    kinds."""
    rng = np.random.default_rng(seed)
    b = FunctionBuilder()

    def weights(*shape: int) -> Array:
        return rng.normal(0, 0.4, shape).astype(np.float32)

    x = b.param("image", (Var("n"), 3, 9, 8))
    c1 = b.call(
        "nn.conv2d", x, b.const(weights(8, 3, 3, 3)), b.const(weights(8)), padding=(1, 1, 1, 1),
        name="c1", origins=["conv_1"],
    )  # fmt: skip
    r1 = b.call("nn.relu", c1, name="r1", origins=["relu_1"])
    c2 = b.call("nn.conv2d", r1, b.const(weights(8, 8, 1, 1)), name="c2", origins=["conv_2"])
    s = b.call("add", c2, r1, name="s", origins=["add_1"])
    r2 = b.call("clip", s, a_min=-1.0, a_max=6.0, name="r2", origins=["clip_1"])
    p = b.call(
        "nn.max_pool2d", r2, pool_size=(3, 2), strides=(1, 2), padding=(1, 0, 1, 0), name="p"
    )
    halves = b.call("split", p, sizes=(3, 5), axis=1, name="halves")
    left, right = b.get(halves, 0), b.get(halves, 1)
    padded = b.call(
        "nn.pad", right, pad_width=((0, 0), (0, 0), (1, 0), (0, 0)), value=0.5, name="padded"
    )
    c3 = b.call("nn.conv2d", padded, b.const(weights(4, 5, 2, 1)), b.const(weights(4)), name="c3")
    both = b.call("concatenate", left, c3, axis=1, name="both")
    clipped = b.call("nn.relu", both, name="clipped")
    a = b.call(
        "nn.avg_pool2d", clipped, pool_size=(2, 2), strides=(2, 2), padding=(1, 0, 0, 0), name="a"
    )
    flat = b.call("nn.batch_flatten", a, name="flat")
    size = int(np.prod(tensor_type(flat).shape[1:]))
    d1 = b.call("nn.dense", flat, b.const(weights(6, size) / 8), b.const(weights(6)), name="d1")
    soft = b.call("nn.log_softmax", d1, name="soft", origins=["softmax_1"])
    d2 = b.call("nn.dense", soft, b.const(weights(5, 6)), name="d2")
    d3 = b.call("nn.dense", flat, b.const(weights(5, size) / 8), name="d3")
    out = b.call("add", d2, d3, name="out")
    return IRModule({"main": b.finish(out, soft)})


def noise(n: int, seed: int = 1) -> Array:
    """Inputs for `mixed_net`."""
    return np.random.default_rng(seed).normal(0, 1, (n, 3, 9, 8)).astype(np.float32)
