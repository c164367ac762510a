"""Integer operators and grids of integers in modules whose floats are in a format."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import compiler
import datatypes
import quantize
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import Call, IRModule, tensor_type
from compiler.op.library import all_ops
from compiler.tensor.stmt import Intrin, walk_stmts
from compiler.types.dtypes import FLOAT32, UINT8

TARGETS = ("llvm -mcpu=x86-64", "llvm -mcpu=haswell", "llvm")
SUMS: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "nn.conv2d": ((1, 8, 5, 7), (8, 8, 1, 3), {"padding": (0, 1, 0, 1)}),
    "nn.dense": ((3, 32), (16, 32), {}),
}


def integer_sums(op: str) -> tuple[IRModule, Any]:
    """A contraction of integers, and what is done in floats with what it gives."""
    data, weight, attrs = SUMS[op]
    rng = np.random.default_rng(0)
    b = FunctionBuilder()
    w = b.const(rng.integers(-127, 128, weight).astype(np.int8))
    y = b.call(op, b.param("x", data, UINT8), w, out_dtype="int32", **attrs)
    y = b.call("multiply", b.call("cast", y, dtype="float32"), b.const(np.float32(0.01)))
    y = b.call("add", b.call("round", y), b.const(np.float32(12)))
    y = b.call("cast", b.call("clip", y, a_min=0.0, a_max=255.0), dtype="uint8")
    return IRModule({"main": b.finish(y)}), rng.integers(0, 256, data).astype(np.uint8)


@pytest.mark.sampled(9)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("fmt", ["float8_e5m2_sat", "posit16_es1", "fixed16_8"])
@pytest.mark.parametrize("op", SUMS)
def test_sums_of_integers_keep_their_instructions(op: str, fmt: str, target: str) -> None:
    mod, x = integer_sums(op)
    mod = datatypes.change_dtype(mod, "float32", fmt)
    exe = compiler.build(mod, target)
    np.testing.assert_array_equal(exe(x), compiler.evaluate(mod, x))
    bodies = [k.func.body for k in exe.program.kernels]
    assert any(isinstance(s, Intrin) for body in bodies for s, _, _ in walk_stmts(body))


def on_grids() -> tuple[IRModule, Any]:
    """Every operator that works on float32, and others between them."""
    b = FunctionBuilder()
    scale = b.const(np.float32(0.03))
    x = b.param("x", (2, 3, 4))
    y = b.call("qnn.quantize", x, scale, zero_point=3)
    y = b.call("qnn.requantize", y, b.const(np.float32(0.7)), input_zero_point=3)
    y = b.call("exp", b.call("qnn.dequantize", y, scale))
    y = b.call("qnn.simulated_quantize", y, b.const(np.float32([0.02, 0.1, 0.3])), axis=1)
    y = b.call("qnn.simulated_cast", b.call("sqrt", y), scale, dtype="float8_e4m3fn",
               low=-448.0, high=448.0)  # fmt: skip
    y = b.call("sum", b.call("multiply", y, x), axis=(2,))
    y = b.call("qnn.quantize", y, scale)
    z = b.call("qnn.dequantize", y, scale)
    x = np.random.default_rng(0).normal(0, 1, (2, 3, 4)).astype(np.float32)
    return IRModule({"main": b.finish(y, z)}), x


def test_operators_on_grids_are_known() -> None:
    """Those that take a float32 operand say that they stay in it."""
    takes = {"qnn.simulated_blocks", "qnn.simulated_cast", "qnn.simulated_quantize",
             "qnn.quantize", "qnn.dequantize", "qnn.requantize", "qnn.grouped_dense",
             "qnn.packed_dense", "qnn.packed_grouped_dense", "qnn.row_scales", "qnn.row_zeros",
             "qnn.quantize_rows", "qnn.dequantize_rows"}  # fmt: skip
    assert {n for n, op in all_ops().items() if op.in_float32} == takes


@pytest.mark.sampled(16)
@pytest.mark.parametrize("boundary", [True, False])
@pytest.mark.parametrize("mode", ["sequential", "exact", "float32"])
@pytest.mark.parametrize("fmt", ["posit8_es0", "fixed16_8", "bfloat16", "posit8_es0_stochastic"])
def test_grids_stay_what_they_are(fmt: str, mode: str, boundary: bool) -> None:
    net, x = on_grids()
    mod = datatypes.change_dtype(net, "float32", fmt, boundary, accumulate=mode)
    for b in mod.main.bindings:
        assert isinstance(b.value, Call)
        types = {tensor_type(a).dtype for a in (*b.value.args, b.var)}
        on_grid = str(b.value.op).startswith("qnn.")
        assert on_grid == (FLOAT32 in types and str(b.value.op) != "cast"), b
    x = x if boundary else datatypes.encode(fmt, x)
    want = compiler.evaluate(mod, x)
    assert tensor_type(mod.main.results[1]).dtype == tensor_type(mod.main.params[0]).dtype
    for got, w in zip(compiler.build(mod)(x), want, strict=True):
        np.testing.assert_array_equal(got, w)


def test_integer_networks_change_their_floats_only() -> None:
    """A quantized network has the bits that it had where nothing but its boundary is float."""
    rng = np.random.default_rng(0)
    b = FunctionBuilder()
    y = b.call("nn.conv2d", b.param("x", (2, 3, 6, 6)),
               b.const(rng.normal(0, 1, (4, 3, 3, 3)).astype(np.float32)))  # fmt: skip
    net = IRModule({"main": b.finish(b.call("nn.relu", y))})
    x = rng.normal(0, 1, (2, 3, 6, 6)).astype(np.float32)
    integers = quantize.quantize(net, [x])
    mod = datatypes.change_dtype(integers, "float32", "posit32_es2")
    # posit32_es2 holds these inputs, and results: both casts are exact
    np.testing.assert_array_equal(compiler.evaluate(mod, x), compiler.evaluate(integers, x))
    np.testing.assert_array_equal(compiler.build(mod)(x), compiler.evaluate(mod, x))
