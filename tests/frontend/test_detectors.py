"""Detection models, imported with nothing given: one build for all image sizes, whose results are
those of onnxruntime; quantized, with what follows the convolutions left in float."""

from __future__ import annotations

from functools import cache
from typing import Any

import detectors
import numpy as np
import onnx
import pytest
from detectors import ssd, two_stages, yolo
from onnx_models import assert_close, run_onnxruntime

import quantize
from compiler.build import build
from compiler.frontend.onnx_importer import from_onnx
from compiler.interpret.graph import evaluate

MODELS = {
    "yolo": (lambda: yolo(False), "images", ((1, 3, 64, 64), (2, 3, 32, 96))),
    "yolo_with_suppression": (lambda: yolo(True), "images", ((1, 3, 64, 64), (2, 3, 32, 96))),
    "ssd": (ssd, "image", ((3, 40, 30), (3, 25, 64))),
    "two_stages": (two_stages, "image", ((1, 3, 32, 32), (1, 3, 24, 48))),
}


@cache
def made(name: str) -> onnx.ModelProto:
    detectors.rng = np.random.default_rng(11)  # the same weights whichever test comes first
    return MODELS[name][0]()


def pictures(name: str, seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.random(s).astype(np.float32) for s in MODELS[name][2]]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", MODELS)
def test_a_detector_gives_what_onnxruntime_gives_at_any_size(name: str) -> None:
    proto = made(name)
    mod = from_onnx(proto)
    executable = build(mod)
    found = []
    for seed in (0, 1):
        for x in pictures(name, seed):
            arrays = {MODELS[name][1]: x}
            want = run_onnxruntime(proto, arrays)
            assert_close(executable(**arrays), want)
            found.append(len(want[0]))
    assert_close(evaluate(mod, arrays), want)
    assert max(found) > 0


@pytest.mark.thorough
@pytest.mark.parametrize("name", MODELS)
def test_a_detector_is_quantized_and_its_tail_stays_in_float(name: str) -> None:
    proto, given = made(name), MODELS[name][1]
    mod = from_onnx(proto)
    batches: list[Any] = [{given: x} for x in pictures(name)]
    plan = quantize.calibrate(mod, batches)
    # What follows the convolutions is float, and the plan says why, for every node of it.
    integer = {n.op for n in plan.nodes.values() if n.decision != "float"}
    assert "nn.conv2d" in integer
    tail = {"exp", "sigmoid", "nn.softmax", "subtract", "divide", "minimum", "gather_nd", "topk"}
    assert not integer & tail
    stays = [n for n in plan.nodes.values() if n.decision == "float"]
    assert len(stays) >= 15
    assert all(n.reason for n in stays)
    moves = [n.reason for n in stays if n.op in ("gather_nd", "topk", "minimum")]
    assert set(moves) <= {"it has no integer form", "no integer operator reads its result"}
    assert all(n.reason in plan.summary() for n in stays)
    quantized = quantize.realize(mod, plan)
    text = quantized.astext()
    assert "qnn.conv2d" in text or "qnn.requantize" in text
    executable = build(quantized)
    for batch in batches:
        wanted, got = evaluate(quantized, batch), executable(**batch)
        assert_close(got, wanted if isinstance(wanted, list) else [wanted])
