"""efficientnet-lite0 and PP-OCRv4 in int8 give the bits on WebAssembly that they give here.

$DTYPELAB_DATA is the folder with efficientnet-lite0 (see `large_files`), or $DTYPELAB_BENCH_DIR,
which has PP-OCRv4's file if its package is not installed.
"""

from __future__ import annotations

import numpy as np
import pytest
from large_files import integers
from machines_here import WASM_MACHINES

import compiler

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", ["efficientnet_lite0", "pp_ocrv4_rec"])
@pytest.mark.parametrize("target", WASM_MACHINES)
def test_int8_networks(target: str, name: str) -> None:
    mod, inputs, wanted = integers(name)
    there = compiler.build(mod, target=target)
    for x, want in zip(inputs, wanted, strict=True):
        got = there(x)
        assert got.dtype == want.dtype
        np.testing.assert_array_equal(got, want)
