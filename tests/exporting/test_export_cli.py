"""dtypelab export."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

import compiler
import quantize
from experiments import zoo
from experiments.cli.main import run_command

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "codegen"))

from c_programs import needs_compiler
from test_c_networks import images

pytestmark = needs_compiler
Capture = pytest.CaptureFixture[str]


def test_a_network_by_a_plan(tmp_path: Path, capsys: Capture) -> None:
    mod = compiler.from_onnx(zoo.FOLDER / "mnist_mlp.onnx")
    plan = quantize.calibrate(mod, [images(0, 8)], quantize.QConfig())
    plan.to_json(tmp_path / "p.json")
    given = ["mnist_mlp", "--plan", str(tmp_path / "p.json"), "-o", str(tmp_path / "int8")]
    code = run_command(["export", *given, "--form", "shared", "--name", "mlp", "--json"])
    said = json.loads(capsys.readouterr().out)
    assert (code, said["name"], said["target"]) == (0, "mlp", "llvm")
    want = compiler.evaluate(quantize.realize(mod, plan), images(9, 2))
    exe = compiler.load(tmp_path / "int8" / "libmlp.so")
    np.testing.assert_array_equal(exe(images(9, 2)), want)


def test_a_network_in_a_format_as_c(tmp_path: Path, capsys: Capture) -> None:
    out = tmp_path / "c"
    given = ["export", "mnist_mlp", "--dtype", "posit8_es0", "--target", "c", "-o", str(out)]
    assert run_command([*given, "--shape", "input=1x1x28x28"]) == 0
    assert "net.c: the program, C11 without dependencies" in capsys.readouterr().out
    assert "#define NET_ARENA_BYTES" in (out / "net.h").read_text()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "is there already: give force=True (--force)"),
        (["--target", "lvm", "--force"], "unknown target 'lvm'; did you mean 'llvm'"),
        (["--plan", "p.json", "--dtype", "bfloat16"], "two ways to compute: give one"),
        (["--name", "a-b", "--force"], "'a-b' cannot be the name of the functions in C"),
        (["--dtype", "posit8_es0", "--lowering", "library", "--force"], "in a library that code"),
    ],
)
def test_what_cannot_be_done_is_one_sentence(
    tmp_path: Path, capsys: Capture, words: list[str], message: str
) -> None:
    code = run_command(["export", "mnist_mlp", "-o", str(tmp_path), *words])
    said = capsys.readouterr().err
    assert code == 2
    assert message in said
    assert len(said.splitlines()) == 1


def test_targets_are_listed(capsys: Capture) -> None:
    assert run_command(["targets", "--json"]) == 0
    rows = {row["target"]: row for row in json.loads(capsys.readouterr().out)["targets"]}
    assert rows["llvm"]["runs"]
    assert rows["c -mcpu=generic"]["runs"]
    assert (rows["llvm -mtriple=wasm32"]["pointer_bytes"], rows["llvm"]["pointer_bytes"]) == (4, 8)
    wasm = rows["llvm -mtriple=wasm32"]
    assert wasm["runs"] == bool(wasm["machines"])
    assert set(wasm["machines"]) <= {"wasmtime", "node"}
    assert run_command(["targets"]) == 0
    said = next(
        line for line in capsys.readouterr().out.splitlines() if "  riscv64-unknown-linux" in line
    )
    runs = rows["llvm -mtriple=riscv64-linux"]["machines"]
    assert said.endswith("runs here (qemu-user)" if runs else "export only; qemu-user would run it")
