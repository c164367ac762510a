"""Small random networks and schemes, for properties of all of them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from hypothesis import strategies as st

from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import Atom, IRModule, tensor_type
from compiler.op.library import all_ops
from compiler.op.qnn.requantize import ROUNDINGS
from compiler.symbolic import Var
from compiler.types.dtypes import Array
from quantize import QConfig

SHAPE = (3, 8, 7)
ACCUMULATORS = [
    "sequential",
    *(f"int{bits}_{how}" for bits in (12, 16, 20, 24, 32) for how in ("wrap", "saturate")),
]
CONTRACTIONS = [
    (op.name, op.contraction.kernel)
    for op in all_ops().values()
    if op.contraction is not None and op.contraction.kernel not in (0, 2)
]
"""Convolutions along other axes than those of an image: how many."""


class Net:
    """Grows a network of images from random steps."""

    def __init__(self, seed: int, symbolic: bool):
        self.rng = np.random.default_rng(seed)
        self.b = FunctionBuilder()
        self.x: Atom = self.b.param("image", (Var("n") if symbolic else 2, *SHAPE))

    def shape(self) -> tuple[Any, ...]:
        """Of the last value."""
        return tensor_type(self.x).shape

    def weights(self, *shape: int) -> Atom:
        """Of magnitudes that keep values of one size; now and then a channel of zeros."""
        spread = float(np.prod(shape[1:])) ** -0.5
        w = self.rng.normal(0, spread, shape) * self.rng.uniform(0.2, 2, (shape[0], *shape[1:]))
        w[self.rng.integers(0, shape[0])] *= self.rng.integers(0, 4) > 0
        return self.b.const(w.astype(np.float32))

    def bias(self, count: int) -> list[Atom]:
        """Or none."""
        values = self.rng.normal(0, 0.3, count).astype(np.float32)
        return [self.b.const(values)] if self.rng.integers(0, 3) else []

    def step(self, kind: str) -> None:
        """One more layer; nothing where it does not fit."""
        getattr(self, kind)()

    def conv(self) -> None:
        c, r = self.shape()[1], self.rng
        groups = int(r.choice([g for g in (1, 2, c) if c % g == 0]))
        out = groups * int(r.integers(1, 5))
        kernel = [int(k) for k in r.integers(1, 4, 2)]
        attrs = {"dilation": (1, int(r.integers(1, 3))), "strides": (1, int(r.integers(1, 3)))}
        pads = tuple(int(p) for p in r.integers(0, 2, 4))
        if min(self.shape()[2:]) < 5:
            kernel, attrs, pads = [1, 1], {}, (0, 0, 0, 0)
        w = self.weights(out, c // groups, *kernel)
        self.x = self.b.call(
            "nn.conv2d", self.x, w, *self.bias(out), groups=groups, padding=pads, **attrs
        )

    def contraction(self) -> None:
        """Of another rank: images are seen with as many axes as its kernels have."""
        name, rank = CONTRACTIONS[int(self.rng.integers(len(CONTRACTIONS)))]
        c, *sizes = self.shape()[1:]
        groups = int(self.rng.choice([g for g in (1, 2, c) if c % g == 0]))
        out = groups * int(self.rng.integers(1, 5))
        seen = (math.prod(sizes), *[1] * (rank - 1))
        x = self.b.call("reshape", self.x, newshape=(-1, c, *seen))
        w = self.weights(out, c // groups, 3, *[1] * (rank - 1))
        apart = {"dilation": (2, *[1] * (rank - 1)), "padding": (2, *[0] * (rank - 1)) * 2}
        y = self.b.call(name, x, w, *self.bias(out), groups=groups, **apart)
        self.x = self.b.call("reshape", y, newshape=(-1, out, *sizes))

    def relu(self) -> None:
        self.x = self.b.call("nn.relu", self.x)

    def clip(self) -> None:
        low = float(self.rng.choice([0.0, -0.3, -np.inf]))
        self.x = self.b.call("clip", self.x, a_min=low, a_max=1.5)

    def residual(self) -> None:
        c, before = self.shape()[1], self.x
        w = self.weights(c, c, 1, 1)
        self.x = self.b.call("add", self.b.call("nn.conv2d", self.x, w), before)

    def max_pool(self) -> None:
        if min(self.shape()[2:]) > 2:
            self.x = self.b.call(
                "nn.max_pool2d", self.x, pool_size=(2, 2), padding=(0, 1, 0, 1), strides=(1, 2)
            )

    def avg_pool(self) -> None:
        if min(self.shape()[2:]) > 2:
            include = bool(self.rng.integers(0, 2))
            self.x = self.b.call(
                "nn.avg_pool2d", self.x, pool_size=(2, 2), padding=(1, 0, 0, 1),
                count_include_pad=include,
            )  # fmt: skip

    def branches(self) -> None:
        c = self.shape()[1]
        parts = [self.b.call("nn.conv2d", self.x, self.weights(k, c, 1, 1)) for k in (2, 3)]
        self.x = self.b.call("concatenate", *parts, self.x, axis=1)

    def halves(self) -> None:
        c = self.shape()[1]
        if c > 1:
            both = self.b.call("split", self.x, sizes=(1, c - 1), axis=1)
            self.x = self.b.get(both, 1)

    def pad(self) -> None:
        widths = ((0, 0), (0, 0), (1, 0), (0, 1))
        self.x = self.b.call("nn.pad", self.x, pad_width=widths, value=0.4)

    def softmax(self) -> None:
        self.x = self.b.call("nn.softmax", self.x, axis=1)

    def norm(self) -> None:
        """A layer norm over rows or whole images; one operator, or as exporters write it."""
        b, r, shape = self.b, self.rng, self.shape()
        axis = int(r.integers(1, len(shape)))
        inner = shape[axis:] if r.integers(0, 2) else shape[-1:]
        given = [b.const(r.normal(0, s, inner).astype(np.float32)) for s in (1.0, 0.3)]
        given = given[: int(r.integers(1, 3))]
        epsilon = float(np.float32(r.choice([1e-5, 1e-2, 1.0])))
        if r.integers(0, 2):
            self.x = b.call("nn.layer_norm", self.x, *given, axis=axis, epsilon=epsilon)
            return
        axes = tuple(range(axis, len(shape)))
        apart = b.call("subtract", self.x, b.call("mean", self.x, axis=axes, keepdims=True))
        square = b.call("mean", b.call("multiply", apart, apart), axis=axes, keepdims=True)
        root = b.call("sqrt", b.call("add", square, b.const(np.float32(epsilon))))
        self.x = b.call("multiply", b.call("divide", apart, root), given[0])
        self.x = b.call("add", self.x, given[1]) if given[1:] else self.x

    def function(self) -> None:
        """Of one value: an operator, or several."""
        b, x = self.b, self.x
        kind = str(self.rng.choice(["sigmoid", "nn.gelu", "swish", "bent"]))
        if kind == "swish":
            self.x = b.call("multiply", x, b.call("sigmoid", x))
        elif kind == "bent":
            low = b.call("clip", b.call("add", x, b.const(np.float32(0.5))), a_min=0.0, a_max=1.0)
            self.x = b.call("divide", b.call("multiply", x, low), b.const(np.float32(0.7)))
        else:
            self.x = b.call(kind, x)

    def gate(self) -> None:
        """Squeeze and excitation."""
        c = self.shape()[1]
        mean = self.b.call("nn.global_avg_pool2d", self.x)
        gate = self.b.call("nn.conv2d", mean, self.weights(c, c, 1, 1), *self.bias(c))
        self.x = self.b.call("multiply", self.x, self.b.call("sigmoid", gate))

    def arithmetic(self) -> None:
        """With a constant a channel, or a difference."""
        c = self.shape()[1]
        op = str(self.rng.choice(["add", "subtract", "multiply"]))
        other = self.b.const(self.rng.normal(0, 1, (c, 1, 1)).astype(np.float32))
        if self.rng.integers(0, 2):
            other = self.b.call("nn.conv2d", self.x, self.weights(c, c, 1, 1))
        operands = [self.x, other][:: int(self.rng.choice([1, -1]))]
        self.x = self.b.call(op, *operands)

    def finish(self, end: str) -> IRModule:
        """A classifier over the channels, or attention between the rows."""
        b = self.b
        c, _, w = self.shape()[1:]
        if end == "classifier":
            mean = b.call("nn.global_avg_pool2d", self.x)
            flat = b.call("nn.batch_flatten", mean)
            return IRModule(
                {"main": b.finish(b.call("nn.dense", flat, self.weights(5, c), *self.bias(5)))}
            )
        self.x = b.call("mean", self.x, axis=(1,))
        if self.rng.integers(0, 2):
            self.norm()
        rows = self.x
        q, k = (b.call("nn.dense", rows, self.weights(w, w), *self.bias(w)) for _ in range(2))
        turned = b.call("transpose", k, axes=(0, 2, 1))
        seen = b.call("nn.softmax", b.call("nn.matmul", q, turned))
        return IRModule({"main": b.finish(b.call("nn.matmul", seen, rows))})


STEPS = (
    "conv", "conv", "relu", "clip", "residual", "max_pool", "avg_pool", "branches", "halves", "pad",
    "softmax", "norm", "norm", "function", "function", "gate", "arithmetic", "arithmetic",
    *["contraction"] * len(CONTRACTIONS),
)  # fmt: skip


@st.composite
def networks(draw: st.DrawFn) -> IRModule:
    """A network of one image input [n, 3, 8, 7]."""
    net = Net(draw(st.integers(0, 2**32 - 1)), draw(st.booleans()))
    net.step("conv")
    for kind in draw(st.lists(st.sampled_from(STEPS), min_size=1, max_size=6)):
        net.step(kind)
    return net.finish(draw(st.sampled_from(["classifier", "attention"])))


@st.composite
def configs(draw: st.DrawFn) -> QConfig:
    """A scheme, every axis drawn: of up to 16 bits, or of up to 8 with any requantize and
    accumulator."""
    wide = draw(st.sampled_from([False, False, True]))
    ranges = ["restricted", "full", "asymmetric"]
    weight_range = draw(st.sampled_from(ranges))
    least = 9 - (weight_range == "asymmetric")  # bits of weights that are kept as int16
    requantize = ["float32", "float64", "shift"] if wide else list(ROUNDINGS)
    calibrators = ["minmax", "moving_average", "percentile", "sigma", "kl", "mse", "power_of_two"]
    return QConfig(
        functions=draw(st.sampled_from(["auto", "integer", "float"])),
        arithmetic=draw(st.sampled_from(["auto", "integer"])),
        softmax=draw(st.sampled_from(["float", "integer"])),
        layer_norm=draw(st.sampled_from(["float", "integer", "integer"])),
        calibrate=draw(st.sampled_from(calibrators)),
        percentile=draw(st.sampled_from([99.0, 99.99])),
        kl_bins=512,
        weight_granularity=draw(st.sampled_from(["tensor", "channel"])),
        activation_dtype=draw(st.sampled_from(["int8", "uint8"])),
        activation_symmetric=draw(st.booleans()),
        activation_range=draw(st.sampled_from(["full", "restricted"])),
        weight_range=weight_range,
        weight_bits=draw(st.integers(2, 15 if wide else least - 1)),
        activation_bits=draw(st.sampled_from([8, 9, 12, 16] if wide else [2, 4, 6, 8, 8])),
        requantize=draw(st.sampled_from(requantize)),
        accumulate=draw(st.sampled_from(["sequential"] if wide else ACCUMULATORS)),
        bias_correction=draw(st.sampled_from(["none", "analytic", "empirical"])),
    )


def images_of(seed: int, count: int = 2) -> Array:
    """Inputs of such a network."""
    return np.random.default_rng(seed).normal(0, 1, (count, *SHAPE)).astype(np.float32)
