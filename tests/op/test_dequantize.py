"""The reference of dequantize: exact differences in float32, whatever the width."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import compiler
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import IRModule

DTYPES = ("int8", "uint8", "int16", "int32")


@settings(max_examples=30)
@given(
    dtype=st.sampled_from(DTYPES), zero_point=st.sampled_from([-70000, -129, 0, 7, 255, 1 << 16]),
    channels=st.booleans(), seed=st.integers(0, 99),
)  # fmt: skip
def test_narrow_and_wide_integers_are_what_they_stand_for(
    dtype: str, zero_point: int, channels: bool, seed: int
) -> None:
    rng, range_ = np.random.default_rng(seed), np.iinfo(dtype)
    x = rng.integers(range_.min, range_.max, (3, 4), dtype, endpoint=True)
    x[0, :2] = range_.min, range_.max
    x[1, 0] = np.clip(zero_point, range_.min, range_.max)
    scale = rng.uniform(1e-3, 2, 3 if channels else ()).astype(np.float32)
    b = FunctionBuilder()
    y = b.call(
        "qnn.dequantize", b.param("x", (3, 4), dtype), b.const(scale), zero_point=zero_point, axis=0
    )
    each = np.broadcast_to(scale.reshape(-1, 1) if channels else scale, x.shape)
    want = [np.float32(int(q) - zero_point) * s for q, s in zip(x.flat, each.flat, strict=True)]
    got = compiler.evaluate(IRModule({"main": b.finish(y)}), x)
    assert got.tobytes() == np.array(want, np.float32).tobytes()


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_scalar_stays_one(dtype: str) -> None:
    b = FunctionBuilder()
    y = b.call("qnn.dequantize", b.param("x", (), dtype), b.const(np.float32(0.5)), zero_point=3)
    got = compiler.evaluate(IRModule({"main": b.finish(y)}), np.array(7, dtype))
    assert (got.shape, got.dtype, float(got)) == ((), np.float32, 2.0)
