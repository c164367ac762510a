"""The sign of a sum that is zero. An exact one is +0, also of a single -0; one that is rounded at
every step has IEEE 754's: a tiny negative sum that became -0 stays so if 0 * -1 is added to it."""

from __future__ import annotations

import numpy as np
import pytest

import compiler
import datatypes
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import IRModule
from compiler.types.dtypes import FLOAT32

X = np.array([-0.0, -0.0, 1.0, 0.0], np.float32)
UPDATES = np.array([-0.0, -1.0], np.float32)


def scattered(name: str) -> IRModule:
    b = FunctionBuilder()
    x = b.param("x", (4,), FLOAT32)
    updates = b.param("u", (2,), FLOAT32)
    at = np.array([1, 2], np.int64)
    at = at if name == "scatter_elements" else at[:, None]
    return IRModule({"main": b.finish(b.call(name, x, b.const(at), updates, reduction="add"))})


@pytest.mark.sampled(3)
@pytest.mark.parametrize("fmt", ["float8_e4m3fn", "float8_e5m2", "bfloat16", "fixed8_4"])
@pytest.mark.parametrize("name", ["scatter_elements", "scatter_nd"])
def test_what_no_update_hits_is_a_sum_too(name: str, fmt: str) -> None:
    mod = datatypes.change_dtype(scattered(name), "float32", fmt, accumulate="exact")
    want = np.asarray(compiler.evaluate(mod, X, UPDATES))
    got = compiler.build(mod)(X, UPDATES)
    assert want.tobytes() == np.asarray(got).tobytes() == np.zeros(4, np.float32).tobytes()


@pytest.mark.parametrize("accumulate", ["fma", "float16", "bfloat16"])
def test_zeros_of_sums_in_a_format_have_the_sign_of_ieee(accumulate: str) -> None:
    b = FunctionBuilder()
    x, w = b.param("x", (1, 2), FLOAT32), b.param("w", (1, 2), FLOAT32)
    mod = IRModule({"main": b.finish(b.call("nn.dense", x, w))})
    mod = datatypes.change_dtype(mod, "float32", "float8_e5m2", accumulate=accumulate)
    data, weight = np.array([[-(2.0**-16), -1.0], [2.0**-16, 0.0]], np.float32)
    want = np.asarray(compiler.evaluate(mod, data[None], weight[None]))
    got = np.asarray(compiler.build(mod)(data[None], weight[None]))
    assert want.tobytes() == got.tobytes() == np.array([[-0.0]], np.float32).tobytes()
