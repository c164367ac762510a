"""What another target takes: a CPU is data and intrinsics; code for another machine is made here;
a kind of target is a backend and a loader."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from weakref import WeakKeyDictionary

import numpy as np
import pytest

import compiler
import quantize
from compiler.build import compile_program
from compiler.codegen import cache
from compiler.codegen.backend import Code
from compiler.codegen.kernel_abi import Stage
from compiler.codegen.llvm.backend import LLVM, LLVMBackend
from compiler.codegen.steps import ZERO, Pointer, Step
from compiler.errors import UnsupportedError
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import IRModule
from compiler.runtime import kernels
from compiler.runtime.executable import GraphExecutable, Sized
from compiler.runtime.host import HOST, HostLoader
from compiler.runtime.loader import loader_of, register_target_kind, remove_target_kind
from compiler.runtime.machines import registry as machines
from compiler.runtime.program import Program
from compiler.symbolic import Var
from compiler.target import intrinsics
from compiler.target.cpus import X86_64, Cpu, architecture, register_cpu, remove_cpu
from compiler.target.emit import Emitter, Val
from compiler.target.intrinsics import emission
from compiler.target.registry import Target, TargetKind
from compiler.tensor.intrinsic import dot_product

here = pytest.mark.skipif(
    "sse2" not in Target.parse("llvm").enabled, reason="the invented CPU is one of x86-64"
)
RNG = np.random.default_rng(0)
ZOO = Path(__file__).parents[2] / "experiments" / "zoo"
AARCH64 = 183  # e_machine of ELF files
X = RNG.integers(0, 128, (2, 8, 5, 5)).astype(np.uint8)


def convolution() -> IRModule:
    b = FunctionBuilder()
    x = b.param("x", X.shape, "uint8")
    w = b.const(np.random.default_rng(1).integers(-128, 128, (16, 8, 3, 3)).astype(np.int8))
    y = b.call("nn.conv2d", x, w, padding=(1, 1, 1, 1), out_dtype="int32")
    return IRModule({"main": b.finish(y)})


# ---- a CPU: one entry, one file of intrinsics ----------------------------------------------------
def _emit(e: Emitter, c: Val, a: list[Val], b: list[Val]) -> Val:
    x = e.op(f"zext {a[0]} to <16 x i32>", "i32", 16)
    y = e.op(f"sext {b[0]} to <16 x i32>", "i32", 16)
    products = e.bin("mul", x, y)
    for k in range(4):
        c = e.bin("add", e.shuffle(products, products, list(range(k, 16, 4))), c)
    return c


@pytest.fixture
def invented(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(intrinsics, "_registered", [])
    register_cpu(Cpu("invented-1", X86_64, frozenset({"sse2"}), base="x86-64"))
    yield "llvm -mcpu=invented-1"
    remove_cpu("invented-1")


@pytest.mark.sampled(2)
@here
@pytest.mark.parametrize(
    "emit", [_emit, {"llvm": _emit}, None, {"c": _emit}], ids=["llvm", "by name", "loops", "c"]
)
def test_a_cpu_is_an_entry_and_its_intrinsics(invented: str, emit: object) -> None:
    """An instruction that nothing writes in LLVM is written as the loops that it means."""
    compiler.register_intrinsic(dot_product("invented.dot", 4, emit, features=("sse2",)))
    exe = compiler.build(convolution(), target=invented)
    assert (exe.target.isa, exe.target.vector_bytes, exe.target.fma) == ("sse2", 16, False)
    assert "invented.dot<" in exe.as_text()
    np.testing.assert_array_equal(exe(X), compiler.evaluate(convolution(), X))


@here
def test_cpus_have_names_of_their_own(invented: str) -> None:
    with pytest.raises(UnsupportedError, match="there is a target CPU 'invented-1' already"):
        register_cpu(Cpu("invented-1", X86_64, frozenset()))
    with pytest.raises(UnsupportedError, match="did you mean 'invented-1'"):
        Target.parse("llvm -mcpu=invented-2")
    register_cpu(Cpu("lacking", X86_64, frozenset({"amx-tile9"})))
    with pytest.raises(UnsupportedError, match="needs amx-tile9, which this CPU lacks"):
        Target.parse("llvm -mcpu=lacking")
    remove_cpu("lacking")


# ---- code for another machine --------------------------------------------------------------------
def test_code_is_made_for_a_machine_that_is_not_here(monkeypatch: pytest.MonkeyPatch) -> None:
    there = Target.anywhere("llvm -mcpu=neoverse-n1")
    if there.runnable:
        pytest.skip("this is such a machine")
    assert (there.isa, there.vector_bytes, there.fma) == ("neon_dotprod", 16, True)
    assert not there.exception_flags
    program = compile_program(convolution(), there)
    for code in (program.code, *(k.code for k in program.kernels)):
        _, _, content = code.partition(b"\n")
        assert content[:4] == b"\x7fELF"
        assert int.from_bytes(content[18:20], "little") == AARCH64
    with pytest.raises(UnsupportedError, match="is for aarch64-unknown-linux-gnu"):
        HOST.load(program)
    monkeypatch.setattr(machines, "_MACHINES", {})
    with pytest.raises(UnsupportedError, match="nothing runs code for aarch64-unknown-linux-gnu"):
        compiler.build(convolution(), target=str(there))


def test_a_program_runs_where_a_loader_takes_it() -> None:
    program = compile_program(convolution(), "llvm")
    exe = HOST.load(program)
    np.testing.assert_array_equal(exe(X), compiler.evaluate(convolution(), X))
    assert exe.llvm_text() == exe.source


def test_what_is_not_known_of_an_architecture_holds_anywhere() -> None:
    other = architecture("sparcv9-unknown-linux-gnu")
    assert (other.name, other.pointer_bytes, other.vectors) == ("sparcv9", 8, ())
    assert other.pause == ("", "")
    assert other.vector_constraint == ""


@pytest.mark.parametrize(("triple", "size"), [("wasm32-unknown-unknown", 4), ("", 8)])
def test_tables_of_pointers_are_as_wide_as_the_target_s(triple: str, size: int) -> None:
    here = Target.parse("llvm")
    there = replace(here, triple=triple or here.triple)
    n = Var("n")
    pointers = (Pointer("input", 3), Pointer("output", 1))
    steps = [
        Step(Stage("k_0", None, ZERO), pointers, (n,)),
        Step(None, pointers, function=Pointer("constant", 2)),
    ]
    text = LLVM.entry(steps, [n], 1, there).text
    for name, k in (("input", 3), ("output", 1), ("constant", 2)):
        assert re.search(rf"ptr %{name}, i{8 * size} {size * k}\b", text), text
    assert re.search(rf"alloca \[2 x ptr\], align {size}\b", text)
    assert text.count("= load i64, ptr %dims") == 1
    assert f"align {12 - size}" not in text.replace("load i64, ptr %dims, align 8", "")


def test_functions_of_whole_programs_are_not_called_one_by_one() -> None:
    c = Target.parse("c")
    for ask in (
        lambda: loader_of(c).address("f_0", c),
        lambda: loader_of(c).compiled(Code(("f",), "void f(void) {}"), c),
    ):
        with pytest.raises(UnsupportedError, match='one by one: use target "llvm"'):
            ask()


# ---- a kind of target: one backend, one loader ---------------------------------------------------
class WholeBackend(LLVMBackend):
    """LLVM, all of a program at once."""

    language = "LLVM in one piece"
    separate = False

    def joined(self, codes: Sequence[Code]) -> Code:
        bodies, declared = [], dict[str, None]()
        symbols = [s for c in codes for s in c.symbols]
        for line in (line for c in codes for line in c.text.splitlines()):
            named = line.startswith("declare ") and any(f"@{s}(" in line for s in symbols)
            if line.startswith("declare "):
                declared.update({} if named else {line: None})
            else:
                bodies.append(line)
        return Code(tuple(symbols), "\n".join([*declared, *bodies]))


class CountingLoader(HostLoader):
    """This machine's, which remembers what it loaded."""

    def __init__(self) -> None:
        self.loaded: list[Program] = []

    def load(self, program: Program, sized: Sized | None = None) -> GraphExecutable:
        self.loaded.append(program)
        return super().load(program, sized)


