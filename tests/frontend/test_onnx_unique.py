"""Unique and Det against numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import compiler
from compiler.errors import UnsupportedError
from compiler.frontend.onnx_importer import from_onnx


def model(op: str, x: Any, outputs: str = "y", **attrs: Any) -> onnx.ModelProto:
    kind = helper.np_dtype_to_tensor_dtype(x.dtype)
    graph = helper.make_graph(
        [helper.make_node(op, ["x"], list(outputs), name="node", **attrs)], "g",
        [helper.make_tensor_value_info("x", kind, x.shape)],
        [helper.make_empty_tensor_value_info(o) for o in outputs],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 11)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def unique(x: Any, axis: int | None, in_order: bool) -> tuple[Any, ...]:
    """numpy's unique, which sorts; or by first occurrence."""
    y, at, which, counts = np.unique(x, True, True, True, axis=axis)
    which = which.reshape(-1)
    if in_order:
        return y, at, which, counts
    by = np.argsort(at)
    place = np.argsort(by)
    return np.take(y, by, axis or 0), at[by], place[which], counts[by]


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("shape", "axis", "dtype", "in_order"),
    [
        ((12,), None, "float32", 0), ((3, 4), None, "int64", 1), ((1,), 0, "float32", 1),
        ((7, 2), 0, "bool", 0), ((2, 7), 1, "float32", 1), ((6, 2, 2), -3, "int64", 0),
    ],
)  # fmt: skip
def test_unique(shape: tuple[int, ...], axis: int | None, dtype: str, in_order: int) -> None:
    rng = np.random.default_rng(sum(shape))
    first = rng.integers(0, 2, shape).astype(dtype)
    attrs = {} if axis is None else {"axis": axis}
    mod = from_onnx(model("Unique", first, "yijc", sorted=in_order, **attrs))
    exe = compiler.build(mod)
    for x in (first, np.zeros(shape, dtype), rng.integers(0, 3, shape).astype(dtype)):
        want = unique(x, axis, bool(in_order))
        for run in (exe(x), compiler.evaluate(mod, x)):
            for g, w in zip(run, want, strict=True):
                assert g.dtype == w.dtype
                np.testing.assert_array_equal(g, w)


def test_unique_of_one_output() -> None:
    x = np.float32([3, 1, 3, 2])
    assert compiler.build(from_onnx(model("Unique", x)))(x).tolist() == [1, 2, 3]


def test_unique_of_wide_rows_is_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"'node' \(Unique\).*rows of 100 elements"):
        from_onnx(model("Unique", np.zeros((4, 100), np.float32), axis=0))


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("size", "batch"), [(1, ()), (2, (3,)), (3, (2, 2)), (6, (3,))])
def test_determinants(size: int, batch: tuple[int, ...]) -> None:
    rng = np.random.default_rng(size)
    x = rng.normal(size=(*batch, size, size)).astype(np.float32)
    mod = from_onnx(model("Det", x))
    exe = compiler.build(mod)
    alike = np.ones_like(x)
    corner = x * (1 - np.eye(size, dtype=np.float32))  # zeros where the first pivots would be
    for given in (x, x * 1e5, alike, corner, np.zeros_like(x), np.eye(size) * x):
        a = given.astype(np.float32)
        want = np.linalg.det(a.astype(np.float64))
        scale = np.prod(np.linalg.norm(a.astype(np.float64), axis=-1), axis=-1)
        for y in (exe(a), compiler.evaluate(mod, a)):
            assert y.shape == batch
            assert (np.abs(y - want) <= 1e-5 * scale).all()


def test_determinants_of_large_matrices_are_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"'node' \(Det\).*up to 32 rows"):
        from_onnx(model("Det", np.zeros((40, 40), np.float32)))
