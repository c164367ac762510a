"""Rows by blocks of threads: one kernel for all that is done with them, the interpreter's bits, no
races, neighbours read by neighbouring threads."""

from __future__ import annotations

import textwrap
from typing import Any

import numpy as np
import pytest
from grid_interpreter import interpreted
from hypothesis import given, settings
from hypothesis import strategies as st
from test_grid_consumers import TARGET, launches

import compiler
import datatypes
from compiler.build import compile_program
from compiler.codegen.ptx.assembler import assemble, assembler
from compiler.interpret import loop_nests
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import IRModule
from compiler.lowering.legalize import legalize
from compiler.scheduling.grid import schedule_grids
from compiler.scheduling.grids import row_blocks
from compiler.symbolic import Var
from compiler.target.registry import Target

RNG = np.random.default_rng(0)
PTX = "cuda -arch=sm_80 -runner=ptx"
CHIPS = ("sm_75", "sm_80", "sm_90", "sm_90a")


def module(op: str, *shapes: tuple[Any, ...], dtype: str = "float32", **attrs: Any) -> IRModule:
    """One operator of parameters."""
    b = FunctionBuilder()
    y = b.call(op, *(b.param(f"p{k}", s, dtype) for k, s in enumerate(shapes)), **attrs)
    return IRModule({"main": b.finish(y)})


def given_arrays(dtype: str, *shapes: tuple[int, ...]) -> list[np.ndarray]:
    if dtype == "float32":
        return [RNG.standard_normal(s).astype(dtype) for s in shapes]
    return [RNG.integers(-100, 100, s).astype(dtype) for s in shapes]


def check(mod: IRModule, args: list[np.ndarray], target: str = TARGET) -> Any:
    """The bits of the interpreter of graphs."""
    exe = compiler.build(mod, target=target)
    np.testing.assert_array_equal(exe(*args), compiler.evaluate(mod, *args))
    return exe


def norm(shape: tuple[int, ...], axis: int) -> tuple[IRModule, list[np.ndarray]]:
    inner = shape[axis:]
    args = given_arrays("float32", shape, inner, inner)
    return module("nn.layer_norm", shape, inner, inner, axis=axis), args


ROWS = {
    "softmax": lambda: (module("nn.softmax", (5, 40)), given_arrays("float32", (5, 40))),
    "log_softmax": lambda: (module("nn.log_softmax", (5, 33)), given_arrays("float32", (5, 33))),
    "layer_norm": lambda: norm((7, 36), 1),
    "norm of several axes": lambda: norm((3, 3, 4, 5), 1),
    "mean": lambda: (module("mean", (3, 3, 20), axis=2), given_arrays("float32", (3, 3, 20))),
    "pooling": lambda: (
        module("nn.global_avg_pool2d", (2, 5, 4, 6)),
        given_arrays("float32", (2, 5, 4, 6)),
    ),
    "largest": lambda: (
        module("max", (6, 5, 7), dtype="int8", axis=(1, 2)),
        given_arrays("int8", (6, 5, 7)),
    ),
    "sum of all": lambda: (module("sum", (4, 30), dtype="int32"), given_arrays("int32", (4, 30))),
    "short rows": lambda: (module("nn.softmax", (9, 10)), given_arrays("float32", (9, 10))),
    "rows across": lambda: (
        module("nn.softmax", (2, 18, 3, 5), axis=1),
        given_arrays("float32", (2, 18, 3, 5)),
    ),
}
SOFTMAX = """
blockIdx.x for block in 5:
  threadIdx.x for thread in 32:
    softmax_max_s.begin: softmax_max_part[0] = x0[block, 0]
    softmax_max_s: softmax_max_part[0] max= x0[block, thread]
    softmax_max_s.found: softmax_max_found[0, thread] = softmax_max_part[0]
    barrier
    for mine in -thread + 1:
      softmax_max_s.init: softmax_max_sum[0] = x0[block + thread, 0]
      for k in 4:
        unroll for u in 8:
          softmax_max_s: softmax_max_sum[0] max= softmax_max_found[thread, k*8 + u]
      softmax_max_s.out: softmax_max_rows[thread] = softmax_max_sum[0]
    barrier
    softmax_exp_s: softmax_exp_rows[0, thread] = exp((x0[block, thread] - softmax_max_rows[0]))
    barrier
    for mine in -thread + 1:
      softmax_sum_s.init: softmax_sum_sum[0] = float32(0.0)
      for k in 4:
        unroll for u in 8:
          softmax_sum_s: softmax_sum_sum[0] += softmax_exp_rows[thread, k*8 + u]
      softmax_sum_s.out: softmax_sum_rows[thread] = softmax_sum_sum[0]
    barrier
    softmax_s: softmax[block, thread] = (softmax_exp_rows[0, thread] / softmax_sum_rows[0])
"""
"""What a block does of its row, in five phases."""


