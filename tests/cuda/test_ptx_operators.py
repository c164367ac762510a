"""Every operator and the shipped networks as PTX, which the interpreter of PTX runs, warp by warp:
the results of the interpreter of graphs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import compiler

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "elsewhere"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "codegen"))

from op_runs import RUNS, Case, check_on, label
from test_c_networks import FORMATS, images, network

PTX = "cuda -arch={} -runner=ptx"
CHIPS = ["sm_75", "sm_80", "sm_90a"]


@pytest.mark.sampled(60)
@pytest.mark.parametrize("run", RUNS, ids=label)
@pytest.mark.parametrize("chip", CHIPS)
def test_operators(chip: str, run: tuple[Case, Any]) -> None:
    check_on(PTX.format(chip), run)


@pytest.mark.parametrize(
    ("name", "fmt"),
    [
        pytest.param(n, f, marks=pytest.mark.thorough)
        for n in ("mnist_mlp", "mnist_dwsep", "mnist_resnet8")
        for f in FORMATS
    ],
)
def test_networks(name: str, fmt: str) -> None:
    mod, x = network(name, fmt), images(1, 3)
    got = compiler.build(mod, target=PTX.format("sm_80"))(x)
    want = compiler.evaluate(mod, x)
    if fmt == "float32":
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
    else:
        np.testing.assert_array_equal(got, want)
    on_threads = compiler.build(mod, target="cuda -arch=sm_80 -runner=simt")(x)
    np.testing.assert_array_equal(got, on_threads)  # the same program, the same bits
