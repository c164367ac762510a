"""Nodes on tensors without elements, of sizes known at import, against onnxruntime; and operators
at the edge of their range: windows of minus infinity, sums that cancel, grids of one image."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import helper

import compiler
import datatypes
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import IRModule
from compiler.types.dtypes import Array
from datatypes.formats import get

EMPTY: dict[str, tuple[str, tuple[int, ...], dict[str, Any], dict[str, Any]]] = {
    "space_to_depth": ("SpaceToDepth", (4, 0, 3, 2), {}, {"blocksize": 1}),
    "space_to_depth_rows": ("SpaceToDepth", (2, 3, 0, 4), {}, {"blocksize": 2}),
    "depth_to_space": ("DepthToSpace", (3, 45, 3, 0), {}, {"blocksize": 3}),
    "depth_to_space_crd": ("DepthToSpace", (0, 8, 3, 2), {}, {"blocksize": 2, "mode": "CRD"}),
    "tile": ("Tile", (0, 4, 5), {"repeats": [1, 3, 1]}, {}),
    "tile_0": ("Tile", (2, 3), {"repeats": [2, 0]}, {}),
    "softmax": ("Softmax", (2, 2, 0, 4), {}, {"axis": 1, "opset": 11}),
    "log_softmax": ("LogSoftmax", (2, 0, 3), {}, {"axis": 1, "opset": 9}),
    "topk_0": ("TopK", (3, 4), {"k": [0]}, {"axis": 1, "opset": 11, "outputs": 2}),
    "topk_empty": ("TopK", (0, 4), {"k": [2]}, {"axis": 1, "opset": 11, "outputs": 2}),
    "max": ("ReduceMax", (3, 0), {}, {"axes": [1], "keepdims": 0}),
    "min": ("ReduceMin", (0, 3), {}, {"axes": [0]}),
    "log_sum_exp": ("ReduceLogSumExp", (7, 0, 3), {}, {"axes": [1]}),
}


def model(op: str, x: Array, stored: dict[str, Any], attrs: dict[str, Any]) -> Any:
    """A model of one node."""
    attrs = dict(attrs)
    opset, outputs = attrs.pop("opset", 17), attrs.pop("outputs", 1)
    names = [f"y{k}" for k in range(outputs)]
    node = helper.make_node(op, ["x", *stored], names, **attrs)
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)],
        [helper.make_empty_tensor_value_info(n) for n in names],
        [helper.make_tensor(n, 7, [len(v)], v) for n, v in stored.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def same(proto: Any, x: Array, tolerance: float = 0) -> None:
    """onnxruntime, the interpreter and compiled code give the same."""
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    mod = compiler.from_onnx(proto, shapes={"x": x.shape})
    with np.errstate(all="ignore"):
        found = [compiler.evaluate(mod, x), compiler.build(mod)(x)]
    for each in found:
        fields = each if isinstance(each, list | tuple) else [each]
        for got, want in zip(fields, session.run(None, {"x": x}), strict=True):
            assert got.shape == want.shape
            assert got.dtype == want.dtype
            np.testing.assert_allclose(got, want, rtol=0, atol=tolerance)


@pytest.mark.parametrize("name", EMPTY)
def test_nodes_on_nothing(name: str) -> None:
    op, shape, stored, attrs = EMPTY[name]
    x = np.ones(shape, np.float32)
    same(model(op, x, stored, attrs), x)


@pytest.mark.parametrize("axis", [0, 1])
def test_parts_without_elements_are_joined(axis: int) -> None:
    x = np.ones((2, 3, 0), np.float32)
    proto = model("Concat", x, {}, {"axis": axis})
    proto.graph.node[0].input.append("x")
    same(proto, x)


@pytest.mark.parametrize("past", [0, 2])
def test_a_past_of_nothing_in_batches_of_any_size(past: int) -> None:
    """One size of an input is open, another is 0: it has no elements, but how many rows is not
    known."""
    shapes = {"past": ("n", past, 2), "x": ("n", 3, 2)}
    inputs = [helper.make_tensor_value_info(name, 1, dims) for name, dims in shapes.items()]
    nodes = [
        helper.make_node("Concat", ["past", "x"], ["all"], axis=1),
        helper.make_node("ReduceSum", ["all"], ["y"], keepdims=0),
    ]
    out = [helper.make_empty_tensor_value_info(n) for n in ("all", "y")]
    graph = helper.make_graph(nodes, "g", inputs, out)
    mod = compiler.from_onnx(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]))
    exe = compiler.build(mod)
    for n in (1, 4):
        before, x = np.ones((n, past, 2), "f"), np.full((n, 3, 2), 2, "f")
        for found in (compiler.evaluate(mod, before, x), exe(before, x)):
            np.testing.assert_array_equal(found[0], np.concatenate([before, x], axis=1))
            assert found[1] == before.sum() + x.sum()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("corners", [0, 1])
@pytest.mark.parametrize(
    "size", [(1, 2, 3, 4), (1, 1, 2, 2), (2, 1, 3, 2), (1, 1, 2, 3, 2)], ids=str
)
def test_affine_grids_of_one_image(size: tuple[int, ...], corners: int) -> None:
    d = len(size) - 2
    theta = np.random.default_rng(0).normal(size=(size[0], d, d + 1)).astype(np.float32)
    attrs = {"align_corners": corners, "opset": 20}
    same(model("AffineGrid", theta, {"size": size}, attrs), theta, 1e-6)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_logarithms_of_sums_that_cancel(dtype: Any) -> None:
    x = np.array([[3, 2, -3, 1, -3], [7, -3, -3, 0.5, -1], [-0.25, 0.5, 0, 0, 0]], dtype)
    same(model("ReduceLogSum", x, {}, {"axes": [1]}), x, 1e-3)


KINDS = ["float16", "float32", "float64", "bfloat16", "float8_e5m2", "float6_e3m2fn", "float8_e4m3"]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("padding", [(0, 0, 0, 0), (1, 1, 0, 0)], ids=["inside", "padded"])
def test_the_largest_of_minus_infinities(kind: str, padding: tuple[int, ...]) -> None:
    """It is minus infinity, as a window's maximum is that of what is in it; the least number in
    formats without infinities."""
    own = kind not in ("float16", "float32", "float64")
    b = FunctionBuilder()
    x = b.param("x", (1, 2, 3, 4), "float32" if own else kind)
    y = b.call("nn.max_pool2d", x, pool_size=(2, 2), padding=padding)
    mod = IRModule({"main": b.finish(y)})
    mod = datatypes.change_dtype(mod, "float32", kind) if own else mod
    data = np.full((1, 2, 3, 4), -np.inf, "float32" if own else kind)
    data[0, 1] = 1
    least = -np.inf
    if own and not get(kind).has_inf:
        least = float(get(kind).value(get(kind).lowest))
    for got in (compiler.evaluate(mod, data), compiler.build(mod)(data)):
        np.testing.assert_array_equal(got[0, 0], least)
        np.testing.assert_array_equal(got[0, 1], 1)
