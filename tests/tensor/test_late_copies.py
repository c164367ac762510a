"""Asynchronous copies in loop nests: what they mean, how they read, what is refused, and the same
as PTX and on this CPU."""

from __future__ import annotations

import re

import numpy as np
import pytest

import compiler
from compiler.build import compile_program
from compiler.codegen.launches import DECLARED, launch_of
from compiler.codegen.ptx.assembler import assemble, assembler
from compiler.errors import LoweringError, ParseError
from compiler.interpret import loop_nests
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import IRModule
from compiler.ir.function_calls import call_tir
from compiler.runtime.cuda.device import opened
from compiler.target.intrinsics import named_intrinsics
from compiler.tensor.copying import copied
from compiler.tensor.parser import parse_primfunc
from compiler.tensor.stmt import PrimFunc, clone
from compiler.types.dtypes import FLOAT32
from compiler.types.tensor_types import TensorType

RNG = np.random.default_rng(0)
# Two blocks of eight threads turn the rows of six parts by one, by three parts in turn; the last
# row is not copied.
TURNED = """
primfunc @f(a: float32[2, 6, 8, 4]) -> (c: float32[2, 6, 8, 4]) {
  shared s: float32[3, 8, 4]
  blockIdx.x for b in 2:
    threadIdx.x for t in 8:
      unroll for p in 2:
        COPY: get: s[p, t, w] = select(COPIED, a[b, p, t, w], float32(0.0))
        commit
      for part in 6:
        wait 1
        barrier
        for more in min(1, -min(4, part) + 4):
          COPY: get2: s[((part + 2) % 3), t, w] = select(COPIED, a[b, part + 2, t, w], float32(0.0))
        commit
        for x in 4:
          put: c[b, part, t, x] = s[(part % 3), ((t + 1) % 8), x]
}
"""
TURNED = TURNED.replace("COPY", "cp.async.16.float32<w<4, e<1>").replace(
    "COPIED", "(int64(t) != int64(7))"
)
GUARDED = """
primfunc @f(a: float32[8]) -> (c: float32[8]) {
  threadIdx.x for t in 8:
    when (int64(t) != int64(7)):
      put: c[t] = a[t]
      wait 0
}
"""
GIVEN = RNG.normal(size=(2, 6, 8, 4)).astype(np.float32)
WANT = np.roll(np.where(np.arange(8)[:, None] == 7, 0, GIVEN), -1, 2)


def program(text: str = TURNED) -> PrimFunc:
    return parse_primfunc(text, named_intrinsics())


def run(f: PrimFunc) -> np.ndarray:
    out = np.zeros_like(GIVEN)
    loop_nests.run(f, [GIVEN, out])
    return out


def module(f: PrimFunc) -> IRModule:
    b = FunctionBuilder()
    x = b.param("x", GIVEN.shape, "float32")
    y = b.bind(call_tir("f", [x], TensorType.of(GIVEN.shape, FLOAT32)))
    return IRModule({"main": b.finish(y), "f": f})


def test_what_they_mean_and_how_they_read() -> None:
    f = program()
    for g in (f, copied(f), program(str(f))):
        assert str(g) == str(f)
        np.testing.assert_array_equal(run(g), WANT)
    f.body[:] = [clone(s, {}) for s in f.body]
    np.testing.assert_array_equal(run(f), WANT)


def test_a_stage_may_be_called_so() -> None:
    text = "primfunc @f(a: int32[2]) -> (c: int32[2]) {\n  for i in 2:\n    NAME: c[i] = a[i]\n}"
    for name in ("wait", "commit"):
        assert f"{name}: c[i] = a[i]" in str(program(text.replace("NAME", name)))


