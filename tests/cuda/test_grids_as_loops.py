"""Programs for grids that people write, with barriers, shared memory and what a thread keeps over
barriers: compiled for this CPU they give what the interpreter does, and as PTX ptxas takes them."""

from __future__ import annotations

import numpy as np
import pytest

import compiler
from compiler.build import compile_program
from compiler.codegen.ptx.assembler import assemble, assembler
from compiler.errors import LoweringError, UnsupportedError
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import IRModule
from compiler.ir.function_calls import call_tir
from compiler.tensor.parser import parse_primfunc
from compiler.types.dtypes import INT32
from compiler.types.tensor_types import TensorType

RNG = np.random.default_rng(0)
MATMUL = """
primfunc @f(a: int32[4, 6], b: int32[6, 4]) -> (c: int32[4, 4]) {
  shared sa: int32[2, 2]
  shared sb: int32[2, 2]
  register sum: int32[1]
  blockIdx.y for by in 2:
    blockIdx.x for bx in 2:
      threadIdx.y for ty in 2:
        threadIdx.x for tx in 2:
          start: sum[0] = int32(0)
          for ko in 3:
            load_a: sa[ty, tx] = a[by*2 + ty, ko*2 + tx]
            load_b: sb[ty, tx] = b[ko*2 + ty, bx*2 + tx]
            barrier
            for ki in 2:
              mac: sum[0] += (sa[ty, ki] * sb[ki, tx])
            barrier
          out: c[by*2 + ty, bx*2 + tx] = sum[0]
}
"""
REVERSED = """
primfunc @f(a: int32[40]) -> (c: int32[40]) {
  shared s: int32[8]
  register r: int32[2]
  blockIdx.x for b in 5:
    threadIdx.x for t in 8:
      get: r[0] = (a[b*8 + t] + int32(1))
      more: r[1] = (r[0] * int32(3))
      put: s[t] = r[0]
      barrier
      out: c[b*8 + t] = (((s[-t + 7] * int32(100)) + r[0]) + r[1])
}
"""
TREE = """
primfunc @f(a: int32[24]) -> (c: int32[3]) {
  shared s: int32[8]
  blockIdx.x for b in 3:
    threadIdx.x for t in 8:
      put: s[t] = a[b*8 + t]
      barrier
      unroll for k in 3:
        register_step: s[t] = (s[t] + a[b*8 + ((t + k) % 8)])
        barrier
      for once in min(1, -t + 1):
        out: c[b] = ((s[0] + s[3]) + s[7])
}
"""
PROGRAMS = {
    "matmul": (MATMUL, [(4, 6), (6, 4)], (4, 4)),
    "reversed": (REVERSED, [(40,)], (40,)),
    "rounds": (TREE, [(24,)], (3,)),
}


def module(text: str, shapes: list[tuple[int, ...]], out: tuple[int, ...]) -> IRModule:
    b = FunctionBuilder()
    operands = [b.param(f"p{k}", s, "int32") for k, s in enumerate(shapes)]
    y = b.bind(call_tir("f", operands, TensorType.of(out, INT32)))
    return IRModule({"main": b.finish(y), "f": parse_primfunc(text)})


@pytest.mark.parametrize("name", PROGRAMS)
def test_barriers_and_shared_memory(name: str) -> None:
    text, shapes, out = PROGRAMS[name]
    mod = module(text, shapes, out)
    given = [RNG.integers(-9, 9, s).astype(np.int32) for s in shapes]
    exe = compiler.build(mod, target="cuda -runner=simt")
    np.testing.assert_array_equal(exe(*given), compiler.evaluate(mod, *given))
    assert "threadIdx.x for" in exe.as_text()
    with pytest.raises(LoweringError, match="targets of kind 'llvm' have no grid"):
        compiler.build(mod)


@pytest.mark.sampled(3)
@pytest.mark.skipif(not assembler(), reason="ptxas (package nvidia-cuda-nvcc) is not installed")
@pytest.mark.parametrize("chip", ["sm_75", "sm_80", "sm_90", "sm_90a"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_ptxas_takes_them(name: str, chip: str) -> None:
    program = compile_program(module(*PROGRAMS[name]), f"cuda -arch={chip}")
    for k in program.kernels:
        (found,), _ = assemble(k.code, chip)
        assert found.spills == 0
        assert 0 < found.registers < 256
        assert b"bar.sync" in k.code or b"barrier.sync" in k.code


def test_what_is_no_such_target_is_refused() -> None:
    mod = module(*PROGRAMS["matmul"])
    for text, message in (
        ("cuda -arch=sm_70", "chip 'sm_70'"),
        ("cuda -runner=gpu", "runner 'gpu'"),
        ("cuda -mcpu=haswell", "option 'mcpu'"),
    ):
        with pytest.raises(UnsupportedError, match=message):
            compiler.build(mod, target=text)
