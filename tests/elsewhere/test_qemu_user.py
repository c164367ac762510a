"""aarch64 and riscv64 under qemu's user mode emulation: operators and networks give the
interpreter's results, and an emulator that stops is started again."""

from __future__ import annotations

import gc
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from machines_here import needs
from op_runs import RUNS, Case, check_on, label

import compiler
from compiler.codegen import linking
from compiler.errors import InputError, LoweringError, MachineError, UnsupportedError
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import IRModule
from compiler.runtime.elsewhere import ElsewhereExecutable
from compiler.runtime.machines import elf, qemu_user
from compiler.target.registry import Target

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "codegen"))

from c_programs import same_bits
from test_c_networks import FORMATS, dense, images, network, rows

TRIPLES = ("aarch64-linux", "riscv64-linux")
QEMU = tuple(pytest.param(t, marks=needs(t), id=t.partition("-")[0]) for t in TRIPLES)
NETWORKS = ("mnist_mlp", "mnist_dwsep", "mnist_resnet8")


def built(mod: IRModule, target: str) -> ElsewhereExecutable:
    exe = compiler.build(mod, target=target)
    assert isinstance(exe, ElsewhereExecutable)
    return exe


def tier(name: str, fmt: str) -> tuple[pytest.MarkDecorator, ...]:
    """Interpreting ResNet-8 in a format, and emulating it, takes minutes."""
    if (name, fmt) == ("mnist_mlp", "int8"):
        return ()
    long = name == "mnist_resnet8" and fmt not in ("float32", "int8")
    return (pytest.mark.slow,) if long else (pytest.mark.thorough,)


@pytest.mark.sampled(60)
@pytest.mark.parametrize("run", RUNS, ids=label)
@pytest.mark.parametrize("target", QEMU)
def test_operators(target: str, run: tuple[Case, Any]) -> None:
    check_on(target, run)


@pytest.mark.parametrize("target", QEMU)
@pytest.mark.parametrize(
    ("name", "fmt"),
    [pytest.param(n, f, marks=tier(n, f)) for n in NETWORKS for f in FORMATS],
)
def test_networks(target: str, name: str, fmt: str) -> None:
    mod, x = network(name, fmt), images(100, 3)
    got, want = compiler.build(mod, target=target)(x), compiler.evaluate(mod, x)
    if fmt == "float32":
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
    else:
        assert got.dtype == want.dtype
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("target", QEMU)
def test_called_as_any_other(target: str) -> None:
    """Of any number of rows, several at once, none too."""
    exe, other = built(dense("posit8_es2"), target), built(dense(), target)
    assert exe.emulated == "qemu-user"
    for n in (5, 1, 700, 0, 5):
        assert same_bits(exe(rows(n)), compiler.evaluate(dense("posit8_es2"), rows(n)))
    np.testing.assert_allclose(other(rows(3)), compiler.evaluate(dense(), rows(3)), rtol=1e-5)


@pytest.mark.parametrize("target", QEMU)
def test_instructions_are_counted(target: str) -> None:
    """As many for the same numbers of the same shape; in proportion to rows, but for what is done
    once a call."""
    exe = built(dense("posit16_es1"), target)
    counts: dict[int, list[int]] = {}
    for n in (80, 160, 240, 160):
        exe(rows(n))
        if exe.instructions is None:
            pytest.skip("no C compiler, or this qemu takes no plugins")
        counts.setdefault(n, []).append(exe.instructions)
    assert counts[160][0] == counts[160][1] > counts[80][0] > 0
    more = counts[160][0] - counts[80][0]
    assert 0.9 * more < counts[240][0] - counts[160][0] < 1.1 * more


@pytest.mark.parametrize("target", QEMU)
def test_float16_and_functions_of_the_c_library(target: str) -> None:
    b = FunctionBuilder()
    x = b.param("x", (16,), "float16")
    mod = IRModule({"main": b.finish(b.call("sin", b.call("multiply", x, x)))})
    values = np.linspace(-3, 3, 16).astype(np.float16)
    assert same_bits(compiler.build(mod, target=target)(values), compiler.build(mod)(values))


@pytest.mark.parametrize("target", QEMU)
def test_an_emulator_that_stops_is_started_again(target: str) -> None:
    exe, want = built(dense("posit8_es0"), target), compiler.evaluate(dense("posit8_es0"), rows(2))
    assert same_bits(exe(rows(2)), want)
    process = qemu_user._process(exe.target.triple)
    with process.lock, pytest.raises(MachineError, match=r"has stopped qemu-\w+ \(signal SIGSEGV"):
        process.call(64, 0, (), ())  # where there is nothing
    assert same_bits(exe(rows(2)), want)
    running = process._running
    assert running is not None
    running.kill()
    running.wait()
    assert same_bits(exe(rows(2)), want)
    places = dict(process._places)
    again = built(dense("posit8_es2"), target)
    del exe
    gc.collect()
    assert same_bits(again(rows(3)), compiler.evaluate(dense("posit8_es2"), rows(3)))
    assert len(process._places) == len(places)  # the second is there, the first is not


@pytest.mark.parametrize("target", QEMU)
def test_more_memory_than_there_is(target: str) -> None:
    exe = built(dense("posit8_es2"), target)
    want = exe(rows(2))
    with pytest.raises(InputError, match=r"no memory for 1.05e\+06 GiB in qemu-"):
        exe.loaded.run([rows(2)], [np.zeros((2, 7), np.float32)], [2], 1 << 50)
    assert same_bits(exe(rows(2)), want)


@pytest.mark.parametrize("target", QEMU)
def test_what_cannot_be_done_is_said(target: str) -> None:
    with pytest.raises(UnsupportedError, match="run on one thread"):
        compiler.build(dense(), target=target, threads=2)
    with pytest.raises(LoweringError, match="in a library that code which stands alone"):
        compiler.build(dense("posit8_es0"), target=target, dtype_lowering="library")


def test_what_is_missing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(qemu_user.shutil, "which", lambda name: None)
    with pytest.raises(UnsupportedError, match=r"qemu-riscv64 runs .*install .*qemu-user"):
        compiler.build(dense(), target="riscv64-linux")
    monkeypatch.setattr(qemu_user.shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(linking, "zig", lambda: "")
    with pytest.raises(UnsupportedError, match=r"pip install 'dtypelab\[cross\]'"):
        compiler.build(dense(), target="aarch64-linux")


def test_without_a_plugin_nothing_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    triple = Target.anywhere("riscv64-linux").triple
    if why := qemu_user.QEMU_USER.missing(Target.anywhere("riscv64-linux")):
        pytest.skip(why)
    monkeypatch.setattr(qemu_user, "_counting", lambda triple: None)
    process = qemu_user._Process(triple)
    process.begin()
    try:
        assert process.call(0, 0, (), ()) == 0
        assert process.spent is None
    finally:
        process.end()


def test_programs_that_are_none() -> None:
    for content in (b"", b"\x7fELF\1\1" + bytes(64), b"\x7fELF"):
        with pytest.raises(MachineError, match="no ELF file of 64 bits"):
            elf.linked(content)
