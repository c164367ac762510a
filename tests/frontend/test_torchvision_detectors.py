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
from compiler.types.dtypes import Array

MISSING = [m for m in ("torch", "torchvision") if importlib.util.find_spec(m) is None]
NEAR = 1e-3
"""How far results may be from onnxruntime's; scores that are nearer to each other may swap."""


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
    rng = np.random.default_rng(0)
    for height, width in ((320, 320), (240, 400)):
        x = rng.random((3, height, width)).astype(np.float32)
        want = by_score(session.run(None, {"image": x}))
        got = by_score(executable(x))
        assert len(np.unique(want[:, 0])) >= 50
        assert len(np.unique(want[:, 1])) >= 5
        assert got.shape == want.shape
        np.testing.assert_allclose(got[:, 0], want[:, 0], rtol=NEAR, atol=NEAR)
        assert unmatched(got, want) == unmatched(want, got) == []


def by_score(results: list[Array]) -> Array:
    """Rows (score, label, box), as they come: by descending score."""
    boxes = next(a for a in results if a.ndim == 2)
    scores = next(a for a in results if a.ndim == 1 and a.dtype.kind == "f")
    labels = next(a for a in results if a.ndim == 1 and a.dtype.kind == "i")
    assert (np.diff(scores) <= 0).all()
    return np.column_stack([scores, labels, boxes]).astype(np.float64)


def unmatched(rows: Array, others: Array) -> list[int]:
    """Rows that are not among the others, those apart whose scores are nearly that of the last:
    others might have taken their place."""
    last = rows[-1, 0] * (1 + NEAR)
    return [
        k
        for k, row in enumerate(rows)
        if row[0] > last and not np.isclose(others, row, rtol=NEAR, atol=NEAR).all(1).any()
    ]
