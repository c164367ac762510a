"""Cortex-M processors, on boards that QEMU emulates: operators and networks give the interpreter's
results, and instructions are counted."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from machines_here import needs
from op_runs import RUNS, Case, check_on, label

import compiler
import datatypes
import quantize
from compiler.build import compile_program
from compiler.errors import InputError, MachineError, OutOfMemoryError, UnsupportedError
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import IRModule
from compiler.runtime.elsewhere import ElsewhereExecutable
from compiler.runtime.machines import qemu_arm
from compiler.runtime.machines.boards import BOARDS, linker_script
from compiler.runtime.machines.instruction_counts import instruction_counts
from compiler.target.registry import Target
from experiments.benchmarks.microcontrollers import ResNet8

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "codegen"))

from c_programs import same_bits
from test_c_networks import FORMATS, dense, images, network, rows

M4, M7, M55 = (
    f"llvm -mtriple={triple} -mcpu={cpu}"
    for triple, cpu in (
        ("thumbv7em", "cortex-m4"), ("thumbv7em", "cortex-m7"), ("thumbv8.1m", "cortex-m55"),
    )
)  # fmt: skip
CPUS = tuple(pytest.param(t, marks=needs(t), id=t.rpartition("=")[2]) for t in (M4, M7, M55))
NETWORKS = ("mnist_mlp", "mnist_dwsep", "mnist_resnet8")


@pytest.mark.sampled(200)
@pytest.mark.parametrize("run", RUNS, ids=label)
@pytest.mark.parametrize("target", CPUS)
def test_operators(target: str, run: tuple[Case, Any]) -> None:
    check_on(target, run)


@pytest.mark.thorough
@pytest.mark.parametrize("target", CPUS)
@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("name", NETWORKS)
def test_networks(target: str, name: str, fmt: str) -> None:
    mod, x = network(name, fmt), images(100, 2)
    got, want = compiler.build(mod, target=target)(x), compiler.evaluate(mod, x)
    if fmt == "float32":
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
    else:
        assert same_bits(got, want)


@pytest.mark.parametrize("target", CPUS)
def test_called_as_any_other(target: str) -> None:
    """Of any number of rows, none too; more rows take more instructions, the same rows as many."""
    exe = compiler.build(dense("posit8_es2"), target=target)
    assert isinstance(exe, ElsewhereExecutable)
    assert exe.emulated == "qemu-system-arm"
    counts = []
    for n in (1, 9, 0, 9):
        assert same_bits(exe(rows(n)), compiler.evaluate(dense("posit8_es2"), rows(n)))
        counts.append(exe.instructions)
    assert counts[1] == counts[3] > 5 * counts[0] > 0


@pytest.mark.parametrize("target", CPUS)
def test_nearest_integers(target: str) -> None:
    """By an instruction, or by functions of our own: halves, large numbers, signs of zero."""
    values = np.array([0.5, 1.5, -0.5, -2.5, 2**23 + 1, -(2.0**30), 1e30, np.inf, -0.2, 0.0])
    for dtype in ("float32", "float64"):
        b = FunctionBuilder()
        x = b.param("x", values.shape, dtype)
        mod = IRModule({"main": b.finish(b.call("round", x))})
        given = values.astype(dtype)
        assert same_bits(compiler.build(mod, target=target)(given), np.rint(given))


@pytest.mark.parametrize("target", CPUS)
def test_products_of_bytes(target: str) -> None:
    """Of the largest there are, by the instruction; and of columns that fill no tile."""
    rng = np.random.default_rng(0)
    for columns, terms, steps in ((32, 56, 8), (7, 56, 8), (9, 64, 16), (8, 12, 4)):
        name = f"vmladava.{steps}<" if "m55" in target else "smlad.2<"
        w = rng.choice(np.array([-128, -127, 127, 3], np.int8), (columns, terms))
        w[0], w[1] = -128, 127
        x = rng.choice(np.array([255, 254, 128, 0], np.uint8), (9, terms))
        x[3] = 255
        b = FunctionBuilder()
        y = b.call("nn.dense", b.param("x", x.shape, "uint8"), b.const(w), out_dtype="int32")
        exe = compiler.build(IRModule({"main": b.finish(y)}), target=target)
        assert name in exe.as_text()
        np.testing.assert_array_equal(exe(x), x.astype(np.int32) @ w.T.astype(np.int32))


@pytest.mark.parametrize("target", CPUS)
def test_instructions_of_kernels(target: str) -> None:
    """They add up to those of the program, which has calls between them."""
    exe = compiler.build(dense("bfloat16"), target=target)
    counts = instruction_counts(exe, rows(3))
    assert same_bits(counts.outputs[0], exe(rows(3)))
    assert isinstance(exe, ElsewhereExecutable)
    assert exe.instructions is not None
    mine = sum(k.instructions for k in counts.kernels)
    assert 0.9 * counts.instructions < mine <= counts.instructions < 1.2 * exe.instructions
    with pytest.raises(InputError, match="target 'llvm' is none"):
        instruction_counts(compiler.build(dense()), rows(3))


def test_what_does_not_run_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(UnsupportedError, match="apt-get install qemu-system-arm"):
        compiler.build(dense(), target=M4)
    with pytest.raises(UnsupportedError, match="no board with generic: give -mcpu=cortex-m4"):
        compiler.build(dense(), target="llvm -mtriple=thumbv7em -mcpu=generic")


@pytest.mark.parametrize("target", CPUS[:1])
def test_programs_that_fail(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    exe = compiler.build(dense(), target=target)
    exe(rows(2))
    assert isinstance(exe, ElsewhereExecutable)
    loaded = exe.loaded
    out = np.zeros((2, 7), np.float32)
    with pytest.raises(OutOfMemoryError, match="the board mps2-an386, which has 16"):
        loaded.run([rows(2)], [out], [2], 1 << 24)
    with pytest.raises(MachineError, match="fails on mps2-an386: fault, status and address"):
        loaded.run([rows(2)], [out], [1 << 24], 64)
    monkeypatch.setattr(qemu_arm, "LONGEST", 0.01)
    with pytest.raises(MachineError, match="has not ended after"):
        exe(rows(2))


def test_boards_are_told_by_their_processors() -> None:
    for board in BOARDS:
        triple = "thumbv8.1m" if board.cpu == "cortex-m55" else "thumbv7em"
        target = Target.anywhere(f"llvm -mtriple={triple} -mcpu={board.cpu}")
        assert (target.pointer_bytes, target.index_type, target.fma) == (4, "i32", True)
        assert f"{board.flash.size:#x}" in linker_script(board)


def test_formats_of_8_bits_are_looked_up() -> None:
    """There are no vectors of floats; formats of more bits have no tables."""
    for fmt, lowering in (("posit8_es1", "table"), ("posit16_es1", "vector")):
        for target in (M4, M55):
            (found,) = compile_program(dense(fmt), target, compiled=False).lowerings
            assert found.lowering == lowering
            assert ("no vectors of floats" in found.reason) == (lowering == "table")


@pytest.mark.sampled(3)
@pytest.mark.parametrize("target", [M4, M7, M55])
def test_tiles_of_few_registers(target: str) -> None:
    """Weights that are computed, so that they are copied: fewer vectors than elsewhere."""
    for data, weight, out in (("float32", "float32", ""), ("uint8", "int8", "int32")):
        b = FunctionBuilder()
        x, w = b.param("x", (2, 4, 5, 4), data), b.param("w", (16, 4, 3, 3), weight)
        y = b.call("nn.conv2d", x, w, padding=(1, 1, 1, 1), out_dtype=out)
        assert compile_program(IRModule({"main": b.finish(y)}), target, compiled=False).kernels


def test_depthwise_taps_that_lie_apart_are_not_gathered() -> None:
    """For a product of vectors that has one sum."""
    for stride in (1, 2):
        b = FunctionBuilder()
        x, w = b.param("x", (1, 32, 14, 14), "uint8"), b.const(np.ones((32, 1, 3, 3), np.int8))
        y = b.call(
            "nn.conv2d", x, w, padding=(1, 1, 1, 1), strides=(stride, stride), groups=32,
            out_dtype="int32",
        )  # fmt: skip
        program = compile_program(IRModule({"main": b.finish(y)}), M55, compiled=False)
        assert not any("vmladava" in k.as_text() for k in program.kernels)


@pytest.mark.parametrize("target", CPUS)
def test_the_larger_of_floats(target: str) -> None:
    """Of float64 and float16, NaN and the signs of zeros included."""
    values = np.array([0.0, -0.0, 1.5, -np.inf, np.inf, np.nan, -3.0])
    for dtype in ("float64", "float16"):
        x, y = (v.reshape(-1).astype(dtype) for v in np.meshgrid(values, values))
        b = FunctionBuilder()
        p, q = b.param("x", x.shape, dtype), b.param("y", y.shape, dtype)
        mod = IRModule({"main": b.finish(b.call("maximum", p, q), b.call("minimum", p, q))})
        got, want = compiler.build(mod, target=target)(x, y), compiler.evaluate(mod, x, y)
        assert all(same_bits(g, w) for g, w in zip(got, want, strict=True))


@pytest.mark.thorough
@pytest.mark.parametrize("target", CPUS)
@pytest.mark.parametrize("fmt", ["bfloat16", "float16", "posit16_es1", "fixed16_8"])
def test_formats_of_16_bits(target: str, fmt: str) -> None:
    """However sums are formed: those that need float64 call functions on Cortex-M4."""
    for how in ("sequential", "fma", "float32", "exact"):
        mod = datatypes.change_dtype(dense(), "float32", fmt, accumulate=how)
        got = compiler.build(mod, target=target)(rows(3))
        assert same_bits(got, compiler.evaluate(mod, rows(3))), how


@pytest.mark.thorough
@pytest.mark.parametrize("target", [M4, M7, M55])
def test_memory_is_what_is_alive(target: str) -> None:
    """Of a residual network, and a tenth: three maps of 16 x 32 x 32 bytes at once."""
    resnet = ResNet8()
    mod = quantize.quantize(resnet.module, resnet.inputs(1))
    program = compile_program(mod, target, compiled=False)
    assert 3 * 16 * 32 * 32 <= program.workspace.constant() <= 1.1 * 3 * 16 * 32 * 32
