"""What exported programs take of flash and RAM, for any target; what does not fit is refused."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import compiler
from compiler.codegen.linking import missing
from compiler.errors import ConfigError, UnsupportedError
from compiler.exporting.needs import object_bytes
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import IRModule
from compiler.target.registry import Target
from experiments.cli.main import run_command

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "codegen"))

from c_programs import needs_compiler
from test_c_networks import dense

TARGETS = ("c", "llvm", "aarch64-linux", "riscv64-linux", "wasm32")
MOVED = 4 * (5 * 9 + 5 * 7)
"""Bytes of the layer's inputs and outputs."""


def layer() -> IRModule:
    """Weights of 16 x 9 numbers, of 7 x 16, a row of 16 between."""
    rng = np.random.default_rng(0)
    b = FunctionBuilder()
    y = b.param("x", (5, 9))
    for rows, columns in ((16, 9), (7, 16)):
        y = b.call("nn.dense", y, b.const(rng.normal(size=(rows, columns)).astype(np.float32)))
        y = b.call("nn.softmax", y)
    return IRModule({"main": b.finish(y)})


@needs_compiler
@pytest.mark.thorough
@pytest.mark.parametrize("weights", ["inside", "file"])
@pytest.mark.parametrize("target", TARGETS)
def test_bytes_at_the_border(tmp_path: Path, target: str, weights: str) -> None:
    """A byte less of either is too little; what is too little is not written."""
    form = "source" if target == "c" else "object"
    how = {"forms": [form], "weights": weights, "force": True}
    plenty = compiler.export(layer(), target, tmp_path / "x", flash=1 << 30, ram=1 << 30, **how)
    need = plenty.needs
    assert need is not None
    assert need.ram is not None
    assert need.code == (target != "c")
    assert need.flash >= plenty.weights_bytes > 0
    assert (need.flash == plenty.weights_bytes) == (target == "c")
    assert plenty.arena_bytes is not None
    assert need.ram >= plenty.arena_bytes + MOVED
    same = compiler.export(layer(), target, tmp_path / "x", flash=need.flash, ram=need.ram, **how)
    assert same.needs == need
    for what, flash, ram in (("flash", need.flash - 1, need.ram), ("RAM", None, need.ram - 1)):
        with pytest.raises(ConfigError, match=rf"does not fit: it needs [\d,]+ bytes of {what}"):
            compiler.export(layer(), target, tmp_path / "y", flash=flash, ram=ram, **how)
    assert not (tmp_path / "y").exists()
    assert compiler.export(layer(), target, tmp_path / "x", **how).needs is None


def test_sizes_that_are_open(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="depends on the sizes of its inputs: give them all"):
        compiler.export(dense(), "c", tmp_path / "x", ram=1 << 20)
    need = compiler.export(dense(), "c", tmp_path / "x", flash=1 << 20).needs
    assert need is not None
    assert need.ram is None
    assert need.text.endswith("bytes of flash for its weights alone and RAM as its sizes say")


@needs_compiler
def test_bytes_of_an_object_file_are_those_that_size_counts(tmp_path: Path) -> None:
    code = (
        "const int a[100] = {1}; int b[50] = {2}; int c[25]; int f(int x) { return a[x] + b[x]; }"
    )
    (tmp_path / "x.c").write_text(code + " int *g = c;")
    subprocess.run(["cc", "-O1", "-c", "-o", tmp_path / "x.o", tmp_path / "x.c"], check=True)
    said = subprocess.run(
        ["size", tmp_path / "x.o"], capture_output=True, text=True, check=True
    ).stdout
    text, data, zeros = map(int, said.splitlines()[1].split()[:3])
    assert object_bytes((tmp_path / "x.o").read_bytes()) == (text + data, data + zeros)
    assert (data, zeros) == (208, 100)


def test_bytes_of_webassembly(tmp_path: Path) -> None:
    target = Target.anywhere("wasm32")
    compiler.export(layer(), target, tmp_path / "x", forms=["object"])
    stored, written = object_bytes((tmp_path / "x" / "net.o").read_bytes())
    assert 4 * (16 * 9 + 7 * 16) <= written < stored
    if missing(target):
        pytest.skip("the module needs a linker")
    compiler.export(layer(), target, tmp_path / "y", forms=["shared"])
    module = (tmp_path / "y" / "net.wasm").read_bytes()
    assert abs(object_bytes(module)[0] - stored) < 0.1 * stored
    assert stored < 1.1 * len(module)


def test_other_object_files_are_stored_whole() -> None:
    assert object_bytes(b"MZ" + bytes(98)) == (100, 0)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["export", "mnist_mlp", "--target", "c", "--shape", "input=1,1,28,28"]
    assert run_command([*given, "-o", str(tmp_path / "x"), "--flash", "1000", "--ram", "9"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "needs 410,176 bytes of flash for its weights alone of 1,000 and " in said
    assert list(tmp_path.iterdir()) == []
    assert run_command([*given, "-o", str(tmp_path / "x"), "--ram", "100000", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["flash_bytes"] is None
    assert found["ram_bytes"] == found["arena_bytes"] + 4 * (28 * 28 + 10)
