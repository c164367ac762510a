"""Convolutions of signals, volumes and transposed ones, grouped or not, in integers."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from reference_checks import check_plan

import compiler
import quantize
from compiler.ir.expr import Call, IRModule, tensor_type
from compiler.types.dtypes import Array
from experiments.measure import metrics

sys.path.insert(0, str(Path(__file__).parents[1] / "frontend"))

SIGNAL, IMAGE, VOLUME = (2, 4, 13), (2, 4, 7, 6), (2, 4, 5, 6, 5)
CASES: list[tuple[str, tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ("Conv", SIGNAL, (6, 4, 3), {"pads": [1, 1], "strides": [2]}),
    ("Conv", SIGNAL, (8, 1, 3), {"group": 4, "dilations": [2]}),
    ("ConvTranspose", SIGNAL, (4, 6, 3), {"strides": [2], "output_padding": [1]}),
    ("ConvTranspose", IMAGE, (4, 6, 3, 2), {"strides": [2, 1], "pads": [1, 0, 1, 1]}),
    ("ConvTranspose", IMAGE, (4, 3, 2, 2), {"group": 2, "strides": [2, 2]}),
    ("ConvTranspose", IMAGE, (4, 1, 3, 3), {"group": 4, "dilations": [1, 2]}),
    ("Conv", VOLUME, (3, 4, 3, 2, 2), {"pads": [1, 0, 0, 1, 0, 0]}),
]


def module(op: str, data: tuple[int, ...], kernel: tuple[int, ...], attrs: Any) -> IRModule:
    """One node between the input and a relu, whose channels have weights of very different size."""
    from onnx import helper
    from onnx_models import model

    rng = np.random.default_rng(len(data))
    w = rng.normal(0, 0.3, kernel).astype(np.float32)
    channels = kernel[0] if op == "Conv" else kernel[1] * attrs.get("group", 1)
    axis = 0 if op == "Conv" else 1
    size = 10.0 ** np.linspace(-2, 1, kernel[axis])
    w *= size.reshape([-1 if k == axis else 1 for k in range(len(kernel))]).astype(np.float32)
    nodes = [helper.make_node(op, ["x", "w", "b"], ["y"], "layer", **attrs)]
    nodes.append(helper.make_node("Relu", ["y"], ["z"]))
    weights = {"w": w, "b": rng.normal(0, 0.01, channels).astype(np.float32)}
    return compiler.from_onnx(model(nodes, {"x": list(data)}, ["z"], weights))


def by_channel(a: Array, b: Array) -> float:
    """The worst signal-to-noise ratio of a channel of the result, in dB."""
    return min(float(metrics.sqnr_db(a[:, c], b[:, c])) for c in range(a.shape[1]))


@pytest.mark.sampled(8)
@pytest.mark.parametrize(("op", "data", "kernel", "attrs"), CASES)
def test_every_convolution_has_an_integer_form_with_weights_per_output_channel(
    op: str, data: tuple[int, ...], kernel: tuple[int, ...], attrs: Any
) -> None:
    mod = module(op, data, kernel, attrs)
    rng = np.random.default_rng(0)
    batches = [rng.normal(size=data).astype(np.float32) for _ in range(6)]
    plan = quantize.calibrate(mod, batches)
    assert plan.coverage == 1.0
    q = quantize.realize(mod, plan)
    convolutions = [
        [str(tensor_type(a).dtype) for a in (*b.value.args[:2], b.var)]
        for b in q.main.bindings
        if isinstance(b.value, Call) and str(b.value.op) == "nn.conv2d"
    ]
    assert convolutions == [["uint8", "int8", "int32"]] * len(convolutions)
    assert convolutions
    check_plan(mod, plan, batches[0])
    got, want = compiler.build(q)(batches[0]), compiler.evaluate(mod, batches[0])
    assert by_channel(got, want) > (30 if len(data) < 5 else 25)
    tensor_wide = quantize.calibrate(mod, batches, quantize.QConfig(weight_granularity="tensor"))
    coarse = compiler.build(quantize.realize(mod, tensor_wide))(batches[0])
    if op == "ConvTranspose" or kernel[0] > 3:
        assert by_channel(got, want) > by_channel(coarse, want)