def run_by_parts(mod: IRModule, args: list[np.ndarray]) -> str:
    """Check the loop nest of a module as it is scheduled where a row of few elements is too long
    for shared memory; its text. Nothing is built: kernels are kept for others."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_blocks, "KEPT", 64)
        patch.setattr(row_blocks, "PART", 64)
        func = legalize(mod.main).func
        schedule_grids(func, Target.parse(TARGET))
    want = compiler.evaluate(mod, *args)
    got = np.zeros_like(want)
    with np.errstate(all="ignore"):
        loop_nests.run(func, [*args, got])
    np.testing.assert_array_equal(got, want)
    return str(func)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", ROWS)
def test_one_kernel_has_the_bits_and_no_races(name: str) -> None:
    mod, args = ROWS[name]()
    exe = check(mod, args)
    assert launches(exe) == 1
    if name != "rows across":  # longer than what a thread holds
        assert "temp " not in exe.as_text()
    np.testing.assert_array_equal(interpreted(mod)(*args), compiler.evaluate(mod, *args))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["softmax", "layer_norm", "mean"])
def test_long_rows_go_by_parts(name: str) -> None:
    mod, args = ROWS[name]()
    text = run_by_parts(mod, args)
    assert text.count("blockIdx.x for") == 1
    assert "for part in" in text or name == "mean"


def test_rows_that_are_longer_than_shared_memory() -> None:
    mod, args = norm((2, 6500), 1)
    exe = check(mod, args)
    assert launches(exe) == 1
    assert "for part in" in exe.as_text()
    check(module("nn.softmax", (2, 6501)), given_arrays("float32", (2, 6501)))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("shape", [("n", 40), ("n", "k"), (3, "k")])
def test_open_sizes(shape: tuple[Any, ...]) -> None:
    open_shape = tuple(Var(n) if isinstance(n, str) else n for n in shape)
    mod = module("nn.softmax", open_shape)
    exe = compiler.build(mod, target=TARGET)
    assert launches(exe) == 1
    for rows, columns in ((3, 40), (1, 40)) if shape[1] == 40 else ((3, 70), (3, 5)):
        (x,) = given_arrays("float32", (rows, columns))
        np.testing.assert_array_equal(exe(x), compiler.evaluate(mod, x))
    np.testing.assert_array_equal(interpreted(mod)(x), compiler.evaluate(mod, x))


@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_a_vector_times_a_matrix_reads_its_rows_side_by_side(dtype: str) -> None:
    attrs = {"out_dtype": "int32"} if dtype == "int8" else {}
    mod = module("nn.dense", (1, 256), (20, 256), dtype=dtype, **attrs)
    args = [RNG.integers(-8, 9, s).astype(dtype) for s in ((1, 256), (20, 256))]
    text = check(mod, args).as_text()
    assert "found[" in text
    assert "x1[block, thread*4 + lane]" in text


def test_a_scheduled_softmax() -> None:
    text = compiler.build(module("nn.softmax", (5, 32)), target=TARGET).as_text()
    grid = text[text.index("  blockIdx.x") : text.rindex("}")]
    assert textwrap.dedent(grid).strip() == SOFTMAX.strip()


def attention(heads: int, queries: int, width: int) -> IRModule:
    b = FunctionBuilder()
    shape = (1, heads, queries, width)
    q, k, v = (b.param(n, shape, "float32") for n in "qkv")
    scores = b.call("nn.matmul", q, b.call("transpose", k, axes=(0, 1, 3, 2)))
    return IRModule({"main": b.finish(b.call("nn.matmul", b.call("nn.softmax", scores), v))})


def test_attention_is_two_products_by_tiles_and_rows_between() -> None:
    mod, args = attention(2, 24, 16), given_arrays("float32", *[(1, 2, 24, 16)] * 3)
    exe = compiler.build(mod, target=TARGET)
    np.testing.assert_allclose(exe(*args), compiler.evaluate(mod, *args), rtol=1e-5, atol=1e-5)
    fused = max(exe.as_text().split("primfunc "), key=len)
    assert fused.count("blockIdx.x for") == 3
    assert "rows_shared" in fused
    assert "softmax_exp_rows" in fused


def test_formats_keep_the_order_of_their_sums() -> None:
    for name in ("posit16_es1", "float8_e4m3fn"):
        mod = datatypes.change_dtype(module("nn.softmax", (3, 20)), "float32", name)
        check(mod, given_arrays("float32", (3, 20)))


@pytest.mark.sampled(2)
@pytest.mark.skipif(not assembler(), reason="ptxas is not installed")
@pytest.mark.parametrize("chip", CHIPS)
def test_ptxas_takes_them(chip: str) -> None:
    for name in ("softmax", "layer_norm"):
        for k in compile_program(ROWS[name]()[0], f"cuda -arch={chip}").kernels:
            (found,), _ = assemble(k.code, chip)
            assert found.spills == 0
            assert b"bar" in k.code


def test_the_very_ptx() -> None:
    for name in ("softmax", "short rows", "pooling"):
        mod, args = ROWS[name]()
        check(mod, args, PTX)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["posit16_es1", "float8_e4m3fn"])
@pytest.mark.parametrize("columns", [20, 6200])
def test_ptx_of_formats(name: str, columns: int) -> None:
    args = given_arrays("float32", (2, columns))
    mod = datatypes.change_dtype(module("nn.log_softmax", (2, columns)), "float32", name)
    check(mod, args, TARGET if columns > 20 else PTX)


@pytest.mark.thorough
@settings(max_examples=30, deadline=None)
@given(
    shape=st.lists(st.integers(1, 5), min_size=1, max_size=3),
    longest=st.integers(1, 90),
    at=st.integers(0, 3),
    op=st.sampled_from(["nn.softmax", "nn.log_softmax", "mean", "max", "sum", "nn.layer_norm"]),
    dtype=st.sampled_from(["float32", "int32"]),
    by_parts=st.booleans(),
)
def test_reductions(
    shape: list[int], longest: int, at: int, op: str, dtype: str, by_parts: bool
) -> None:
    at = min(at, len(shape))
    dims = (*shape[:at], longest, *shape[at:])
    if op == "nn.layer_norm":
        mod, args = norm(dims, at)
    else:
        dtype = dtype if op in ("max", "sum") else "float32"
        mod, args = module(op, dims, dtype=dtype, axis=at), given_arrays(dtype, dims)
    if by_parts:
        run_by_parts(mod, args)
    else:
        check(mod, args)
