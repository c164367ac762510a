"""A plan made with open sizes holds where they are given, and constant what follows from them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import compiler
import quantize
from compiler.errors import ConfigError
from compiler.transform.preparation import prepare
from experiments.measure.metrics import sqnr_db
from quantize.plan.fingerprint import of_sizes


def detector(seed: int = 1) -> Any:
    """A convolution whose results get the row that they are in added, as the head of a detector
    adds positions."""
    g = np.random.default_rng(seed)
    node = helper.make_node
    nodes = [
        node("Conv", ["x", "k"], ["c"], pads=[1] * 4),
        node("Relu", ["c"], ["r"]),
        node("Shape", ["r"], ["s"], start=2, end=3),
        node("Squeeze", ["s"], ["h"]),
        node("Range", ["zero", "h", "one"], ["rows"]),
        node("Cast", ["rows"], ["f"], to=TensorProto.FLOAT),
        node("Mul", ["f", "stride"], ["g"]),
        node("Unsqueeze", ["g", "last"], ["u"]),
        node("Add", ["r", "u"], ["a"]),
        node("Conv", ["a", "l"], ["y"]),
    ]
    k, m = (g.standard_normal(s).astype(np.float32) for s in ((4, 3, 3, 3), (2, 4, 1, 1)))
    weights = [
        numpy_helper.from_array(a, name)
        for name, a in {
            "k": k, "l": m, "zero": np.int64(0), "one": np.int64(1), "stride": np.float32(0.5),
            "last": np.array([1]),
        }.items()
    ]  # fmt: skip
    value = helper.make_tensor_value_info
    x, y = (value(n, TensorProto.FLOAT, ["n", c, "h", "w"]) for n, c in (("x", 3), ("y", 2)))
    graph = helper.make_graph(nodes, "g", [x], [y], weights)
    opset = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=opset, ir_version=9)


@pytest.mark.parametrize("size", [(2, 3, 6, 8), (1, 3, 5, 5)])
def test_a_plan_of_open_sizes_holds_for_given_ones(size: tuple[int, ...]) -> None:
    g = np.random.default_rng(2)
    loose, fixed = (compiler.from_onnx(detector(), shapes=s) for s in (None, {"x": size}))
    assert of_sizes(prepare(loose).main)
    assert not of_sizes(prepare(fixed).main)
    plan = quantize.calibrate(loose, [g.standard_normal((2, 3, 7, 9)).astype(np.float32)])
    x = g.standard_normal(size).astype(np.float32)
    for put in (quantize.simulate, quantize.realize):
        want, found = (compiler.evaluate(put(m, plan), x) for m in (loose, fixed))
        # What follows from sizes is on a grid of its own as a constant, and as data on another.
        assert sqnr_db(found, want) > 30
        assert sqnr_db(found, compiler.evaluate(fixed, x)) > 25


def test_it_is_still_no_plan_of_other_weights() -> None:
    x = np.random.default_rng(2).standard_normal((2, 3, 6, 8)).astype(np.float32)
    plan = quantize.calibrate(compiler.from_onnx(detector()), [x])
    other = compiler.from_onnx(detector(seed=5), shapes={"x": x.shape})
    with pytest.raises(ConfigError, match="the plan was made for another model"):
        quantize.realize(other, plan)
