"""The text networks of two packages, as they come: detectors, recognizers and classifiers of
directions with open sizes import with nothing given and equal onnxruntime at two sizes each."""

from __future__ import annotations

import functools
import importlib.util
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

import compiler
from compiler.errors import InputError

NETS = {
    "rapidocr_onnxruntime/ch_PP-OCRv4_det_infer": [(1, 3, 64, 96), (2, 3, 160, 128)],
    "rapidocr_onnxruntime/ch_PP-OCRv4_rec_infer": [(1, 3, 48, 64), (2, 3, 48, 200)],
    "rapidocr_onnxruntime/ch_ppocr_mobile_v2.0_cls_infer": [(1, 3, 48, 96), (3, 3, 80, 100)],
    "rapidocr/PP-OCRv6_det_small": [(1, 3, 64, 96), (2, 3, 160, 128)],
    "rapidocr/PP-OCRv6_rec_small": [(1, 3, 48, 64), (2, 3, 48, 200)],
    "rapidocr/ch_ppocr_mobile_v2.0_cls_mobile": [(1, 3, 48, 96), (3, 3, 80, 100)],
}
"""package/network -> two sizes, of which the first is small."""


def found(name: str) -> Path:
    package, net = name.split("/")
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        pytest.skip(f"the package {package} is not installed")
    path = Path(spec.origin).parent / "models" / f"{net}.onnx"
    if not path.is_file():
        pytest.skip(f"this version of {package} has no {net}")
    return path


@functools.cache
def imported(name: str) -> tuple[compiler.IRModule, onnxruntime.InferenceSession]:
    """The network with nothing given, and what runs it elsewhere."""
    path = found(name)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return compiler.from_onnx(path), session


def given(name: str, shape: tuple[int, ...]) -> tuple[np.ndarray, list[np.ndarray]]:
    """Random inputs, and what onnxruntime gives for them."""
    session = imported(name)[1]
    x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    return x, session.run(None, {session.get_inputs()[0].name: x})


@pytest.mark.slow
@pytest.mark.parametrize("name", NETS)
def test_networks_equal_onnxruntime_at_two_sizes(name: str) -> None:
    mod, _ = imported(name)
    exe = compiler.build(mod)
    for shape in NETS[name]:
        x, want = given(name, shape)
        np.testing.assert_allclose(exe(x), want[0], rtol=0, atol=1e-3)
    x, want = given(name, NETS[name][0])
    np.testing.assert_allclose(compiler.evaluate(mod, x), want[0], rtol=0, atol=1e-3)
    if "_det_" in name:
        with pytest.raises(InputError, match=r"axis 2 of input .* does not fit: node '.*Add"):
            exe(np.zeros((1, 3, 40, 64), np.float32))


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in NETS if "_cls_" in name])
def test_lines_lower_than_the_last_pool(name: str) -> None:
    """Its window of two rows reaches beyond the one row that there is."""
    mod, session = imported(name)
    exe = compiler.build(mod)
    for shape in ((1, 3, 16, 100), (2, 3, 32, 100), (1, 3, 7, 31), (1, 3, 1, 1)):
        x, want = given(name, shape)
        np.testing.assert_allclose(exe(x), want[0], rtol=0, atol=1e-3)
        np.testing.assert_allclose(compiler.evaluate(mod, x), want[0], rtol=0, atol=1e-3)
    one = compiler.from_onnx(found(name), shapes={session.get_inputs()[0].name: x.shape})
    np.testing.assert_allclose(compiler.evaluate(one, x), want[0], rtol=0, atol=1e-3)
