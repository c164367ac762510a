"""Which lowering a format gets where none is asked for: the quicker one, with the reason."""

from __future__ import annotations

import numpy as np
import pytest

import compiler
import datatypes
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import IRModule
from compiler.lowering.choose import DtypeLowering, choose_lowerings


def layer(fmt: str, accumulate: str = "sequential") -> IRModule:
    """A dense layer of ordinary numbers in a format."""
    rng = np.random.default_rng(0)
    b = FunctionBuilder()
    w = b.const((rng.normal(size=(20, 40)) / 6).astype(np.float32))
    mod = IRModule({"main": b.finish(b.call("nn.dense", b.param("x", (9, 40)), w))})
    return datatypes.change_dtype(mod, "float32", fmt, accumulate=accumulate)


def choice(mod: IRModule, wanted: str | None = None) -> DtypeLowering:
    (found,) = choose_lowerings(mod, wanted)
    return found


@pytest.mark.thorough
@pytest.mark.parametrize("fmt", ["posit8_es2", "posit8_es3", "posit6_es2", "takum8"])
def test_formats_whose_sums_are_slow_in_lanes_get_tables(fmt: str) -> None:
    mod = layer(fmt)
    assert choice(mod).lowering == "table"
    assert "in lanes" in choice(mod).reason
    assert choice(mod, "vector").lowering == "vector"
    x = np.random.default_rng(1).normal(size=(9, 40)).astype(np.float32)
    exe = compiler.build(mod)
    assert exe.dtype_lowering == "table"
    for other in ("vector", "library"):
        np.testing.assert_array_equal(exe(x), compiler.build(mod, dtype_lowering=other)(x))


@pytest.mark.parametrize(
    "fmt", ["posit8_es0", "posit8_es1", "float8_e4m3fn", "float8_e5m2", "fixed8_4", "posit16_es2"]
)
def test_other_formats_keep_their_lanes(fmt: str) -> None:
    assert choice(layer(fmt)).lowering == "vector"


@pytest.mark.parametrize("accumulate", ["float32", "float64"])
def test_sums_in_floats_keep_their_lanes(accumulate: str) -> None:
    """Nothing is rounded to the format before the end of a sum."""
    mod = layer("posit8_es2", accumulate)
    assert choice(mod).lowering == "vector"
    x = np.random.default_rng(2).normal(size=(9, 40)).astype(np.float32)
    y = compiler.build(mod)(x)
    np.testing.assert_array_equal(y, compiler.build(mod, dtype_lowering="table")(x))


def test_fused_sums_keep_their_lanes() -> None:
    assert choice(layer("posit8_es2", "fma")).lowering == "vector"
    assert choice(layer("posit8_es2", "exact")).lowering == "table"
