"""DFT and STFT against numpy's transforms."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx_models import Case, Const

from compiler.build import build
from compiler.errors import UnsupportedError
from compiler.frontend.onnx_importer import from_onnx
from compiler.interpret.graph import evaluate


def numbers(*shape: int) -> Any:
    return np.random.default_rng(len(shape)).normal(size=shape).astype(np.float32)


def pairs(z: Any) -> Any:
    return np.stack([z.real, z.imag], -1)


def check(case: Case, wanted: Any) -> None:
    mod = from_onnx(case.model(False))
    for got in (evaluate(mod, **case.arrays), build(mod)(**case.arrays)):
        assert got.shape == wanted.shape
        np.testing.assert_allclose(got, wanted, atol=2e-5 * max(1, np.abs(wanted).max()))


@pytest.mark.thorough
@settings(max_examples=25, deadline=None)
@given(
    st.integers(1, 9), st.integers(1, 11), st.sampled_from([0, 1, -2]), st.booleans(),
    st.sampled_from(["real", "complex", "inverse"]),
)  # fmt: skip
def test_dft(size: int, length: int, axis: int, given_length: bool, kind: str) -> None:
    shape = [2, 3, 2]
    shape[axis] = size
    at = axis if axis >= 0 else axis + 3
    shape.append(1 if kind == "real" else 2)
    x = numbers(*shape)
    z = x[..., 0] + (1j * x[..., 1] if kind != "real" else 0)
    n = length if given_length else size
    want = (np.fft.ifft if kind == "inverse" else np.fft.fft)(z, n, at)
    operands = [x, Const(np.int64(length)) if given_length else None, Const(np.int64(at))]
    check(Case("DFT", tuple(operands), {"inverse": int(kind == "inverse")}, 20), pairs(want))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("length", [7, 8, None, 5])
def test_one_sided_dft_and_its_inverse(length: int | None) -> None:
    x = numbers(2, 8, 1)
    given_length = None if length is None else Const(np.int64(length))
    axis = Const(np.int64(1))
    want = np.fft.rfft(x[..., 0], length or 8, 1)
    check(Case("DFT", (x, given_length, axis), {"onesided": 1}, 20), pairs(want))
    z = numbers(2, 5, 2)
    back = np.fft.irfft(z[..., 0] + 1j * z[..., 1], length, 1)[..., None]
    check(Case("DFT", (z, given_length, axis), {"onesided": 1, "inverse": 1}, 20), back)


def test_dft_of_opset_17_takes_its_axis_from_an_attribute() -> None:
    x = numbers(2, 3, 4, 2)
    want = np.fft.fft(x[..., 0] + 1j * x[..., 1], axis=2)
    check(Case("DFT", (x,), {"axis": 2}, 17), pairs(want))


@pytest.mark.parametrize("onesided", [0, 1])
@pytest.mark.parametrize("window", [False, True])
def test_stft(onesided: int, window: bool) -> None:
    x, weights = numbers(2, 30, 1), np.hanning(8).astype(np.float32)
    frames = np.stack([x[:, 5 * k : 5 * k + 8, 0] for k in range(5)], 1)
    frames = frames * weights if window else frames
    want = (np.fft.rfft if onesided else np.fft.fft)(frames)
    rest = (Const(weights),) if window else (None, Const(np.int64(8)))
    case = Case("STFT", (x, Const(np.int64(5)), *rest), {"onesided": onesided}, 17)
    check(case, pairs(want))


def test_what_has_no_transform_is_refused() -> None:
    complex_half = Case("DFT", (numbers(2, 4, 2),), {"onesided": 1}, 17)
    with pytest.raises(UnsupportedError, match="onesided=1 of complex"):
        from_onnx(complex_half.model(False))
    short = Case("STFT", (numbers(1, 4, 1), Const(np.int64(1)), None, Const(np.int64(9))), {}, 17)
    with pytest.raises(UnsupportedError, match="frames of 9"):
        from_onnx(short.model(False))
