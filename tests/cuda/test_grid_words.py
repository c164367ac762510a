"""Products of bytes by tiles of words: four at a time, without races, and constants laid out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from test_grid_consumers import numbers
from test_grid_tiles import dense, executions

import compiler
from compiler.build import compile_program
from compiler.codegen.ptx.assembler import assemble, assembler
from compiler.interpret import loop_nests
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import IRModule
from compiler.scheduling.grid import schedule_grids
from compiler.target.registry import Target
from compiler.tensor.parser import parse_primfunc

WORDS = "cuda -mattr=-mma"
TARGET = f"{WORDS} -runner=simt"
RNG = np.random.default_rng(0)
MATMUL = """
primfunc @f(a: {data}[{m}, {k}], b: int8[{n}, {k}]) -> (c: int32[{m}, {n}]) {{
  temp sum: int32[{m}, {n}]
  for i in {m}:
    for j in {n}:
      for k in {k}:
        mac: sum[i, j] += (int32(a[i, k]) * int32(b[j, k]))  (init int32(0))
  for i2 in {m}:
    for j2 in {n}:
      out: c[i2, j2] = max(sum[i2, j2], int32(-5))
}}
"""


@pytest.mark.thorough
@pytest.mark.parametrize("data", ["int8", "uint8"])
def test_words_are_shared_without_races(data: str) -> None:
    m, n, k = 17, 11, 76
    f = parse_primfunc(MATMUL.format(data=data, m=m, n=n, k=k))
    schedule_grids(f, Target.parse(WORDS))
    assert "dp4a" in str(f)
    x, w = RNG.integers(0, 128, (m, k)).astype(data), RNG.integers(-128, 128, (n, k)).astype("int8")
    out = np.zeros((m, n), np.int32)
    loop_nests.run(f, [x, w, out])
    wanted = np.maximum(x.astype(np.int32) @ w.T.astype(np.int32), -5)
    np.testing.assert_array_equal(out, wanted)


def test_one_instruction_does_four_products() -> None:
    m = 8192
    f = parse_primfunc(MATMUL.format(data="int8", m=m, n=m, k=512))
    schedule_grids(f, Target.parse(WORDS))
    counts = executions(f)
    assert counts["rows.copy"] == m * m * 512 // 128  # bytes
    assert counts.get("mac", 0) == m * m * 512 // 4


@pytest.mark.thorough
@pytest.mark.parametrize("dtype", ["float32", "int8"])
@pytest.mark.parametrize("layout", ["NCHW", "NCHW4c"])
@pytest.mark.parametrize("kernel", [1, 3])
def test_constant_weights_are_laid_out(dtype: str, layout: str, kernel: int) -> None:
    shape = (1, 32, 5, 30) if layout == "NCHW" else (1, 8, 5, 30, 4)
    b = FunctionBuilder()
    w = numbers(RNG, dtype, (12, 32, kernel, kernel))
    attrs: dict[str, Any] = {"data_layout": layout, "out_layout": layout}
    if dtype == "int8":
        attrs["out_dtype"] = "int32"
    if kernel == 3:
        attrs["padding"] = (1, 1, 1, 1)
    y = b.call("nn.conv2d", b.param("x", shape, dtype), b.const(w), **attrs)
    mod = IRModule({"main": b.finish(y)})
    x = numbers(RNG, dtype, shape)
    exe = compiler.build(mod, target=TARGET)
    text = str(exe.as_text())
    assert "_packed" in text
    assert ("dp4a" in text) == (dtype == "int8")
    np.testing.assert_array_equal(exe(x), compiler.evaluate(mod, x))


@pytest.mark.skipif(not assembler(), reason="ptxas (package nvidia-cuda-nvcc) is not installed")
@pytest.mark.thorough
@pytest.mark.parametrize("chip", ["sm_75", "sm_90a"])
def test_the_kernel_is_dot_products(chip: str) -> None:
    (kernel,) = compile_program(dense("int8", 8192, 8192, 512), f"{WORDS} -arch={chip}").kernels
    text = kernel.code.decode()
    assert text.count("dp4a.s32.s32") == 8 * 8 * 8
    assert text.count("ld.shared.v4") == 4 * 8
    ((found,), _) = assemble(kernel.code, chip)
    assert found.spills == 0
    assert found.registers <= 128
