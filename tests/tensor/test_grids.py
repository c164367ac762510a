"""Grids of threads in loop nests: what they mean, how they read, and who refuses them."""

from __future__ import annotations

import re

import numpy as np
import pytest

import compiler
from compiler.codegen.llvm.backend import lower_primfunc
from compiler.errors import LoweringError, ScheduleError, TypeInferenceError
from compiler.interpret import loop_nests
from compiler.ir.builder import FunctionBuilder
from compiler.ir.function_calls import call_tir
from compiler.lowering.legalize import Legalized
from compiler.runtime.kernels import KernelSource
from compiler.runtime.loader import register_target_kind, remove_target_kind
from compiler.scheduling import Schedule, default
from compiler.symbolic import Var
from compiler.target.registry import Target, TargetKind
from compiler.tensor.parser import parse_primfunc
from compiler.tensor.stmt import For, PrimFunc, clone
from compiler.types.dtypes import INT32
from compiler.types.tensor_types import TensorType

RNG = np.random.default_rng(0)

# Tiles of 2x2 elements of a product of 4x6 and 6x4 matrices, a thread for each; the operands' tiles
# go through shared memory.
MATMUL = """
primfunc @matmul(a: int32[4, 6], b: int32[6, 4]) -> (c: int32[4, 4]) {
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


def run(f: PrimFunc, *arrays: np.ndarray) -> np.ndarray:
    loop_nests.run(f, arrays)
    return arrays[-1]


def beyond(n: int) -> PrimFunc:
    """Stores `n` elements from the beginning of the first row on."""
    f = parse_primfunc(f"""
primfunc @f(a: int32[{n}]) -> (c: int32[2, 3]) {{
  for i in 3:
    copy: c[0, i] = a[i]
}}
""")
    (loop,) = f.body
    assert isinstance(loop, For)
    i = Var("i", n)
    f.body[:] = [For(i, [clone(x, {loop.var: i}) for x in loop.body])]
    return f


def test_stores_beyond_the_end_of_a_row_are_to_the_next_row() -> None:
    a = np.arange(7, dtype=np.int32)
    c = run(beyond(6), a[:6], np.zeros((2, 3), np.int32))
    assert c.tolist() == [[0, 1, 2], [3, 4, 5]]
    with pytest.raises(LoweringError, match="copy stores outside c"):
        run(beyond(7), a, np.zeros((2, 3), np.int32))


def test_tiles_in_shared_memory_are_what_the_threads_of_a_block_stored() -> None:
    f = parse_primfunc(MATMUL)
    a = RNG.integers(-9, 9, (4, 6)).astype(np.int32)
    b = RNG.integers(-9, 9, (6, 4)).astype(np.int32)
    np.testing.assert_array_equal(run(f, a, b, np.zeros((4, 4), np.int32)), a @ b)


def test_grids_read_as_they_are_printed() -> None:
    f = parse_primfunc(MATMUL)
    text = str(f)
    assert "threadIdx.x for tx in 2:" in text
    assert "shared sa: int32[2, 2]" in text
    assert str(parse_primfunc(text)) == text
    stripped = [re.sub(r" +", " ", row.strip()) for row in text.splitlines()]
    assert stripped.count("barrier") == 2


def test_modules_hold_grids_and_are_interpreted() -> None:
    b = FunctionBuilder()
    operands = [b.param("a", (4, 6), "int32"), b.param("b", (6, 4), "int32")]
    y = b.bind(call_tir("matmul", operands, TensorType.of((4, 4), INT32)))
    mod = compiler.IRModule({"main": b.finish(y), "matmul": parse_primfunc(MATMUL)})
    again = compiler.parse(mod.astext())
    assert again.astext() == mod.astext()
    arrays = [np.arange(24, dtype=np.int32).reshape(s) for s in ((4, 6), (6, 4))]
    np.testing.assert_array_equal(compiler.evaluate(again, *arrays), arrays[0] @ arrays[1])
    with pytest.raises(LoweringError, match=r"@matmul.*loop by is a blockIdx\.y"):
        compiler.build(again)


@pytest.mark.parametrize("which", [0, 1])
def test_a_barrier_that_lacks_is_found(which: int) -> None:
    parts = MATMUL.split("            barrier\n")
    parts[which] += parts.pop(which + 1)
    f = parse_primfunc("            barrier\n".join(parts))
    arrays = [np.ones(s, np.int32) for s in ((4, 6), (6, 4), (4, 4))]
    with pytest.raises(LoweringError, match=r"thread.* s[ab]"):
        run(f, *arrays)


def test_blocks_may_not_meet() -> None:
    f = parse_primfunc("""