@pytest.mark.parametrize(
    ("there", "instead", "message"),
    [
        ("wait 1", "wait 2", "touched before its copy is waited for"),
        ("        wait 1\n", "", "touched before its copy is waited for"),
        ("        barrier\n", "", "two threads meet in an element of s"),
        ("part in 6", "part in 4", "ends before its copies to s arrive"),
        (
            "((part + 2) % 3)",
            "((part + 1) % 3)",
            "two threads meet in an element of s|touched before",
        ),
    ],
)
def test_what_comes_too_late_is_found(there: str, instead: str, message: str) -> None:
    assert there in TURNED
    with pytest.raises(LoweringError, match=message):
        run(program(TURNED.replace(there, instead)))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            TURNED.replace("threadIdx.x for t in 8", "for t in 8"),
            "a commit outside of thread loops",
        ),
        (GUARDED, "a wait that some threads may not come to"),
        (TURNED.replace("wait 1", "wait for"), "expected"),
    ],
)
def test_what_cannot_be_is_refused(text: str, message: str) -> None:
    with pytest.raises(ParseError, match=message):
        program(text)


@pytest.mark.parametrize("runner", ["simt", "ptx"])
def test_both_runners(runner: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if runner == "ptx":
        monkeypatch.setattr(opened("ptx").driver, "races", True)
    exe = compiler.build(module(program()), target=f"cuda -arch=sm_80 -runner={runner}")
    np.testing.assert_array_equal(exe(GIVEN), WANT)


def test_what_chips_have_not() -> None:
    with pytest.raises(LoweringError, match=r"cp.async.16.float32 needs sm_80: name a newer chip"):
        compile_program(module(program()), "cuda -arch=sm_75")
    with pytest.raises(LoweringError, match="'llvm' have no grid"):
        compiler.build(module(program()))


@pytest.mark.parametrize(
    ("there", "instead"),
    [
        ("t, w] = sel", "t, 0] = sel"),
        ("a[b, p, t, w]", "a[b, p, w, 0]"),
        ("s[p, t, w]", "s[p, w, t]"),
    ],
)
def test_only_neighbours_are_copied(there: str, instead: str) -> None:
    assert there in TURNED
    f = program(TURNED.replace(there, instead))
    with pytest.raises(LoweringError, match=r"copies neighbours, from multiples of 16 bytes on"):
        compile_program(module(f), "cuda -arch=sm_80")


def test_more_shared_memory_is_asked_for_by_the_launch() -> None:
    rows = DECLARED // 16 // 8 + 1
    text = TURNED.replace("[3, 8, 4]", f"[{rows}, 8, 4]")
    for there, asked in ((TURNED, 0), (text, rows * 128)):
        launch = launch_of(program(there).body[0])
        assert launch is not None
        assert launch.shared == asked
        (k,) = compile_program(module(program(there)), "cuda -arch=sm_80").kernels
        assert (b".extern .shared" in k.code) == (asked > 0)
        assert [s.launch and s.launch.shared for s in k.stages] == [asked]
    exe = compiler.build(module(program(text)), target="cuda -arch=sm_80 -runner=ptx")
    np.testing.assert_array_equal(exe(GIVEN), WANT)


def test_no_block_has_more_shared_memory_than_its_chip_gives() -> None:
    text = TURNED.replace("[3, 8, 4]", f"[{(100 << 10) // 128}, 8, 4]")
    compile_program(module(program(text)), "cuda -arch=sm_80")
    with pytest.raises(LoweringError, match=r"102400 bytes of shared memory, of at most 101376 on"):
        compile_program(module(program(text)), "cuda -arch=sm_86")


@pytest.mark.skipif(not assembler(), reason="ptxas (package nvidia-cuda-nvcc) is not installed")
@pytest.mark.parametrize("chip", ["sm_80", "sm_90a"])
def test_ptxas_takes_them(chip: str) -> None:
    (k,) = compile_program(module(program()), f"cuda -arch={chip}").kernels
    assert assemble(k.code, chip)[0][0].spills == 0
    text = k.code.decode()
    assert re.search(r"cp\.async\.cg\.shared\.global \[%rd\d+\], \[.*\], 16, %r\d+;", text)
    assert text.count("cp.async.commit_group") == 3
    assert text.count("cp.async.wait_group") == 1
