"""Small networks whose batch, height or width are symbolic."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st

from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import IRModule, Var, tensor_type
from compiler.symbolic import Index
from compiler.symbolic import Var as Dim
from compiler.types.dtypes import Array

N, H, W = Dim("n"), Dim("h"), Dim("w")


@dataclass(frozen=True, repr=False)
class Net:
    """A network and the shape of its input."""

    mod: IRModule
    shape: tuple[int | Index, ...]

    def __repr__(self) -> str:
        return self.mod.astext()

    def inputs(self, n: int, w: int, seed: int = 0) -> Array:
        """Random data for batch `n`, width `w` and height `w // 2`, where these are symbolic."""
        sizes = {N: n, W: w, H: w // 2}
        shape = [int(Index.of(d).value(sizes)) for d in self.shape]
        return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


class _Drawn:
    """Draws layers one by one; every random weight comes from one seed."""

    def __init__(self, draw: st.DrawFn, seed: int):
        self.draw, self.rng = draw, np.random.default_rng(seed)
        self.b = FunctionBuilder()

    def weights(self, *shape: int) -> Array:
        scale = 1 / np.sqrt(np.prod(shape[1:]))
        return self.rng.normal(0, scale, shape).astype(np.float32)

    def channels(self, x: Var) -> int:
        return int(Index.of(tensor_type(x).shape[1]).const)

    def step(self, x: Var) -> Var:
        name = self.draw(st.sampled_from(["conv", "conv", "depthwise", "pool", "both", "resize"]))
        y: Var = getattr(self, name)(x)
        return self.b.call("nn.relu", y) if self.draw(st.booleans()) else y

    def window(self, x: Var, largest: int) -> tuple[tuple[int, int], dict[str, tuple[int, ...]]]:
        """(kernel, attributes) of a window for an image of any width."""
        height = Index.of(tensor_type(x).shape[2]).constant() or 3
        kernel = (
            min(height, self.draw(st.integers(1, largest))),
            self.draw(st.integers(1, largest)),
        )
        before = [self.draw(st.integers(0, (k - 1) // 2)) for k in kernel]
        after = [k - 1 - p for k, p in zip(kernel, before, strict=True)]
        strides = (self.draw(st.integers(1, 2)), self.draw(st.sampled_from([1, 1, 2])))
        return kernel, {"strides": strides, "padding": (*before, *after)}

    def conv(self, x: Var) -> Var:
        kernel, attrs = self.window(x, 4)
        out, c = self.draw(st.sampled_from([4, 16, 17, 32])), self.channels(x)
        groups = self.draw(st.sampled_from([1, 1, 1, 2]))
        groups = groups if c % groups == 0 and out % groups == 0 else 1
        w, bias = self.weights(out, c // groups, *kernel), self.weights(out)
        bias_given = [self.b.const(bias)] if self.draw(st.booleans()) else []
        return self.b.call("nn.conv2d", x, self.b.const(w), *bias_given, groups=groups, **attrs)

    def depthwise(self, x: Var) -> Var:
        kernel, attrs = self.window(x, 5)
        c = self.channels(x)
        w = self.b.const(self.weights(c, 1, *kernel))
        return self.b.call("nn.conv2d", x, w, groups=c, **attrs)

    def pool(self, x: Var) -> Var:
        kernel, attrs = self.window(x, 3)
        op = self.draw(st.sampled_from(["nn.max_pool2d", "nn.avg_pool2d"]))
        return self.b.call(op, x, pool_size=kernel, **attrs)

    def both(self, x: Var) -> Var:
        c = self.channels(x)
        y = self.b.call("nn.conv2d", x, self.b.const(self.weights(c, c, 1, 1)))
        if self.draw(st.booleans()):
            return self.b.call("add", y, x)
        return self.b.call("concatenate", y, x, axis=1)

    def resize(self, x: Var) -> Var:
        scales = (float(self.draw(st.integers(1, 2))), 2.0)
        return self.b.call(
            "image.resize2d", x, scales=scales,
            coordinate_transformation_mode="asymmetric", nearest_mode="floor",
        )  # fmt: skip

    def attention(self, x: Var) -> Var:
        """One head over the columns, as text recognizers have it: [n, w', c]."""
        b, c = self.b, self.channels(x)
        rows = b.call("mean", x, axis=[2], keepdims=False)
        tokens = b.call("transpose", rows, axes=(0, 2, 1))
        heads, size = (2, c // 2) if c % 2 == 0 else (1, c)
        n, length = tensor_type(tokens).shape[:2]

        def head() -> Var:
            y = b.call("nn.dense", tokens, b.const(self.weights(c, c)))
            split = b.call("reshape", y, newshape=(n, length, heads, size))
            return b.call("transpose", split, axes=(0, 2, 1, 3))

        q, k, v = head(), head(), head()
        score = b.call("nn.matmul", q, b.call("transpose", k, axes=(0, 1, 3, 2)))
        mixed = b.call("nn.matmul", b.call("nn.softmax", score, axis=-1), v)
        merged = b.call("transpose", mixed, axes=(0, 2, 1, 3))
        y = b.call("add", b.call("reshape", merged, newshape=(n, length, c)), tokens)
        return b.call("nn.dense", y, b.const(self.weights(7, c)), b.const(self.weights(7)))

    def classes(self, x: Var) -> Var:
        c = self.channels(x)
        y = self.b.call("nn.dense", self.b.call("mean", x, axis=[2, 3], keepdims=False),
                        self.b.const(self.weights(5, c)))  # fmt: skip
        return self.b.call("nn.softmax", y, axis=-1)


@st.composite
def nets(draw: st.DrawFn) -> Net:
    """Networks of one to three layers, and perhaps a head, on images of unknown batch or width."""
    d = _Drawn(draw, draw(st.integers(0, 1000)))
    channels = draw(st.sampled_from([1, 3, 16, 20]))
    batch, width = draw(st.sampled_from([(N, W), (1, W), (2, W), (N, 12)]))
    shape = (batch, channels, draw(st.sampled_from([H, 3, 4, 5, 6])), width)
    x = d.b.param("x", shape)
    for _ in range(draw(st.integers(1, 3))):
        x = d.step(x)
    head = draw(st.sampled_from(["", "", "attention", "classes"]))
    out = getattr(d, head)(x) if head else x
    return Net(IRModule({"main": d.b.finish(out)}), shape)
