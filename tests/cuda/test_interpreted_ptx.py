"""The PTX of operators and networks, interpreted: the results of the interpreter of graphs."""

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

TARGET = "cuda -arch={} -runner=ptx"
CHIPS = ("sm_75", "sm_80", "sm_90")


def check(chip: str, run: tuple[Case, Any]) -> None:
    check_on(TARGET.format(chip), run)


def test_an_operator() -> None:
    check("sm_80", next(r for r in RUNS if label(r).startswith("nn.conv2d")))


@pytest.mark.thorough
@pytest.mark.parametrize("k", range(len(RUNS)), ids=lambda k: label(RUNS[k]))
def test_operators(k: int) -> None:
    check(CHIPS[k % 3], RUNS[k])


NETWORKS = [
    pytest.param(n, f, marks=pytest.mark.slow if n == "mnist_resnet8" else pytest.mark.thorough)
    for n in ("mnist_mlp", "mnist_dwsep", "mnist_resnet8")
    for f in FORMATS
]


@pytest.mark.parametrize(("name", "fmt"), NETWORKS)
def test_networks(name: str, fmt: str) -> None:
    mod, x = network(name, fmt), images(2, 3)
    got = compiler.build(mod, target=TARGET.format("sm_80"))(x)
    want = compiler.evaluate(mod, x)
    if fmt == "float32":
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
    else:
        np.testing.assert_array_equal(got, want)
