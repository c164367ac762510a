"""Programs for machines elsewhere: built and called as any other; what is missing is said."""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

import compiler
from compiler.boundary.external import register_func, remove_func
from compiler.codegen import linking
from compiler.errors import InputError, LoweringError, UnsupportedError
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import IRModule
from compiler.ir.function_calls import call_packed
from compiler.runtime.elsewhere import ElsewhereExecutable
from compiler.runtime.machines import node, wasmtime
from compiler.runtime.machines.image import Image
from compiler.runtime.machines.registry import machine_of, register_machine, remove_machine
from compiler.runtime.profile import profile
from compiler.target.registry import Target
from compiler.types.dtypes import Array
from compiler.types.tensor_types import TensorType

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "codegen"))

from c_programs import same_bits
from machines_here import WASM_MACHINES
from test_c_networks import dense, rows


@pytest.mark.parametrize("target", WASM_MACHINES)
def test_called_as_any_other(target: str) -> None:
    """Of any number of rows, several at once, none too."""
    exe = compiler.build(dense("posit8_es2"), target=target)
    assert isinstance(exe, ElsewhereExecutable)
    assert (exe.emulated, exe.instructions) == ("", None)
    for n in (5, 1, 700, 0, 5):
        assert same_bits(exe(rows(n)), compiler.evaluate(dense("posit8_es2"), rows(n)))
    with pytest.raises(InputError, match="must be float32"):
        exe(rows(3).astype(np.complex64))
    assert target.rpartition("=")[2] in exe.stats()


@pytest.mark.parametrize("target", WASM_MACHINES)
def test_control_flow(target: str) -> None:
    """The virtual machine is here, and its regions are there."""
    x, times = compiler.var("x", ("n", 4)), compiler.var("times", (), "int64")
    _, out = compiler.while_loop(
        lambda k, state: k < times,
        lambda k, state: (k + 1, state + x),
        init=(compiler.const(0), x),
    )
    exe = compiler.build(IRModule({"main": compiler.function([x, times], out)}), target=target)
    for n in (3, 0):
        ones = np.ones((n, 4), np.float32)
        np.testing.assert_array_equal(exe(ones, np.asarray(4)), 5 * ones)


@pytest.mark.parametrize("target", WASM_MACHINES)
def test_a_saved_program_is_the_same(tmp_path: Path, target: str) -> None:
    exe = compiler.build(dense("posit8_es0"), target=target)
    exe.save(tmp_path / "program.exe")
    again = compiler.load(tmp_path / "program.exe")
    assert str(again.target) == str(exe.target)
    assert same_bits(again(rows(4)), exe(rows(4)))


@pytest.mark.thorough  # zig builds a C library, once
@pytest.mark.parametrize("target", WASM_MACHINES)
def test_float16_and_functions_of_the_c_library(target: str) -> None:
    b = FunctionBuilder()
    x = b.param("x", (16,), "float16")
    mod = IRModule({"main": b.finish(b.call("sin", b.call("multiply", x, x)))})
    values = np.linspace(-3, 3, 16).astype(np.float16)
    assert same_bits(compiler.build(mod, target=target)(values), compiler.build(mod)(values))


@pytest.mark.parametrize("target", WASM_MACHINES)
def test_what_cannot_be_done_is_said(target: str) -> None:
    with pytest.raises(UnsupportedError, match="run on one thread"):
        compiler.build(dense(), target=target, threads=2)
    with pytest.raises(UnsupportedError, match="cannot be called one by one"):
        profile(compiler.build(dense(), target=target), rows(3))
    with pytest.raises(LoweringError, match="in a library that code which stands alone"):
        compiler.build(dense("posit8_es0"), target=target, dtype_lowering="library")
    register_func("not_elsewhere", lambda a, out: None)
    try:
        b = FunctionBuilder()
        x = b.param("x", (3,), "float32")
        y = b.bind(call_packed("not_elsewhere", [x], TensorType.of((3,), "float32")))
        with pytest.raises(UnsupportedError, match="'not_elsewhere' is part of this process"):
            compiler.build(IRModule({"main": b.finish(y)}), target=target)
    finally:
        remove_func("not_elsewhere")


@pytest.mark.parametrize("target", WASM_MACHINES)
def test_more_memory_than_there_is(target: str) -> None:
    exe = compiler.build(dense("posit8_es2"), target=target)
    want = exe(rows(2))
    assert isinstance(exe, ElsewhereExecutable)
    for arena in ((1 << 32) - (1 << 17), 5 << 30):  # the latter has no addresses
        with pytest.raises(InputError, match=r"no memory for [45] GiB in WebAssembly"):
            exe.loaded.run([rows(2)], [np.zeros((2, 7), np.float32)], [2], arena)
    assert same_bits(exe(rows(2)), want)


