"""Elementwise kernels: those that turn a tensor go by squares in shared memory, and of large ones a
thread does neighbours that it loads and stores together. Windows that overlap are one thread's."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from grid_interpreter import interpreted
from hypothesis import given, settings
from hypothesis import strategies as st
from test_grid_consumers import TARGET, launches, numbers
from test_grid_rows import PTX, RNG, check, given_arrays, module

import compiler
from compiler.build import compile_program
from compiler.interpret import loop_nests
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import IRModule
from compiler.lowering.legalize import legalize
from compiler.scheduling.grid import schedule_grids
from compiler.scheduling.grids import neighbours, windows
from compiler.target.registry import Target


def elementwise(shape: tuple[int, ...], dtype: str = "float32") -> IRModule:
    """A product of two tensors and a sum with a row."""
    b = FunctionBuilder()
    x, y, z = (b.param(n, s, dtype) for n, s in (("x", shape), ("y", shape), ("z", shape[-1:])))
    return IRModule({"main": b.finish(b.call("add", b.call("multiply", x, y), z))})


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("shape", "axes", "dtype"),
    [
        ((33, 17), (1, 0), "float32"),
        ((2, 17, 32), (0, 2, 1), "int8"),
        ((16, 3, 20), (2, 1, 0), "int32"),
    ],
)
def test_what_turns_a_tensor_goes_by_squares(
    shape: tuple[int, ...], axes: tuple[int, ...], dtype: str
) -> None:
    mod, args = module("transpose", shape, dtype=dtype, axes=axes), given_arrays(dtype, shape)
    exe = check(mod, args)
    assert "_square[" in exe.as_text()
    assert launches(exe) == 1
    np.testing.assert_array_equal(interpreted(mod)(*args), compiler.evaluate(mod, *args))
    check(mod, args, PTX)


def test_both_sides_of_a_square_are_neighbours() -> None:
    text = compiler.build(module("transpose", (40, 33), axes=(1, 0)), target=TARGET).as_text()
    load = re.search(r"x0_square\[.*\] = x0\[.*, (.*)\]", text)
    store = re.search(r" transpose\[.*, (.*)\] = x0_square", text)
    assert load is not None
    assert store is not None
    assert load[1].endswith("(thread % 32)")
    assert store[1].endswith("(thread % 32)")


def test_small_ones_do_not() -> None:
    assert (
        "_square["
        not in check(
            module("transpose", (3, 7, 50), axes=(1, 0, 2)), given_arrays("float32", (3, 7, 50))
        ).as_text()
    )
    assert (
        "_square["
        not in check(
            module("transpose", (8, 50), axes=(1, 0)), given_arrays("float32", (8, 50))
        ).as_text()
    )


def test_of_a_large_one_a_thread_does_neighbours() -> None:
    shape = (3, 8, 48, 64)
    mod = elementwise(shape)
    exe = check(mod, given_arrays("float32", shape, shape, (64,)))
    assert "vector for lane in 4" in exe.as_text()
    (kernel,) = compile_program(mod, "cuda -arch=sm_80").kernels
    assert len(re.findall(rb"ld\.global\.nc\.v4", kernel.code)) == 3
    assert len(re.findall(rb"st\.global\.v4", kernel.code)) == 1
    (kernel,) = compile_program(elementwise(shape, "int8"), "cuda -arch=sm_80").kernels
    assert len(re.findall(rb"ld\.global", kernel.code)) == 3


def scheduled_small(mod: IRModule, args: list[np.ndarray]) -> str:
    """Check the loop nest of a module as it is scheduled if all are large; its text. Nothing is
    built: kernels are kept for others."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(neighbours, "LEAST", 1)
        patch.setattr(windows, "LEAST", 1)
        func = legalize(mod.main).func
        schedule_grids(func, Target.parse(TARGET))
    want = compiler.evaluate(mod, *args)
    got = np.zeros_like(want)
    with np.errstate(all="ignore"):
        loop_nests.run(func, [*args, got])
    np.testing.assert_array_equal(got, want)
    return str(func)


@pytest.mark.parametrize(("columns", "together"), [(8, True), (6, False), (5, False)])
def test_neighbours_without_races(columns: int, together: bool) -> None:
    shape = (7, 4, columns)
    args = given_arrays("float32", shape, shape, (columns,))
    text = scheduled_small(elementwise(shape), args)
    assert ("vector for lane" in text) == together


def window(op: str, size: tuple[int, int], stride: int, dtype: str = "float32") -> Any:
    """A pooling or a depthwise convolution, and operands of which sums are exact."""
    shape, at = (2, 3, *size), {"strides": (stride, stride), "padding": (1, 1, 1, 1)}
    if op != "nn.conv2d":
        return module(op, shape, dtype=dtype, pool_size=(3, 3), **at), [numbers(RNG, dtype, shape)]
    out = {"out_dtype": "int32"} if dtype == "int8" else {}
    mod = module(op, shape, (3, 1, 3, 3), dtype=dtype, groups=3, **at, **out)
    return mod, [numbers(RNG, dtype, s) for s in (shape, (3, 1, 3, 3))]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("op", ["nn.conv2d", "nn.max_pool2d", "nn.avg_pool2d"])
def test_a_thread_does_windows_that_overlap(op: str, stride: int) -> None:
    text = scheduled_small(*window(op, (8, 5), stride))
    assert "unroll for each in 4" in text


def test_what_they_share_is_loaded_once() -> None:
    mod = module("nn.max_pool2d", (1, 40, 80, 80), pool_size=(3, 3), padding=(1, 1, 1, 1))
    check(mod, given_arrays("float32", (1, 40, 80, 80)))
    (kernel,) = compile_program(mod, "cuda -arch=sm_80").kernels
    assert len(re.findall(rb"ld\.global", kernel.code)) == 3 * (3 + 3)
    assert len(re.findall(rb"st\.global", kernel.code)) == 4


def test_windows_that_do_not_overlap_stay() -> None:
    mod = module("nn.max_pool2d", (1, 3, 8, 8), pool_size=(2, 2), strides=(2, 2))
    assert "each" not in scheduled_small(mod, given_arrays("float32", (1, 3, 8, 8)))


@pytest.mark.thorough
@settings(max_examples=20, deadline=None)
@given(
    op=st.sampled_from(["nn.conv2d", "nn.max_pool2d", "nn.avg_pool2d"]),
    size=st.tuples(st.integers(3, 9), st.integers(3, 9)),
    stride=st.integers(1, 3),
    dtype=st.sampled_from(["float32", "int8"]),
)
def test_windows(op: str, size: tuple[int, int], stride: int, dtype: str) -> None:
    scheduled_small(*window(op, size, stride, "float32" if op == "nn.avg_pool2d" else dtype))


@pytest.mark.thorough
@settings(max_examples=25, deadline=None)
@given(
    shape=st.permutations([1, 2, 3, 17, 34]).map(lambda x: tuple(x[:4])),
    order=st.permutations(range(4)),
    dtype=st.sampled_from(["float32", "int8", "int32"]),
    relu=st.booleans(),
)
def test_transpositions(shape: tuple[int, ...], order: Any, dtype: str, relu: bool) -> None:
    mod = module("transpose", shape, dtype=dtype, axes=tuple(order))
    check(mod, given_arrays(dtype, shape))
    if relu:
        scheduled_small(mod, given_arrays(dtype, shape))
