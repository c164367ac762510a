"""Products of matrices by tiles: the interpreter's results, without races, few reads of memory."""

from __future__ import annotations

import itertools
import math
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_grid_consumers import TARGET, convolution, numbers

import compiler
from compiler.build import compile_program
from compiler.codegen.ptx.assembler import assemble, assembler
from compiler.interpret import loop_nests
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import IRModule
from compiler.scheduling.grid import schedule_grids
from compiler.scheduling.grids import tiles
from compiler.scheduling.grids.steps import Step
from compiler.symbolic import Index, Var
from compiler.target.registry import Target
from compiler.tensor.parser import parse_primfunc
from compiler.tensor.stmt import Intrin, PrimFunc, Store, walk_stmts

RNG = np.random.default_rng(0)
MATMUL = """
primfunc @f(a: {dtype}[{b}, {m}, {k}], b: {dtype}[{b}, {n}, {k}]) -> (c: {dtype}[{b}, {m}, {n}]) {{
  temp sum: {dtype}[{b}, {m}, {n}]
  for z in {b}:
    for i in {m}:
      for j in {n}:
        for k in {k}:
          mac: sum[z, i, j] += (a[z, i, k] * b[z, j, k])  (init {zero})
  for z2 in {b}:
    for i2 in {m}:
      for j2 in {n}:
        out: c[z2, i2, j2] = max(sum[z2, i2, j2], {least})
}}
"""


def dense(dtype: str, m: int, n: int, k: int) -> IRModule:
    b = FunctionBuilder()
    attrs = {"out_dtype": "int32"} if dtype == "int8" else {}
    y = b.call("nn.dense", b.param("x", (m, k), dtype), b.param("w", (n, k), dtype), **attrs)
    return IRModule({"main": b.finish(b.call("nn.relu", y))})


def tiled(exe: Any) -> bool:
    return "rows_shared" in str(exe.as_text())


def check(mod: IRModule, *shapes: tuple[int, ...], dtype: str = "float32") -> Any:
    args = [numbers(RNG, dtype, s) for s in shapes]
    exe = compiler.build(mod, target=TARGET)
    np.testing.assert_array_equal(exe(*args), compiler.evaluate(mod, *args))
    return exe


def test_every_thread_of_a_tile_loads_something() -> None:
    for rows, columns in itertools.product(tiles.SIZES, tiles.SIZES):
        for steps, words in itertools.product((8, 27, 576), (1, 2)):
            t = tiles.tile_of(rows, columns, steps, Step(words=words))
            if tiles.FEWEST <= t.threads <= tiles.MOST:
                assert rows * t.steps % t.threads == columns * t.steps % t.threads == 0


def test_a_product_goes_by_tiles() -> None:
    assert tiled(check(dense("float32", 24, 20, 27), (24, 27), (20, 27)))
    assert not tiled(check(dense("float32", 3, 20, 27), (3, 27), (20, 27)))


@pytest.mark.thorough
@settings(max_examples=25, deadline=None)
@given(
    dtype=st.sampled_from(["float32", "float64", "int8"]),
    m=st.integers(1, 150),
    n=st.integers(1, 150),
    k=st.integers(1, 70),
)
def test_dense(dtype: str, m: int, n: int, k: int) -> None:
    exe = check(dense(dtype, m, n, k), (m, k), (n, k), dtype=dtype)
    assert tiled(exe) == (min(m, n, k) >= 8)


@pytest.mark.thorough
@settings(max_examples=25, deadline=None)
@given(
    dtype=st.sampled_from(["float32", "int8"]),
    batch=st.integers(1, 3),
    size=st.tuples(st.integers(3, 9), st.integers(3, 9)),
    channels=st.tuples(st.integers(1, 9), st.sampled_from([8, 12, 16, 33])),
    kernel=st.integers(1, 3),
    stride=st.integers(1, 2),
    pad=st.integers(0, 2),
    dilation=st.integers(1, 2),
)
def test_convolutions(
    dtype: str,
    batch: int,
    size: tuple[int, int],
    channels: tuple[int, int],
    kernel: int,
    stride: int,
    pad: int,
    dilation: int,
) -> None:
    if min(size) + 2 * pad < (kernel - 1) * dilation + 1:
        return
    x, w = (batch, channels[0], *size), (channels[1], channels[0], kernel, kernel)
    attrs: dict[str, Any] = {
        "padding": (pad,) * 4, "strides": (stride,) * 2, "dilation": (dilation,) * 2,
    }  # fmt: skip
    if dtype == "int8":
        attrs["input_zero_point"] = 3
    check(convolution(dtype, x, w, **attrs), x, w, dtype=dtype)


def scheduled(dtype: str, b: int, m: int, n: int, k: int) -> PrimFunc:
    zero, least = (f"{dtype}({v})" for v in ((0, -5) if dtype == "int32" else (0.0, -5.0)))
    text = MATMUL.format(dtype=dtype, b=b, m=m, n=n, k=k, zero=zero, least=least)
    f = parse_primfunc(text)
    schedule_grids(f, Target.parse("cuda"))
    return f


