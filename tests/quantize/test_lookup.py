"""qnn.lookup: interpreted, as loops and compiled, alone and behind other operators."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_qnn_ops import check

import compiler
from compiler.errors import TypeInferenceError
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import IRModule
from compiler.symbolic import Var
from compiler.target.registry import Target
from compiler.types.dtypes import Array


def runs(target: str) -> bool:
    """Whether this CPU has what the target needs."""
    return Target.anywhere(target).enabled <= Target.parse("llvm").enabled


TARGETS = [
    pytest.param(t, marks=pytest.mark.skipif(not runs(t), reason="not on this CPU"))
    for t in ("llvm", "llvm -mcpu=skylake-avx512", "llvm -mcpu=haswell", "llvm -mcpu=x86-64-v2")
]
BYTES = ("int8", "uint8")


def table(dtype: str, seed: int = 0) -> Array:
    """A table of random entries."""
    rng = np.random.default_rng(seed)
    if dtype == "float32":
        return rng.normal(size=256).astype(np.float32)
    info = np.iinfo(dtype)
    return rng.integers(info.min, info.max, 256, endpoint=True).astype(dtype)


def codes(shape: Any, dtype: str) -> Array:
    """Random integers."""
    info = np.iinfo(dtype)
    rng = np.random.default_rng(1)
    return rng.integers(info.min, info.max, shape, endpoint=True).astype(dtype)


@pytest.mark.parametrize("data", BYTES)
@pytest.mark.parametrize("result", [*BYTES, "int32", "float32"])
def test_every_integer_finds_its_entry(data: str, result: str) -> None:
    entries = table(result)
    info = np.iinfo(data)
    x = np.arange(info.min, info.max + 1).astype(data)
    got = check("qnn.lookup", x, entries)
    for q, y in zip(x, got, strict=True):
        assert y == entries[int(q) % 256]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("target", TARGETS)
@settings(max_examples=12, deadline=None)
@given(st.lists(st.integers(1, 70), min_size=1, max_size=3), st.sampled_from(BYTES), st.booleans())
def test_any_shape_on_any_target(target: str, shape: list[int], dtype: str, symbolic: bool) -> None:
    entries, x = table("int8"), codes(shape, dtype)
    b = FunctionBuilder()
    sizes = [Var("n"), *shape[1:]] if symbolic else shape
    y = b.call("qnn.lookup", b.param("x", tuple(sizes), dtype), b.const(entries))
    got = compiler.build(IRModule({"main": b.finish(y)}), target)(x)
    np.testing.assert_array_equal(got, entries[x.view(np.uint8)])


@pytest.mark.sampled(3)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("channels", [3, 16, 24])
def test_behind_a_convolution_it_is_part_of_the_kernel(target: str, channels: int) -> None:
    rng = np.random.default_rng(channels)
    b = FunctionBuilder()
    x = b.param("x", (2, 8, 6, 7), "uint8")
    w = rng.integers(-9, 10, (channels, 8, 3, 3)).astype(np.int8)
    y = b.call("nn.conv2d", x, b.const(w), out_dtype="int32", input_zero_point=7)
    q = b.call("qnn.requantize", y, b.const(np.float32(0.01)), output_zero_point=120)
    z = b.call("qnn.lookup", q, b.const(table("uint8")))
    v = rng.integers(-9, 10, (5, channels, 1, 1)).astype(np.int8)
    mod = IRModule({"main": b.finish(b.call("nn.conv2d", z, b.const(v), out_dtype="int32"))})
    program, data = compiler.build(mod, target), codes((2, 8, 6, 7), "uint8")
    np.testing.assert_array_equal(program(data), compiler.evaluate(mod, data))
    if target == "llvm":
        together = [k for k in program.program.kernels if "lookup" in k.program._func.name]
        assert ["conv2d" in k.program._func.name for k in together] == [True]


def test_a_table_that_is_computed_is_complete_before_it_is_read() -> None:
    b = FunctionBuilder()
    x, entries = b.param("x", (256,), "int8"), b.param("entries", (256,), "int8")
    turned = b.call("clip", entries, a_min=-5.0, a_max=5.0)
    y = b.call("qnn.lookup", x, turned)
    mod = IRModule({"main": b.finish(y)})
    data, given = codes((256,), "int8"), table("int8")
    want = np.clip(given, -5, 5)[data.view(np.uint8)]
    np.testing.assert_array_equal(compiler.build(mod)(data, given), want)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(TypeInferenceError, match="int8 or uint8 data, not int32"):
        check("qnn.lookup", np.zeros(3, np.int32), table("int8"))
    with pytest.raises(TypeInferenceError, match="a table of 256 entries"):
        check("qnn.lookup", np.zeros(3, np.int8), table("int8")[:255])


@pytest.mark.parametrize("size", [1, 33, 64, 65, 96, 160, 192, 224])
def test_rows_that_are_no_whole_registers(size: int) -> None:
    """96 lanes are a register of 64 and half of one."""
    rng = np.random.default_rng(size)
    entries = rng.integers(0, 256, 256).astype(np.uint8)
    b = FunctionBuilder()
    x = b.param("x", (2, 5, size), "uint8")
    mod = IRModule({"main": b.finish(b.call("qnn.lookup", x, b.const(entries)))})
    data = rng.integers(0, 256, (2, 5, size)).astype(np.uint8)
    np.testing.assert_array_equal(compiler.build(mod)(data), entries[data])
