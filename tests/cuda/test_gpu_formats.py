"""A network in every shipped format, its sums in order and exact: on the grids of a GPU, as loops
of this CPU and as interpreted PTX, it has the bits of the CPU's own kernels."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import compiler
import datatypes
from compiler.errors import DtypelabError

ZOO = Path(__file__).parents[2] / "experiments" / "zoo"
FORMATS = sorted(datatypes.list_formats())


@pytest.mark.parametrize(
    "runner",
    [
        pytest.param("simt", marks=pytest.mark.thorough),
        pytest.param("ptx", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("sums", ["sequential", pytest.param("exact", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", FORMATS)
def test_every_format(name: str, sums: str, runner: str) -> None:
    mod = compiler.from_onnx(ZOO / "mnist_mlp.onnx")
    x = np.random.default_rng(0).random((2, 1, 28, 28)).astype(np.float32)
    try:
        mod = datatypes.change_dtype(mod, "float32", name, accumulate=sums)
        want = compiler.build(mod)(x)
    except DtypelabError as error:
        pytest.skip(f"not on the CPU either: {error}")
    got = compiler.build(mod, target=f"cuda -arch=sm_80 -runner={runner}")(x)
    np.testing.assert_array_equal(got, want)
