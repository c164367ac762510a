"""Operators whose results are as long as the data says, against onnxruntime; one build for all."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx_models import check, model, run_onnxruntime

from compiler.build import build
from compiler.frontend.onnx_importer import from_onnx

node = helper.make_node


def same(proto: onnx.ModelProto, data: list[dict[str, np.ndarray]]) -> None:
    """Compiled once, the results for all data are those of onnxruntime; so is the interpreter's
    for the first."""
    check(proto, data[0])
    executable = build(from_onnx(proto))
    for arrays in data:
        (want,) = run_onnxruntime(proto, arrays)
        got = executable(**arrays)
        assert (got.shape, got.dtype) == (want.shape, want.dtype)
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("shape", [(7,), (3, 4), (2, 3, 2)])
def test_non_zero(shape: tuple[int, ...]) -> None:
    proto = model([node("NonZero", ["x"], ["y"])], {"x": list(shape)}, ["y"])
    rng = np.random.default_rng(2)
    data = [(rng.random(shape) < p).astype(np.float32) for p in (0.5, 0.0, 1.0, 0.2)]
    data[0].reshape(-1)[0] = -3
    same(proto, [{"x": x} for x in data])


@pytest.mark.parametrize("axis", [None, 0, -1])
def test_compress(axis: int | None) -> None:
    attrs: dict[str, Any] = {} if axis is None else {"axis": axis}
    length = {None: 10, 0: 3, -1: 4}[axis]
    proto = model([node("Compress", ["x", "c"], ["y"], **attrs)], {"x": [3, 4], "c": [length]},
                  ["y"], dtypes={"c": TensorProto.BOOL})  # fmt: skip
    rng = np.random.default_rng(3)
    x = rng.standard_normal((3, 4)).astype(np.float32)
    same(proto, [{"x": x, "c": rng.random(length) < p} for p in (0.6, 0.0, 1.0)])


@pytest.mark.sampled(2)
@pytest.mark.parametrize("center", [0, 1])
@pytest.mark.parametrize("threshold", [True, False])
def test_non_maximum_suppression(center: int, threshold: bool) -> None:
    names = ["boxes", "scores", "most", "iou", *(["least"] if threshold else [])]
    weights = {"most": np.int64([4]), "iou": np.float32([0.3])}
    if threshold:
        weights["least"] = np.float32([0.35])
    nodes = [node("NonMaxSuppression", names, ["y"], center_point_box=center)]
    proto = model(nodes, {"boxes": [2, 12, 4], "scores": [2, 3, 12]}, ["y"], weights)
    data = []
    for seed in range(4):
        rng = np.random.default_rng(seed)
        boxes = rng.random((2, 12, 4)).astype(np.float32)
        scores = rng.random((2, 3, 12)).astype(np.float32)
        scores[0, 0, 3:5] = scores[0, 0, 2]  # of equal scores the first box counts
        boxes[1, 6:8] = boxes[1, 5]
        data.append({"boxes": boxes, "scores": scores * (0.3 if seed == 3 else 1)})
    same(proto, data)


def test_what_is_found_is_used() -> None:
    """Detection as models write it: boxes of the chosen rows, whose number goes on as a size."""
    weights = {"most": np.int64([3]), "iou": np.float32([0.5]), "two": np.int64(2),
               "flat": np.int64([-1, 4]), "half": np.float32(0.5)}  # fmt: skip
    nodes = [
        node("NonMaxSuppression", ["boxes", "scores", "most", "iou"], ["found"]),
        node("Gather", ["found", "two"], ["index"], axis=1),
        node("Reshape", ["boxes", "flat"], ["rows"]),
        node("Gather", ["rows", "index"], ["chosen"]),
        node("Mul", ["chosen", "half"], ["y"]),
    ]
    proto = model(nodes, {"boxes": [1, 6, 4], "scores": [1, 1, 6]}, ["y"], weights)
    data = []
    for seed in range(3):
        rng = np.random.default_rng(seed)
        boxes = rng.random((1, 6, 4)).astype(np.float32)
        data.append({"boxes": boxes, "scores": rng.random((1, 1, 6)).astype(np.float32)})
    same(proto, data)


def test_a_sum_over_nothing_that_was_found_is_0() -> None:
    nodes = [node("NonZero", ["x"], ["found"]), node("ReduceSum", ["found"], ["y"], keepdims=0)]
    executable = build(from_onnx(model(nodes, {"x": [4]}, ["y"])))
    assert executable(np.float32([0, 1, 0, 1])) == 4
    assert executable(np.zeros(4, np.float32)) == 0
