"""Gradients of the weights of convolutions in groups: few outputs of many taps, and many of few."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

import compiler
import datatypes
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import IRModule
from compiler.types.dtypes import Array

# batch, sizes, kernel, groups, channels in and out of a group, stride
SHAPES = {
    "depthwise": (2, (5, 6), (3, 3), 4, 1, 1, 1),
    "depthwise, strided": (2, (5, 6), (3, 2), 3, 1, 1, 2),
    "groups of several": (2, (4, 4), (3, 1), 2, 3, 5, 1),
    "groups of two": (2, (4, 4), (3, 1), 3, 2, 2, 1),
    "as many outputs as taps": (2, (4, 4), (1, 1), 2, 3, 3, 1),
    "many outputs of few taps": (1, (4, 3), (1, 1), 2, 2, 7, 1),
}


def weight_gradient(
    batch: int, sizes: tuple[int, int], kernel: tuple[int, int], groups: int, inputs: int,
    outputs: int, stride: int, dtype: str = "float64",
) -> tuple[IRModule, tuple[Array, ...]]:  # fmt: skip
    """The gradient of the sum of results times a cotangent, to the weights; and x, w, cotangent."""
    random = np.random.default_rng(0)
    b = FunctionBuilder()
    shapes = (batch, groups * inputs, *sizes), (groups * outputs, inputs, *kernel)
    x, w = (b.param(n, s, dtype) for n, s in zip("xw", shapes, strict=True))
    y = b.call("nn.conv2d", x, w, strides=(stride, stride), groups=groups, padding=(1, 0, 1, 0))
    rows, columns = (
        (n + p - k) // stride + 1 for n, p, k in zip(sizes, (2, 0), kernel, strict=True)
    )
    flow = b.param("flow", (batch, groups * outputs, rows, columns), dtype)
    total = b.call("sum", b.call("multiply", y, flow))
    mod = compiler.gradient(IRModule({"main": b.finish(total)}), wrt=["w"])
    given = (*shapes, (batch, groups * outputs, rows, columns))
    return mod, tuple(random.uniform(-1, 1, s).astype(dtype) for s in given)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", SHAPES)
def test_it_is_the_sum_of_products_under_each_tap(name: str) -> None:
    *_, inputs, outputs, stride = SHAPES[name]
    mod, (x, w, flow) = weight_gradient(*SHAPES[name])
    wide = np.pad(x, ((0, 0), (0, 0), (1, 1), (0, 0)))
    rows, columns = flow.shape[2:]
    want = np.zeros_like(w)
    for o, i, kh, kw in product(*map(range, w.shape)):
        channel = o // outputs * inputs + i
        under = wide[:, channel, kh::stride, kw::stride][:, :rows, :columns]
        want[o, i, kh, kw] = (under * flow[:, o]).sum()
    _, found = compiler.evaluate(mod, x, w, flow)
    np.testing.assert_allclose(found, want, rtol=1e-12, atol=1e-12)
    _, built = compiler.build(mod)(x, w, flow)
    np.testing.assert_allclose(built, want, rtol=1e-12, atol=1e-12)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("mode", ["sequential", pytest.param("exact", marks=pytest.mark.thorough)])
@pytest.mark.parametrize("name", ["depthwise", "many outputs of few taps"])
def test_in_formats_it_is_the_interpreters_bit_for_bit(name: str, mode: str) -> None:
    mod, arrays = weight_gradient(*SHAPES[name], dtype="float32")
    mod = datatypes.change_dtype(mod, "float32", "posit8_es1", accumulate=mode)
    for a, b in zip(compiler.build(mod)(*arrays), compiler.evaluate(mod, *arrays), strict=True):
        np.testing.assert_array_equal(a, b)
