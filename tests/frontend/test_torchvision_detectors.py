"""torchvision's detection models, exported by torch: imported with nothing given, and equal to
onnxruntime at two image sizes. Minutes each, where torch and torchvision are installed."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

import compiler

MISSING = [m for m in ("torch", "torchvision") if importlib.util.find_spec(m) is None]


@pytest.mark.slow
@pytest.mark.skipif(bool(MISSING), reason=f"{', '.join(MISSING)} not installed")
@pytest.mark.parametrize(
    "name", ["ssdlite320_mobilenet_v3_large", "fasterrcnn_mobilenet_v3_large_320_fpn"]
)
def test_a_detector_of_torchvision_gives_what_onnxruntime_gives(name: str, tmp_path: Path) -> None:
    path = tmp_path / "detector.onnx"
    script = Path(__file__).with_name("torchvision_export.py")
    subprocess.run([sys.executable, str(script), name, str(path)], check=True, timeout=600)
    session = onnxruntime.InferenceSession(str(path))
    executable = compiler.build(compiler.from_onnx(path))
    rng, found = np.random.default_rng(0), 0
    for height, width in ((320, 320), (240, 400)):
        x = rng.random((3, height, width)).astype(np.float32)
        want = session.run(None, {"image": x})
        got = executable(x)
        found += len(want[0])
        for a, b in zip(got, want, strict=True):
            assert a.shape == b.shape
            np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-3)
    assert found > 0
