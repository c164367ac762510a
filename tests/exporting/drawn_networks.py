"""Networks of random shapes: convolutions, dense layers, pools and elementwise operators, of any
strides, padding, dilation and groups, as hypothesis draws them, in numbers and in formats."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st

import datatypes
import quantize
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import IRModule, Var, tensor_type
from compiler.symbolic import Var as Dim
from compiler.types.dtypes import Array

FORMATS = ("float32", "int8", "float8_e4m3fn", "posit8_es1")
FUNCTIONS = ("nn.relu", "sigmoid", "tanh", "abs", "negative")
"""Of one value, none of which makes it much larger: results must be finite to be compared."""


@dataclass(frozen=True, repr=False)
class Drawn:
    """A network of one input or two, and what it is called with.

    Attributes:
        mod: the module.
        fmt: of FORMATS, in which it computes.
        inputs: of the same batch.
        dims: sizes that are open.
    """

    mod: IRModule
    fmt: str
    inputs: tuple[Array, ...]
    dims: dict[str, int]

    def __repr__(self) -> str:
        return f"{self.fmt} {[a.shape for a in self.inputs]}\n{self.mod.astext()}"


class _Layers:
    def __init__(self, draw: st.DrawFn):
        self.draw, self.b = draw, FunctionBuilder()
        self.rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))

    def weights(self, *shape: int) -> Array:
        scale = float(np.prod(shape[1:])) ** -0.5
        return self.rng.normal(0, scale, shape).astype(np.float32)

    def size(self, x: Var, axis: int) -> int:
        return int(str(tensor_type(x).shape[axis]))

    def window(self, x: Var, dilated: bool) -> tuple[tuple[int, int], dict[str, tuple[int, ...]]]:
        """(kernel, attributes) of a window that fits, padding and all."""
        kernel, dilation, before, after = [], [], [], []
        for axis in (2, 3):
            size = self.size(x, axis)
            k = self.draw(st.integers(1, 5))
            d = self.draw(st.integers(1, 3)) if dilated and k > 1 else 1
            pads = [self.draw(st.integers(0, k - 1)) for _ in range(2)]
            if size + sum(pads) < (k - 1) * d + 1:
                k, d, pads = min(k, size), 1, [0, 0]
            kernel.append(k)
            dilation.append(d)
            before.append(pads[0])
            after.append(pads[1])
        strides = tuple(self.draw(st.integers(1, 3)) for _ in range(2))
        attrs = {"strides": strides, "padding": (*before, *after), "dilation": tuple(dilation)}
        return (kernel[0], kernel[1]), attrs

    def conv(self, x: Var) -> Var:
        kernel, attrs = self.window(x, dilated=True)
        c = self.size(x, 1)
        groups = self.draw(st.sampled_from([g for g in (1, 2, 3, c) if c % g == 0]))
        out = groups * self.draw(st.integers(1, max(1, 24 // groups)))
        bias = [self.b.const(self.weights(out))] if self.draw(st.booleans()) else []
        w = self.b.const(self.weights(out, c // groups, *kernel))
        return self.b.call("nn.conv2d", x, w, *bias, groups=groups, **attrs)

    def pool(self, x: Var) -> Var:
        op = self.draw(st.sampled_from(["nn.max_pool2d", "nn.avg_pool2d"]))
        kernel, attrs = self.window(x, dilated=op == "nn.max_pool2d")
        attrs = dict(attrs, ceil_mode=self.draw(st.booleans()))
        if op == "nn.avg_pool2d":
            attrs["count_include_pad"] = self.draw(st.booleans())
        return self.b.call(op, x, pool_size=kernel, **attrs)

    def function(self, x: Var) -> Var:
        return self.b.call(self.draw(st.sampled_from(FUNCTIONS)), x)

    def arithmetic(self, x: Var) -> Var:
        op = self.draw(st.sampled_from(["add", "subtract", "multiply", "maximum"]))
        constant = op == "multiply" or self.draw(st.booleans())
        other = self.b.const(self.weights(self.size(x, 1), 1, 1)) if constant else x
        return self.b.call(op, x, other)

    def both(self, x: Var) -> Var:
        c = self.size(x, 1)
        out = c if (added := self.draw(st.booleans())) else self.draw(st.integers(1, 9))
        y = self.b.call("nn.conv2d", x, self.b.const(self.weights(out, c, 1, 1)))
        return self.b.call("add", y, x) if added else self.b.call("concatenate", y, x, axis=1)

    def dense(self, x: Var) -> Var:
        flat = self.b.call("nn.batch_flatten", x)
        out = self.draw(st.integers(1, 19))
        return self.b.call("nn.dense", flat, self.b.const(self.weights(out, self.size(flat, 1))))


@st.composite
def networks(draw: st.DrawFn, fmt: str) -> Drawn:
    """In a format of FORMATS; of one input, or two of which the second is added to the first, and
    one output or two."""
    n = draw(st.integers(1, 3))
    batch = Dim("n") if draw(st.booleans()) else n
    c = draw(st.integers(1, 9))
    shape = (c, draw(st.integers(1, 13)), draw(st.integers(1, 13)))
    layers = _Layers(draw)
    b, two = layers.b, draw(st.booleans())
    x = b.param("x", (batch, *shape))
    y = b.call("add", x, b.param("y", (batch, *shape))) if two else x
    kinds = draw(
        st.lists(
            st.sampled_from(["conv", "conv", "pool", "function", "arithmetic", "both"]),
            min_size=2,
            max_size=5,
        )
    )
    for kind in kinds:
        y = getattr(layers, kind)(y)
    z = layers.dense(y)
    mod = IRModule({"main": b.finish(z, y) if draw(st.booleans()) else b.finish(z)})
    inputs = tuple(layers.rng.normal(0, 1, (n, *shape)).astype(np.float32) for _ in range(1 + two))
    if fmt == "int8":
        batches = [{"x": a, "y": a[::-1]} if two else a for a in inputs[:1]]
        mod = quantize.quantize(mod, batches)
    elif fmt != "float32":
        mod = datatypes.change_dtype(mod, "float32", fmt)
    return Drawn(mod, fmt, inputs, {"n": n} if isinstance(batch, Dim) else {})