primfunc @f(a: int32[4]) -> (c: int32[2]) {
  blockIdx.x for b in 2:
    threadIdx.x for t in 2:
      s: c[t] = a[b*2 + t]
}
""")
    with pytest.raises(LoweringError, match="two blocks meet in an element of c"):
        run(f, np.ones(4, np.int32), np.zeros(2, np.int32))


def test_registers_belong_to_a_thread() -> None:
    f = parse_primfunc("""
primfunc @reverse(a: int32[5]) -> (c: int32[5]) {
  shared s: int32[5]
  register r: int32[1]
  threadIdx.x for t in 5:
    get: r[0] = (a[t] + int32(1))
    put: s[t] = r[0]
    barrier
    out: c[-t + 4] = ((s[-t + 4] * int32(100)) + r[0])
}
""")
    a = np.arange(5, dtype=np.int32)
    got = run(f, a, np.zeros(5, np.int32))
    np.testing.assert_array_equal(got, (a + 1) * 100 + (a + 1)[::-1])


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("blockIdx.x for i in 2:\n    blockIdx.x for j in 2:\n      s: c[i] = a[j]",
         "loop j is a blockIdx.x inside another"),
        ("threadIdx.x for i in 2:\n    blockIdx.x for j in 2:\n      s: c[i] = a[j]",
         "loop j .* must be directly inside the thread loops"),
        ("threadIdx.x for i in 2:\n    for k in 2:\n      threadIdx.y for j in 2:\n"
         "        s: c[i] = a[j]", "loop j .* must be directly inside"),
        ("for i in 2:\n    s: c[i] = a[i]\n    barrier", "a barrier outside of thread loops"),
        ("threadIdx.x for i in 2:\n    when (a[i] > int32(0)):\n      barrier\n    s: c[i] = a[i]",
         "a barrier that some threads may not come to"),
    ],
)  # fmt: skip
def test_what_is_no_grid_is_refused(body: str, message: str) -> None:
    text = f"primfunc @f(a: int32[2]) -> (c: int32[2]) {{\n  {body}\n}}"
    with pytest.raises((TypeInferenceError, compiler.errors.ParseError), match=message):
        parse_primfunc(text)


def test_shared_memory_belongs_to_a_block() -> None:
    text = """
primfunc @f(a: int32[2]) -> (c: int32[2]) {
  shared s: int32[2]
  for i in 2:
    x: s[i] = a[i]
    y: c[i] = s[i]
}
"""
    with pytest.raises(
        compiler.errors.DtypelabError, match="s is shared by the threads of no block"
    ):
        parse_primfunc(text)


def test_targets_without_grids_refuse_them() -> None:
    with pytest.raises(LoweringError, match=r"loop by is a blockIdx.y, and targets of kind 'llvm'"):
        lower_primfunc(parse_primfunc(MATMUL), [])


# ---- schedules -----------------------------------------------------------------------------------
def doubled() -> PrimFunc:
    return parse_primfunc("""
primfunc @doubled(a: int32[64]) -> (c: int32[64]) {
  for i in 64:
    y: c[i] = (a[i] + a[i])
}
""")


def test_loops_are_bound_to_axes() -> None:
    s = Schedule(doubled())
    s.split("i", 16, ("block", "thread"))
    s.bind("block", "blockIdx.x")
    s.bind("thread", "threadIdx.x")
    assert "threadIdx.x for thread in 16:" in str(s.func)
    a = RNG.integers(-9, 9, 64).astype(np.int32)
    np.testing.assert_array_equal(run(s.func, a, np.zeros(64, np.int32)), 2 * a)
    with pytest.raises(ScheduleError, match=r"did you mean .*'threadIdx\.x'"):
        s.bind("thread", "threadIdx.w")


def test_default_schedules_are_those_of_the_targets_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    def bound(f: PrimFunc, *_: object) -> None:
        s = Schedule(f)
        s.split("i", 16, ("block", "thread"))
        s.bind("block", "blockIdx.x")
        s.bind("thread", "threadIdx.x")

    monkeypatch.setitem(default.SCHEDULES, "simt", bound)

    def nothing() -> object:
        raise AssertionError("nobody compiles here")

    register_target_kind(TargetKind("simt", schedules="simt", grid=True), nothing, nothing)
    try:
        made = KernelSource(Legalized(doubled(), ()), Target.parse("simt"), None).scheduled()
        assert "blockIdx.x for block in 4:" in str(made.func)
    finally:
        remove_target_kind("simt")
    plain = KernelSource(Legalized(doubled(), ()), Target.parse("llvm"), None).scheduled()
    assert "blockIdx" not in str(plain.func)
