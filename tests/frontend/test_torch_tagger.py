"""A tagger exported by torch, whose sentences may be of any length: imported with nothing given,
and equal to onnxruntime."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

import compiler


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_a_tagger_of_torch_reads_sentences_of_any_length(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "tagger.onnx"
    script = Path(__file__).with_name("torch_tagger.py")
    subprocess.run([sys.executable, str(script), kind, str(path)], check=True, timeout=600)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    mod = compiler.from_onnx(path)
    exe = compiler.build(mod)
    for batch, length in ((2, 7), (1, 23), (3, 1)):
        words = np.random.default_rng(length).integers(0, 50, (batch, length))
        (want,) = session.run(None, {"words": words})
        for got in (exe(words), compiler.evaluate(mod, words)):
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
