"""No two threads or blocks of any operator's grids meet in an element, and what the threads compute
one after another is what the operator means."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from grid_interpreter import interpreted

import compiler

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "elsewhere"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "codegen"))

import op_runs
from op_runs import RUNS, Case, label
from test_c_networks import FORMATS, images, network


@pytest.mark.sampled(60)
@pytest.mark.parametrize("run", RUNS, ids=label)
def test_operators(run: tuple[Case, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "build", lambda mod, target: interpreted(mod, target))
    op_runs.check_on("cuda -arch=sm_80 -runner=simt", run)


@pytest.mark.slow
@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("name", ["mnist_mlp", "mnist_dwsep", "mnist_resnet8"])
def test_networks(name: str, fmt: str) -> None:
    mod, x = network(name, fmt), images(1, 3)
    got, want = interpreted(mod)(x), compiler.evaluate(mod, x)
    if fmt == "float32":
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
    else:
        np.testing.assert_array_equal(got, want)
