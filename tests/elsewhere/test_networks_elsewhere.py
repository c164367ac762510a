"""efficientnet-lite0 and PP-OCRv4 in int8 give the bits on WebAssembly that they give here.

$DTYPELAB_DATA is the folder with efficientnet-lite0, or $DTYPELAB_BENCH_DIR, which has PP-OCRv4's
file if its package is not installed.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from machines_here import WASM_MACHINES

import compiler
import quantize
from experiments.benchmarks import models

pytestmark = pytest.mark.slow
FILES = {"efficientnet_lite0": "efficientnet_lite0_bn_clean.onnx"}
"""What files are called in the folder of data."""


def file_of(name: str) -> Path:
    """A network's file."""
    found, data = models.locate(name, {}), os.environ.get("DTYPELAB_DATA", "")
    if found is None and data and (path := Path(data, FILES.get(name, ""))).is_file():
        return path
    if found is None:
        pytest.skip(f"{name}: {models.MODELS[name].hint}, or name its folder by DTYPELAB_DATA")
    return found


@pytest.mark.parametrize("target", WASM_MACHINES)
@pytest.mark.parametrize("name", ["efficientnet_lite0", "pp_ocrv4_rec"])
def test_int8_networks(name: str, target: str) -> None:
    network, path = models.MODELS[name], file_of(name)
    shapes = {models.input_name(path): network.shape}
    mod = compiler.from_onnx(path, shapes=shapes)
    integers = quantize.quantize(mod, network.calibration())
    there, here = compiler.build(integers, target=target), compiler.build(integers)
    for x in network.evaluation()[:2]:
        got, want = there(x), here(x)
        assert got.dtype == want.dtype
        np.testing.assert_array_equal(got, want)
