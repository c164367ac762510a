"""Numbers limited in magnitude, on every kind of target."""

from __future__ import annotations

import numpy as np
import pytest

from compiler.interpret import loop_nests
from compiler.tensor.builder import PrimBuilder
from compiler.tensor.expr import call, const
from compiler.types.dtypes import FLOAT32, FLOAT64, DType
from datatypes.kernels import compile_elementwise

NUMBERS = [0.0, 1e-45, 0.25, 0.5, 0.75, 3e38, np.inf]


@pytest.mark.parametrize("target", ["llvm", "llvm -mcpu=haswell", "llvm -mcpu=x86-64-v2"])
@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT64])
def test_magnitudes_are_limited_and_signs_kept(dtype: DType, target: str) -> None:
    x = np.array([s * n for n in NUMBERS for s in (1, -1)] * 5, dtype.storage)
    want = np.copysign(np.minimum(np.abs(x), 0.5), x)
    run = compile_elementwise(
        "limit", [dtype], dtype, lambda x: call("limit", x, const(0.5, dtype)), target
    )
    np.testing.assert_array_equal(run(x), want)

    b = PrimBuilder("limit")
    source, out = b.input("x", x.shape, dtype), b.buffer("out", x.shape, dtype)
    b.stage(out, {"i": x.size}, lambda i: ((i,), call("limit", source[i], const(0.5, dtype))))
    got = np.zeros_like(x)
    loop_nests.run(b.finish([out]), [x, got])
    np.testing.assert_array_equal(got, want)