@pytest.mark.thorough
@pytest.mark.parametrize("shape", [(1, 16, 16, 40), (2, 17, 12, 33), (1, 33, 70, 9)])
def test_threads_share_without_races(shape: tuple[int, int, int, int]) -> None:
    b, m, n, k = shape
    f = scheduled("int32", *shape)
    x, w = (RNG.integers(-9, 9, s).astype(np.int32) for s in ((b, m, k), (b, n, k)))
    out = np.zeros((b, m, n), np.int32)
    loop_nests.run(f, [x, w, out])
    np.testing.assert_array_equal(out, np.maximum(x @ w.swapaxes(1, 2), -5))


def test_each_element_is_read_once_by_a_tile() -> None:
    m = n = 8192
    f = scheduled("float32", 1, m, n, 512)
    counts = executions(f)
    products = counts["mac"]
    assert products == m * n * 512
    rows, columns = tile(f)
    assert (rows, columns) == (128, 128)
    read = counts["rows.fetch"] + counts["columns.fetch"]
    assert read == products * (1 / rows + 1 / columns)
    shared = counts["rows.take"] + counts["columns.take"]
    assert products / shared == 4  # a thread multiplies each with eight others


@pytest.mark.parametrize("size", [(64, 32), (12, 10), (13, 9), (2, 200), (1, 300), (3, 3)])
def test_each_tile_is_computed_once(size: tuple[int, int]) -> None:
    rows, columns = size
    number = Var("number", rows * columns)
    at = tiles.in_groups(Index.of(number), Index.of(rows), Index.of(columns))
    order = [tuple(int(i.value({number: k})) for i in at) for k in range(rows * columns)]
    assert sorted(order) == [*itertools.product(range(rows), range(columns))]
    if size == (64, 32):  # those that run at a time read few parts of the operands
        assert [len({x[k] for x in order[:128]}) for k in (0, 1)] == [8, 16]


def executions(f: PrimFunc) -> dict[str, int]:
    """How often the elements of each statement are computed, in all."""
    out: dict[str, int] = {}
    for x, path, _ in walk_stmts(f.body):
        s = x.store if isinstance(x, Intrin) else x
        if isinstance(s, Store):
            times = 1
            if isinstance(x, Intrin) and x.intrin.late:
                times = math.prod(x.intrin.loops.values())
            times *= math.prod(loop.extent.const for loop in path if loop.var.name != "more")
            for loop in (y for y in path if y.var.name == "more"):
                (part,) = loop.extent.vars()  # the last parts bring nothing further
                n = next(y.extent.const for y in path if y.var is part)
                times = times * sum(int(loop.extent.value({part: k})) for k in range(n)) // n
            out[s.stage] = out.get(s.stage, 0) + times
    return out


def tile(f: PrimFunc) -> tuple[int, int]:
    """Rows and columns of a block's tile."""
    found = re.findall(r"(\w+)_shared: \w+\[\d+, \d+, (\d+)\]", str(f))
    sizes = {name: int(n) // 8 * 8 for name, n in found}
    return sizes["rows"], sizes["columns"]


@pytest.mark.skipif(not assembler(), reason="ptxas (package nvidia-cuda-nvcc) is not installed")
@pytest.mark.thorough
@pytest.mark.parametrize("chip", ["sm_75", "sm_80", "sm_90", "sm_90a"])
def test_no_registers_are_spilled(chip: str) -> None:
    for dtype, m in (("float32", 8192), ("float32", 1024), ("int8", 1024)):
        program = compile_program(dense(dtype, m, m, 512), f"cuda -arch={chip}")
        (kernel,) = program.kernels
        ((found,), _) = assemble(kernel.code, chip)
        assert found.spills == 0
        assert found.stack == 0
        assert found.registers <= 128  # two blocks of 256 threads fit a multiprocessor
        text = kernel.code.decode()
        assert "ld.global.nc" in text or "cp.async" in text
        assert ".maxntid" in text
        if dtype == "float32":
            for together in ("ld.global.nc.v4", "ld.shared.v4", "st.global.v4"):
                assert together in text


@pytest.mark.skipif(not assembler(), reason="ptxas (package nvidia-cuda-nvcc) is not installed")
@pytest.mark.thorough
@pytest.mark.parametrize("dtype", ["float64", "int64"])
def test_wide_numbers_fit_registers_and_shared_memory(dtype: str) -> None:
    (kernel,) = compile_program(dense(dtype, 2048, 2048, 512), "cuda -arch=sm_75").kernels
    assert ".shared" in kernel.code.decode()
    ((found,), _) = assemble(kernel.code, "sm_75")
    assert found.spills == 0
    assert found.shared <= 48 << 10


@pytest.mark.thorough
@pytest.mark.parametrize("dtype", ["float32", "int8"])
@pytest.mark.parametrize("groups", [1, 2, 3])
def test_groups_are_products_of_their_own(dtype: str, groups: int) -> None:
    x, w = (2, 4 * groups, 6, 5), (8 * groups, 4, 3, 3)
    mod = convolution(dtype, x, w, groups=groups, padding=(1, 1, 1, 1))
    assert tiled(check(mod, x, w, dtype=dtype))
