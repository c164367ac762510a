"""Averages in blocked layouts form their sums as the plain ones do."""

from __future__ import annotations

import numpy as np
import pytest

import compiler
import datatypes
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import IRModule


@pytest.mark.sampled(6)
@pytest.mark.parametrize("accumulate", ["sequential", "float32", "exact"])
@pytest.mark.parametrize("fmt", ["bfloat16", "posit16_es1"])
def test_global_average_behind_a_convolution_keeps_its_accumulation(
    fmt: str, accumulate: str
) -> None:
    rng = np.random.default_rng(0)
    x = rng.uniform(0, 4, (1, 32, 12, 40)).astype(np.float32)
    b = FunctionBuilder()
    data = b.param("x", x.shape, "float32")
    weight = b.const(rng.uniform(0, 0.1, (32, 32, 1, 1)).astype(np.float32))
    mean = b.call("nn.global_avg_pool2d", b.call("nn.conv2d", data, weight))
    module = IRModule({"main": b.finish(mean)})
    changed = datatypes.change_dtype(module, "float32", fmt, accumulate=accumulate)
    wanted = compiler.evaluate(changed, x)
    assert np.array_equal(compiler.build(changed)(x), wanted)
    error = np.abs(wanted / compiler.evaluate(module, x) - 1).max()
    # 480 terms: sums of 8 or so bits stop growing long before the last.
    assert (error > 0.02) == (accumulate == "sequential")
