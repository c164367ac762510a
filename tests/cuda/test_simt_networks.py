"""Networks on the grids of a GPU, whose threads this CPU runs as loops: the interpreter's
results."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

import compiler

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "codegen"))

from test_c_networks import FORMATS, images, network

NETWORKS = ("mnist_mlp", "mnist_dwsep", "mnist_resnet8")
FIRST = [("mnist_mlp", "posit16_es1"), ("mnist_resnet8", "int8")]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "fmt"),
    [
        pytest.param(n, f, marks=() if (n, f) in FIRST else pytest.mark.thorough)
        for n in NETWORKS
        for f in FORMATS
    ],
)
def test_networks(name: str, fmt: str) -> None:
    mod, x = network(name, fmt), images(20, 3)
    got = compiler.build(mod, target="cuda -arch=sm_80 -runner=simt")(x)
    want = compiler.evaluate(mod, x)
    if fmt == "float32":
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
    else:
        assert got.dtype == want.dtype
        np.testing.assert_array_equal(got, want)


@pytest.mark.thorough
def test_threads_of_the_cpu_share_the_blocks() -> None:
    mod, x = network("mnist_resnet8", "int8"), images(20, 3)
    exe = compiler.build(mod, target="cuda -runner=simt", threads=2)
    np.testing.assert_array_equal(exe(x), compiler.evaluate(mod, x))
