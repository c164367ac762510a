"""Operators that pad, spread, mask or interpolate, of data and weights with infinities and NaN:
what is not part of a sum does not reach it, as in onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import compiler

pytest.importorskip("onnxruntime")
INF, NAN = np.inf, np.nan


def spoiled(shape: tuple[int, ...], share: float, seed: int) -> Any:
    """Random numbers, a share of which are infinities and NaN."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=shape).astype(np.float32)
    at = rng.random(shape)
    x[at < share] = rng.choice(np.float32([INF, -INF, NAN]), size=int((at < share).sum()))
    return x


def normal(*shape: int) -> Any:
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float32)


def same(op: str, *operands: Any, constants: tuple[int, ...] = (), opset: int = 19,
         **attrs: Any) -> Any:  # fmt: skip
    """The result, compiled, which is nearly the interpreter's and onnxruntime's."""
    import onnxruntime

    names = ["" if a is None else f"x{i}" for i, a in enumerate(operands)]
    held = {n: a for i, (n, a) in enumerate(zip(names, operands, strict=True)) if i in constants}
    given = {n: a for n, a in zip(names, operands, strict=True) if n and n not in held}
    graph = helper.make_graph(
        [helper.make_node(op, names, ["y"], name="node", **attrs)],
        "graph",
        [helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
         for n, a in given.items()],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)],
        [numpy_helper.from_array(a, n) for n, a in held.items()],
    )  # fmt: skip
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)
    session = onnxruntime.InferenceSession(
        proto.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    (want,) = session.run(None, given)
    mod = compiler.from_onnx(proto)
    with np.errstate(all="ignore"):
        interpreted = compiler.evaluate(mod, given)
    got = compiler.build(mod)(given)
    np.testing.assert_allclose(interpreted, want, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
    return got


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("stride", "group", "pads"), [(1, 1, 0), (1, 2, 1), (2, 1, 1), (2, 2, 2), (3, 1, 2), (3, 2, 0)]
)
def test_transposed_convolution_with_infinite_weights(stride: int, group: int, pads: int) -> None:
    x, w = normal(1, 4, 4, 3), spoiled((4, 3, 3, 3), 0.05, stride)
    more = [stride - 1, 0]
    assert not np.isfinite(w).all()
    same("ConvTranspose", x, w, normal(3 * group), constants=(1, 2), strides=[stride] * 2,
         group=group, pads=[pads] * 4, output_padding=more)  # fmt: skip


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("x", "w", "attrs"),
    [
        ((1, 2, 5), (2, 3, 3), {"strides": [2]}),
        ((1, 2, 4, 4), (2, 3, 3, 3), {"strides": [2, 2], "dilations": [2, 2]}),
        ((1, 2, 4, 4), (2, 3, 2, 2), {"strides": [3, 3]}),
        ((1, 2, 3, 3, 2), (2, 3, 2, 2, 2), {"strides": [2, 2, 2]}),
        ((1, 2, 4, 4), (2, 3, 3, 3), {"strides": [2, 2], "auto_pad": "SAME_UPPER"}),
    ],
)
def test_transposed_convolutions_of_all_kinds_with_infinite_weights(
    x: tuple[int, ...], w: tuple[int, ...], attrs: dict[str, Any]
) -> None:
    same("ConvTranspose", normal(*x), spoiled(w, 0.06, 1), constants=(1,), **attrs)


@pytest.mark.parametrize("stride", [1, 2])
def test_convolutions_of_infinite_data(stride: int) -> None:
    x = spoiled((1, 4, 6, 5), 0.05, stride)
    attrs = {"strides": [stride] * 2, "pads": [1] * 4}
    same("Conv", x, normal(4, 4, 3, 3), constants=(1,), **attrs)
    same("ConvTranspose", x, normal(4, 4, 3, 3), constants=(1,), **attrs)


PIXELS = [
    [-1, -1],
    [0, 0],
    [1, 1],
    [-1, 1],
    [2, 2],
    [-1.2, 0],
    [0.5, 0.5],
    [-0.5, 0.25],
    [1.01, -1],
]


@pytest.mark.sampled(10)
@pytest.mark.parametrize("aligned", [0, 1])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["linear", "nearest"])
def test_grid_sample_of_infinite_pixels(mode: str, padding: str, aligned: int) -> None:
    x = normal(1, 1, 4, 4)
    x[0, 0, 1, 1], x[0, 0, 3, 3], x[0, 0, 0, 3] = NAN, INF, -INF
    points = [*PIXELS, *np.random.default_rng(0).uniform(-1.5, 1.5, (20, 2))]
    grid = np.float32([[points]])
    same("GridSample", x, grid, opset=20, mode=mode, padding_mode=padding, align_corners=aligned)


