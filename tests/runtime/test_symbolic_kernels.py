"""Kernels whose axes are symbolic: vectors and tiles for any extent, and every extent right."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import compiler
import quantize
from compiler.errors import UnsupportedError
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import IRModule
from compiler.runtime.executable import Executable
from compiler.symbolic import Index, IntLike
from compiler.symbolic import Var as Dim

N, W = Dim("n"), Dim("w")
EXTENTS = (1, 2, 7, 8, 9, 15, 16, 17, 33, 64)
"""Below, at and above the widths of tiles and vectors."""
Shape = tuple[IntLike, ...]


def inputs(shapes: Sequence[Shape], n: int, w: int) -> list[np.ndarray]:
    rng = np.random.default_rng(n * 100 + w)
    sizes = {N: n, W: w}
    known = ([int(Index.of(d).value(sizes)) for d in s] for s in shapes)
    return [rng.normal(size=s).astype(np.float32) for s in known]


def one_call(op: str, shapes: Sequence[Shape], **attrs: Any) -> IRModule:
    b = FunctionBuilder()
    params = [b.param(f"x{k}", s) for k, s in enumerate(shapes)]
    return IRModule({"main": b.finish(b.call(op, *params, **attrs))})


def assert_right(exe: Executable, mod: IRModule, shapes: Sequence[Shape]) -> None:
    """Equal to the interpreter at every extent of either dimension."""
    for k, w in enumerate(EXTENTS):
        x = inputs(shapes, EXTENTS[k - 3], w)
        want = compiler.evaluate(mod, *x)
        np.testing.assert_allclose(exe(*x), want, rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize(
    ("op", "shapes", "attrs"),
    [
        ("exp", [(N, 3, W)], {}),
        ("add", [(N, W), (N, W)], {}),
        ("multiply", [(2, 3, W), (3, 1)], {}),
        ("nn.matmul", [(2, W, 15), (2, 15, W)], {}),
        ("nn.matmul", [(N, 5), (5, W)], {}),
        ("nn.matmul", [(3, N, W), (3, W, 20)], {}),
    ],
)
def test_lanes_go_along_axes_of_any_extent(
    op: str, shapes: Sequence[Shape], attrs: dict[str, Any]
) -> None:
    mod = one_call(op, shapes, **attrs)
    exe = compiler.build(mod)
    assert "vector for" in exe.as_text()
    assert_right(exe, mod, shapes)


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("op", "shape", "attrs"),
    [
        ("mean", (N, W), {"axis": [1], "keepdims": False}),
        ("mean", (N, 3, W), {"axis": [1], "keepdims": False}),
        ("mean", (N, 3, 4, W), {"axis": [2, 3], "keepdims": True}),
        ("nn.softmax", (N, 5), {"axis": -1}),
        ("nn.softmax", (1, W, 40), {"axis": 2}),
        ("nn.softmax", (N, 4, W), {"axis": 2}),
        ("nn.softmax", (N, W), {"axis": 0}),
        ("max", (W, N), {"axis": [1]}),
    ],
)
def test_rows_of_any_number_are_reduced_side_by_side(
    op: str, shape: Shape, attrs: dict[str, Any]
) -> None:
    mod = one_call(op, [shape], **attrs)
    exe = compiler.build(mod)
    assert "unroll for" in exe.as_text()
    assert_right(exe, mod, [shape])


def convolution(channels: int, out: int, kernel: int, stride: int, groups: int) -> IRModule:
    """A convolution and an activation, on images of unknown width."""
    rng = np.random.default_rng(channels)
    b = FunctionBuilder()
    x = b.param("x0", (1, channels, 5, W))
    w = rng.normal(0, 0.3, (out, channels // groups, kernel, kernel)).astype(np.float32)
    y = b.call("nn.conv2d", x, b.const(w), b.const(w[:, 0, 0, 0]), padding=(kernel // 2,) * 4,
               strides=(1, stride), groups=groups)  # fmt: skip
    return IRModule({"main": b.finish(b.call("nn.relu", y))})


def test_a_convolution_of_single_pixels_has_any_batch_size() -> None:
    rng, b = np.random.default_rng(0), FunctionBuilder()
    x = b.param("x0", (N, 16, 1, 1))
    w = rng.normal(0, 0.3, (24, 16, 1, 1)).astype(np.float32)
    mod = IRModule({"main": b.finish(b.call("nn.conv2d", x, b.const(w), b.const(w[:, 0, 0, 0])))})
    assert_right(compiler.build(mod), mod, [(N, 16, 1, 1)])


CONVOLUTIONS = [
    (3, 16, 3, 2, 1), (16, 16, 3, 1, 16), (32, 32, 5, 1, 32), (32, 32, 3, 2, 32), (16, 40, 1, 1, 1),
    (20, 32, 3, 1, 1), (32, 32, 7, 1, 32),
]  # fmt: skip


@pytest.mark.sampled(4)
@pytest.mark.parametrize("case", CONVOLUTIONS)
def test_tiles_of_convolutions_go_along_a_row_of_any_width(case: tuple[int, ...]) -> None:
    mod = convolution(*case)
    exe = compiler.build(mod)
    # The last tile of a row lies before its end, not after.
    assert re.search(r"min\(nn_relu\w*.i3o\*\d|min\(\w+\.i3o\*\d", exe.as_text())
    assert_right(exe, mod, [(1, case[0], 5, W)])


@pytest.mark.sampled(16)
@pytest.mark.parametrize("target", ["llvm", "llvm -mcpu=haswell"])
@pytest.mark.parametrize("case", CONVOLUTIONS)
def test_int8_convolutions_of_any_width_equal_the_interpreter(
    case: tuple[int, ...], target: str
) -> None:
    try:
        compiler.Target.parse(target)
    except UnsupportedError as e:
        pytest.skip(str(e))
    mod = convolution(*case)
    shape: Shape = (1, case[0], 5, W)
    qmod = quantize.quantize(mod, [inputs([shape], 1, w)[0] for w in (8, 24)])
    exe = compiler.build(qmod, target=target)
    for w in EXTENTS:
        (x,) = inputs([shape], 1, w)
        np.testing.assert_allclose(exe(x), compiler.evaluate(qmod, x), rtol=0, atol=1e-6)


@pytest.mark.parametrize("channels", [(8, 16), (16, 8), (5, 3)])
def test_weights_of_one_pixel_are_packed_alike_for_any_number_of_images(
    channels: tuple[int, int],
) -> None:
    """Squeeze-and-excitation: the last images and the tiles before them read the same weights."""
    read, made = channels
    rng = np.random.default_rng(0)
    b = FunctionBuilder()
    x = b.param("x", (N, read, 1, 1))
    weights = b.const(rng.normal(size=(made, read, 1, 1)).astype(np.float32))
    bias = b.const(rng.normal(size=(made, 1, 1)).astype(np.float32))
    y = b.call("nn.relu", b.call("add", b.call("nn.conv2d", x, weights), bias))
    mod = IRModule({"main": b.finish(y)})
    exe = compiler.build(mod)
    for n in EXTENTS:
        images = rng.normal(size=(n, read, 1, 1)).astype(np.float32)
        want = compiler.evaluate(mod, images)
        np.testing.assert_allclose(exe(images), want, rtol=1e-5, atol=1e-5)
