"""Pools whose window is larger than the data: there is one window where it reaches beyond them by
less than a stride, as ONNX's inference of shapes and onnxruntime count them; else it is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper
from onnx_models import assert_close, model, run_onnxruntime

import compiler
from compiler.errors import ModelError

POOLS: dict[str, tuple[str, dict[str, Any]]] = {
    "max": ("MaxPool", {}),
    "dilated": ("MaxPool", {"dilations": [2, 1]}),
    "average": ("AveragePool", {}),
    "average with padding": ("AveragePool", {"count_include_pad": 1}),
    "norm": ("LpPool", {"p": 2}),
}


@pytest.mark.parametrize("pads", [0, 1])
@pytest.mark.parametrize("kind", POOLS)
def test_windows_that_reach_beyond_the_data(kind: str, pads: int) -> None:
    op, attrs = POOLS[kind]
    found = 0
    for rows in (1, 2, 3):
        for kernel, stride in ((2, 2), (3, 2), (3, 4), (4, 3)):
            node = helper.make_node(
                op, ["x"], ["y"], kernel_shape=[kernel, 2], strides=[stride, 2],
                pads=[pads, 0, pads, 0], **attrs,
            )  # fmt: skip
            proto = model([node], {"x": [1, 2, rows, 4]}, ["y"])
            x = np.random.default_rng(0).normal(size=(1, 2, rows, 4)).astype(np.float32)
            try:
                want = run_onnxruntime(proto, {"x": x})
            except Exception:  # less than nothing is left
                want = [x[:0]]
            span = (kernel - 1) * attrs.get("dilations", [1])[0] + 1
            if want[0].size:
                got = compiler.evaluate(compiler.from_onnx(proto), x)
                # onnxruntime's maximum of nothing
                assert_close(np.maximum(got, np.finfo(np.float32).min), want)
                found += span > rows + 2 * pads
            else:
                with pytest.raises(ModelError, match="does not fit into data"):
                    compiler.from_onnx(proto)
    assert found or pads


def test_compiled_windows_that_reach_beyond_the_data() -> None:
    node = helper.make_node("MaxPool", ["x"], ["y"], kernel_shape=[2, 2], strides=[2, 2])
    mod = compiler.from_onnx(model([node], {"x": [1, 2, 1, 1]}, ["y"]))
    x = np.array([-1.5, 2], np.float32).reshape(1, 2, 1, 1)
    np.testing.assert_array_equal(compiler.build(mod)(x), x)
