"""Lanes of floats as int64: what fits nowhere is the nearest end, what is no number 0."""

from __future__ import annotations

import numpy as np
import pytest

import compiler
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import IRModule
from compiler.types.dtypes import DType

SPECIAL = [np.nan, np.inf, -np.inf, 2.0**63, -(2.0**63), 2.0**62.999, -0.0, 1e30, -1e30, 0.9, -0.9]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("target", ["llvm", "llvm -mcpu=haswell"])
def test_casts_to_int64(dtype: str, target: str) -> None:
    rng = np.random.default_rng(0)
    parts = (rng.normal(0, 100, 50), rng.normal(0, 1e19, 50), SPECIAL)
    x = np.concatenate(parts).astype(dtype)
    b = FunctionBuilder()
    y = b.call("cast", b.param("x", x.shape, DType.parse(dtype)), dtype="int64")
    mod = IRModule({"main": b.finish(y)})
    got = compiler.build(mod, target)(x)
    assert got.dtype == np.int64
    assert got.tolist() == compiler.evaluate(mod, x).tolist()
    ends = np.iinfo(np.int64)
    assert got[100:105].tolist() == [0, ends.max, ends.min, ends.max, ends.min]
