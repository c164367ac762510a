"""Kernels of grids: what reads a sum is computed with it, and padding is read, not copied."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import compiler
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import IRModule

TARGET = "cuda -arch=sm_80 -runner=simt"


def convolution(
    dtype: str, x: tuple[int, ...], w: tuple[int, ...], relu: bool = True, **attrs: Any
) -> IRModule:
    """A convolution of two parameters, and perhaps what is not negative of it."""
    b = FunctionBuilder()
    if dtype != "float32":
        attrs = {"out_dtype": "int32", **attrs}
    y = b.call("nn.conv2d", b.param("x", x, dtype), b.param("w", w, dtype), **attrs)
    return IRModule({"main": b.finish(b.call("nn.relu", y) if relu else y)})


def numbers(rng: np.random.Generator, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    if dtype == "float32":
        return rng.integers(-8, 9, shape).astype(np.float32)  # sums are exact in any order
    return rng.integers(-128, 128, shape).astype(dtype)


def launches(exe: Any) -> int:
    return int(str(exe.as_text()).count("blockIdx.x for"))


@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_one_kernel_does_a_padded_convolution_and_what_reads_it(dtype: str) -> None:
    mod = convolution(dtype, (2, 3, 6, 5), (4, 3, 3, 3), padding=(1, 1, 1, 1))
    rng = np.random.default_rng(0)
    args = [numbers(rng, dtype, s) for s in ((2, 3, 6, 5), (4, 3, 3, 3))]
    exe = compiler.build(mod, target=TARGET)
    text = str(exe.as_text())
    assert launches(exe) == text.count("primfunc @")
    assert "temp " not in text
    np.testing.assert_array_equal(exe(*args), compiler.evaluate(mod, *args))


@pytest.mark.thorough
@settings(max_examples=25, deadline=None)
@given(
    dtype=st.sampled_from(["float32", "int8", "uint8"]),
    sizes=st.tuples(st.integers(1, 7), st.integers(1, 7)),
    channels=st.tuples(st.integers(1, 5), st.integers(1, 6)),
    kernel=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    padding=st.tuples(*[st.integers(0, 3)] * 4),
    strides=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    dilation=st.tuples(st.integers(1, 2), st.integers(1, 2)),
    zero=st.integers(-3, 3),
)
def test_convolutions(
    dtype: str,
    sizes: tuple[int, int],
    channels: tuple[int, int],
    kernel: tuple[int, int],
    padding: tuple[int, int, int, int],
    strides: tuple[int, int],
    dilation: tuple[int, int],
    zero: int,
) -> None:
    span = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
    room = [sizes[0] + padding[0] + padding[2], sizes[1] + padding[1] + padding[3]]
    if any(r < n for r, n in zip(room, span, strict=True)):
        return
    attrs: dict[str, Any] = {"padding": padding, "strides": strides, "dilation": dilation}
    if dtype != "float32":
        attrs["input_zero_point"] = abs(zero) if dtype == "uint8" else zero
    x, w = (2, channels[0], *sizes), (channels[1], channels[0], *kernel)
    mod = convolution(dtype, x, w, **attrs)
    rng = np.random.default_rng(1)
    args = [numbers(rng, dtype, s) for s in (x, w)]
    exe = compiler.build(mod, target=TARGET)
    assert "pad[" not in exe.as_text()
    np.testing.assert_array_equal(exe(*args), compiler.evaluate(mod, *args))
