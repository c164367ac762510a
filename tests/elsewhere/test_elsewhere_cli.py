"""Machines elsewhere on the command line: what runs, what does not, and why; no traceback."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from machines_here import needs

from compiler.codegen import linking
from compiler.runtime.machines import node, wasmtime
from compiler.runtime.machines.image import Image
from compiler.runtime.machines.registry import register_machine, remove_machine
from compiler.target.registry import Target
from compiler.types.dtypes import Array
from experiments.cli.main import run_command

Capture = pytest.CaptureFixture[str]


class Idle:
    """A machine that does nothing, in no time."""

    name, emulated = "idle", True

    def missing(self, target: Target) -> str:
        """See Machine."""
        return ""

    def load(self, image: Image) -> Idle:
        """See Machine."""
        return self

    def run(
        self, inputs: Sequence[Array], outputs: Sequence[Array], dims: Sequence[int], arena: int
    ) -> None:
        """See Loaded."""


def refused(target: str, capsys: Capture) -> str:
    """What `bench` says on standard error, which is one line."""
    assert run_command(["bench", "mnist_mlp", "--target", target, "--runs", "1"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert len(said.err.strip().splitlines()) == 1, said.err
    return said.err


def test_emulators_are_not_measured(capsys: Capture) -> None:
    register_machine("riscv64", "idle", Idle)
    try:
        said = refused("llvm -mtriple=riscv64-linux -runner=idle", capsys)
    finally:
        remove_machine("riscv64", "idle")
    assert "runs in the emulator idle here, whose times say nothing" in said


@needs("wasm32 -runner=wasmtime")
def test_engines_are(capsys: Capture) -> None:
    call = ["bench", "mnist_mlp", "--target", "wasm32", "--runs", "2", "--warmup", "1", "--json"]
    assert run_command(call) == 0
    assert '"latency_ms"' in capsys.readouterr().out


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("wasm33", "did you mean 'wasm32'"),
        ("llvm -mtriple=aarch46-linux", "did you mean 'aarch64-linux'"),
        ("wasm32 -runner=nodejs", "did you mean 'node'"),
        ("wasm32 -mattr=+simd", "did you mean 'simd128'"),
    ],
)
def test_what_there_is_not(target: str, message: str, capsys: Capture) -> None:
    assert message in refused(target, capsys)


def test_what_is_not_installed(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.setattr(node.shutil, "which", lambda name: None)
    assert "install node, version 18 or newer" in refused("wasm32 -runner=node", capsys)
    monkeypatch.setattr(wasmtime.importlib.util, "find_spec", lambda name: None)
    assert "pip install 'dtypelab[wasm]'" in refused("wasm32 -runner=wasmtime", capsys)
    monkeypatch.undo()
    if not wasmtime.WASMTIME.missing(Target.anywhere("wasm32")):
        monkeypatch.setattr(linking, "zig", lambda: "")
        assert "pip install 'dtypelab[cross]'" in refused("wasm32 -runner=wasmtime", capsys)