def test_a_kind_of_target_is_a_backend_and_a_loader() -> None:
    loader = CountingLoader()
    register_target_kind(TargetKind("whole"), WholeBackend, lambda: loader)
    try:
        exe = compiler.build(convolution(), target="whole")
        (program,) = loader.loaded
        assert program.target.kind == "whole"
        assert not any(k.code for k in program.kernels)
        assert all(s.symbol in exe.source for k in program.kernels for s in k.stages)
        with pytest.raises(UnsupportedError, match="the code is in LLVM in one piece"):
            exe.llvm_text()
        plain = compiler.build(convolution())
        np.testing.assert_array_equal(exe(X), plain(X))
        with pytest.raises(UnsupportedError, match="there is a kind of target 'whole' already"):
            register_target_kind(TargetKind("whole"), WholeBackend, lambda: loader)
    finally:
        remove_target_kind("whole")
    with pytest.raises(UnsupportedError, match="whole"):
        compiler.build(convolution(), target="whole")


@pytest.mark.thorough
def test_every_instruction_may_be_written_as_its_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that a network uses: dot products, and sums clipped to bytes."""
    mod = compiler.from_onnx(ZOO / "mnist_dwsep.onnx")
    images = np.random.default_rng(0).standard_normal((2, 1, 28, 28)).astype(np.float32)
    quantized = quantize.quantize(mod, [images])
    monkeypatch.setattr(emission, "_texts", WeakKeyDictionary())
    monkeypatch.setattr(kernels, "_known", {})  # instructions do not change in a process
    monkeypatch.setenv(cache.VARIABLE, "")
    for intrinsic in intrinsics.named_intrinsics().values():
        monkeypatch.setattr(intrinsic, "emit", None)
    exe = compiler.build(quantized)
    used = {line.split("<")[0].strip() for line in exe.as_text().splitlines()}
    assert used & intrinsics.named_intrinsics().keys()
    np.testing.assert_array_equal(exe(images), compiler.evaluate(quantized, images))