@pytest.mark.thorough
def test_deformed_convolution_of_infinite_pixels() -> None:
    offsets = np.random.default_rng(5).normal(size=(1, 8, 4, 4)).astype(np.float32) * 3
    x = np.abs(spoiled((1, 1, 5, 5), 0.1, 4))
    same("DeformConv", x, np.abs(normal(2, 1, 2, 2)), offsets)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("how", ["half_pixel", "asymmetric", "align_corners"])
@pytest.mark.parametrize("mode", ["linear", "nearest"])
def test_resize_of_infinite_pixels(mode: str, how: str) -> None:
    x, sizes = spoiled((1, 1, 4, 5), 0.15, 7), np.int64([1, 1, 7, 10])
    same("Resize", x, None, None, sizes, constants=(3,), mode=mode,
         coordinate_transformation_mode=how)  # fmt: skip


@pytest.mark.sampled(3)
@pytest.mark.parametrize("op", ["MaxPool", "AveragePool", "LpPool"])
@pytest.mark.parametrize("pads", [0, 1])
def test_pools_of_infinite_data(op: str, pads: int) -> None:
    x = spoiled((1, 2, 7, 6), 0.1, 2)
    x = np.where(np.isnan(x), -INF, x) if op == "MaxPool" else x  # onnxruntime loses NaN
    same(op, x.astype(np.float32), kernel_shape=[3, 2], pads=[pads] * 4)


@pytest.mark.parametrize("mode", ["constant", "reflect", "edge", "wrap"])
def test_pads_of_infinite_data(mode: str) -> None:
    pads = np.int64([0, 0, 1, 2, 0, 0, 2, 1])
    same("Pad", spoiled((1, 2, 4, 4), 0.2, 3), pads, constants=(1,), mode=mode)


# ---- sizes of transposed convolutions ------------------------------------------------------------
def scattered(x: Any, w: Any, shape: tuple[int, int], stride: int, auto: str) -> Any:
    """ConvTranspose by its definition: every element adds its kernel to the whole result, of
    which as much is cut (or to which as much is added) as output_shape asks for."""
    size = [(d - 1) * stride + k for d, k in zip(x.shape[2:], w.shape[2:], strict=True)]
    whole = np.zeros((x.shape[0], w.shape[1], *size))
    for i, j in np.ndindex(*x.shape[2:]):
        part = np.einsum("ni,iokl->nokl", x[:, :, i, j], w)
        whole[:, :, i * stride :, j * stride :][:, :, : w.shape[2], : w.shape[3]] += part
    for axis, (own, wanted) in enumerate(zip(size, shape, strict=True), start=2):
        total = max(0, own - wanted)  # if more is wanted than there is: zeros at the end
        first = total // 2 if auto == "SAME_UPPER" else total - total // 2
        at = np.arange(wanted) + first
        inside = (at >= 0) & (at < own)
        whole = np.take(whole, np.clip(at, 0, own - 1), axis)
        whole *= inside.reshape([-1 if k == axis else 1 for k in range(4)])
    return whole


@pytest.mark.sampled(3)
@pytest.mark.parametrize("auto", ["NOTSET", "SAME_UPPER"])
@pytest.mark.parametrize("shape", [(5, 6), (8, 7), (12, 11)])
@pytest.mark.parametrize("stride", [1, 2])
def test_transposed_convolution_of_an_output_shape(
    stride: int, shape: tuple[int, int], auto: str
) -> None:
    x, w = normal(1, 2, 3, 3), normal(2, 3, 3, 3)
    proto = helper.make_graph(
        [helper.make_node("ConvTranspose", ["x", "w"], ["y"], strides=[stride] * 2,
                          output_shape=shape, auto_pad=auto)], "g",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, x.shape)],
        [helper.make_empty_tensor_value_info("y")], [numpy_helper.from_array(w, "w")],
    )  # fmt: skip
    mod = compiler.from_onnx(helper.make_model(proto))
    got = compiler.build(mod)(x)
    np.testing.assert_allclose(got, compiler.evaluate(mod, x), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(got, scattered(x, w, shape, stride, auto), rtol=1e-4, atol=1e-5)