@pytest.mark.parametrize("target", [p for p in WASM_MACHINES if p.id == "node"])
def test_node_that_is_killed_is_started_again(target: str) -> None:
    exe = compiler.build(dense(), target=target)
    want = exe(rows(2))
    process = node._PROCESS._running
    assert process is not None
    process.kill()
    process.wait()
    assert same_bits(exe(rows(2)), want)
    again = node._PROCESS._running
    assert again is not None
    assert again.pid != process.pid
    assert "error" in node._PROCESS.ask({"task": "run", "id": -1, "writes": []}, ())
    del exe
    gc.collect()
    assert node._PROCESS._running is again


class Silent:
    """A machine that counts 7 instructions and computes nothing."""

    name, emulated = "silent", True

    def missing(self, target: Target) -> str:
        """See Machine."""
        return ""

    def load(self, image: Image) -> Silent:
        """See Machine."""
        assert image.target.triple.startswith("riscv64")
        assert all(code[:4] == b"\x7fELF" for code in image.objects(mapped=False))
        assert len(image.weights) >= sum(a.nbytes for a in image.program.constants)
        return self

    def run(
        self, inputs: Sequence[Array], outputs: Sequence[Array], dims: Sequence[int], arena: int
    ) -> int:
        """See Loaded."""
        outputs[0][...] = 0
        return 7


def test_another_machine() -> None:
    register_machine("riscv64", "silent", Silent)
    try:
        exe = compiler.build(dense(), target="llvm -mtriple=riscv64-linux -runner=silent")
        assert isinstance(exe, ElsewhereExecutable)
        assert exe(rows(3)).tolist() == np.zeros((3, 7)).tolist()
        assert (exe.instructions, exe.emulated) == (7, "silent")
        with pytest.raises(UnsupportedError, match="a machine 'silent' for riscv64 already"):
            register_machine("riscv64", "silent", Silent)
    finally:
        remove_machine("riscv64", "silent")


def test_what_is_missing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wasmtime.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UnsupportedError, match=r"pip install 'dtypelab\[wasm\]'"):
        compiler.build(dense(), target="wasm32 -runner=wasmtime")
    monkeypatch.setattr(node.shutil, "which", lambda name: None)
    with pytest.raises(UnsupportedError, match=r"does not run here: .*wasm.*; or Node .*install"):
        compiler.build(dense(), target="wasm32")
    monkeypatch.undo()
    monkeypatch.setattr(linking, "zig", lambda: "")
    monkeypatch.setattr(node.shutil, "which", lambda name: "/usr/bin/node")
    monkeypatch.setattr(node, "_version", lambda: 20)
    with pytest.raises(UnsupportedError, match=r"linking .*pip install 'dtypelab\[cross\]'"):
        compiler.build(dense(), target="wasm32 -runner=node")
    monkeypatch.setattr(node, "_version", lambda: 16)
    with pytest.raises(UnsupportedError, match="the one there is version 16"):
        compiler.build(dense(), target="wasm32 -runner=node")
    monkeypatch.setattr(node, "_version", lambda: 20)
    with pytest.raises(UnsupportedError, match="relaxed SIMD needs node, version 22 or newer"):
        compiler.build(dense(), target="wasm32 -mattr=+relaxed-simd -runner=node")


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("wasm32 -runner=nod", "unknown machine for wasm32.* 'nod'; did you mean 'node'"),
        ("llvm -runner=node", "names what runs code for another machine"),
        ("wasm32 -mattr=+relaxed-sind", "did you mean 'relaxed-simd'"),
        ("wasm32 -mattr=simd128", r"takes features such as \+"),
        ("wasm31", "did you mean 'wasm32'"),
    ],
)
def test_targets_that_there_are_not(target: str, message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        machine_of(Target.parse(target))


def test_features_are_switched() -> None:
    plain = Target.parse("llvm -mtriple=aarch64-linux-gnu")
    switched = Target.parse("llvm -mtriple=aarch64-linux-gnu -mattr=+dotprod,-neon")
    assert switched.enabled == plain.enabled - {"neon"} | {"dotprod"}
    assert switched.features.endswith("+dotprod,-neon")
    assert Target.parse("wasm32") == Target.parse("llvm -mtriple=wasm32")
