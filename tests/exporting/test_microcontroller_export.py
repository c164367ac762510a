"""Exported programs for Cortex-M: what comes along runs on the board, and what does not fit is
refused."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import compiler
import datatypes
from compiler.errors import UnsupportedError
from compiler.exporting.microcontroller import needs_of
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import IRModule
from compiler.runtime.machines.registry import missing
from compiler.target.registry import Target
from experiments import zoo
from experiments.cli.main import run_command

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "codegen"))

from c_programs import same_bits
from test_c_networks import dense

M4 = "llvm -mtriple=thumbv7em -mcpu=cortex-m4"
WHY = missing(Target.anywhere(M4))
runs = pytest.mark.skipif(bool(WHY), reason=WHY or "it runs")


def fixed(tmp_path: Path, *more: str, target: str = "thumbv7em") -> tuple[int, str]:
    """The command for a network of one digit."""
    words = ["export", "mnist_mlp", "--target", target, "--shape", "input=1,1,28,28"]
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        code = run_command([*words, "-o", str(tmp_path / "x"), *more])
    return code, said.getvalue()


@runs
@pytest.mark.parametrize(
    "target", ["thumbv7em", pytest.param("thumbv8.1m", marks=pytest.mark.thorough)]
)
def test_what_is_written_runs_on_the_board(tmp_path: Path, target: str) -> None:
    code, said = fixed(tmp_path, "--dtype", "bfloat16", "--report", target=target)
    assert code == 0, said
    assert "instructions  node_linear, node_relu" in said
    folder = tmp_path / "x"
    x = np.random.default_rng(0).random((1, 1, 28, 28), np.float32)
    x.tofile(folder / "input.bin")
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    made = subprocess.run(
        ["make", "main.elf", "run"],
        cwd=folder, capture_output=True, text=True, check=True, env={**os.environ, "PATH": path},
    )  # fmt: skip
    assert "ticks" in made.stdout + made.stderr
    program = needs_of((folder / "main.elf").read_bytes())
    assert f"needs {program.flash:,} bytes of flash and {program.ram:,} of RAM" in said
    mod = datatypes.change_dtype(
        compiler.from_onnx(zoo.FOLDER / "mnist_mlp.onnx"), "float32", "bfloat16"
    )
    got = np.fromfile(folder / "logits.bin", np.float32).reshape(1, 10)
    assert same_bits(got, compiler.evaluate(mod, x))


@runs
@pytest.mark.parametrize("op", ["power", pytest.param("exp", marks=pytest.mark.thorough)])
def test_functions_of_mathematics_are_linked(tmp_path: Path, op: str) -> None:
    """By the Makefile as it is, where any are called."""
    b = FunctionBuilder()
    x = b.param("x", (4,))
    mod = IRModule({"main": b.finish(b.call(op, *[x] * (2 if op == "power" else 1)))})
    compiler.export(mod, M4, tmp_path / "x", name="net")
    assert ("-lm" in (tmp_path / "x" / "Makefile").read_text()) == (op == "power")
    data = np.float32([0.5, 1, 2.5, 3])
    data.tofile(tmp_path / "x" / "x.bin")
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    subprocess.run(
        ["make", "main.elf", "run"],
        cwd=tmp_path / "x", capture_output=True, text=True, check=True,
        env={**os.environ, "PATH": path},
    )  # fmt: skip
    (out,) = (p for p in (tmp_path / "x").glob("*.bin") if p.name != "x.bin")
    got, want = np.fromfile(out, np.float32), compiler.evaluate(mod, data)
    assert same_bits(got, np.asarray(want, np.float32))


@runs
def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    code, said = fixed(tmp_path, "--flash", "262144", "--ram", "8192")
    assert code == 2
    assert "it needs 4" in said
    assert "bytes of flash of 262,144 and 2" in said
    assert "bytes of RAM of 8,192" in said
    assert not (tmp_path / "x").exists()


def test_what_cannot_be_is_said(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="give all inputs their sizes"):
        compiler.export(dense(), M4, tmp_path / "x")
    code, said = fixed(tmp_path, target="llvm -mtriple=thumbv7em -mcpu=generic")
    assert code == 2
    assert "no board with generic is known" in said
    with pytest.raises(UnsupportedError, match="how much RAM the program takes depends on"):
        compiler.export(dense(), "c", tmp_path / "x", ram=10)
    assert list(tmp_path.iterdir()) == []


def test_sizes_of_segments() -> None:
    """Two loadable segments, one of them writable, with zeros behind what is stored."""
    head = bytearray(52)
    head[28:32] = (52).to_bytes(4, "little")
    head[42:46] = bytes([32, 0, 2, 0])
    parts = [(1, 0, 0, 0, 100, 100, 5, 4), (1, 0, 0, 0, 8, 72, 6, 4)]
    body = b"".join(n.to_bytes(4, "little") for p in parts for n in p)
    found = needs_of(bytes(head) + body)
    assert (found.flash, found.ram) == (108, 72)
