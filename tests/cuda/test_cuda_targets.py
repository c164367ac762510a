"""What targets of GPUs are for, beside being built for: files, listings, and what is refused."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import compiler
from compiler.errors import ModelError, UnsupportedError
from compiler.runtime.loader import register_target_kind, remove_target_kind
from compiler.saved import file
from compiler.target.cuda import RUNNERS
from compiler.target.registry import Target, TargetKind

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "codegen"))

from test_c_networks import images, network

SIMT = "cuda -arch=sm_80 -runner=simt"


def test_programs_are_kept_in_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For the CPU that runs them; another one refuses them."""
    x = images(4, 3)
    exe = compiler.build(network("mnist_mlp", "int8"), target=SIMT)
    exe.save(tmp_path / "mlp.exe")
    again = compiler.load(tmp_path / "mlp.exe")
    assert str(again.target) == SIMT
    np.testing.assert_array_equal(again(x), exe(x))
    other = Target.anywhere("llvm -mcpu=x86-64")
    monkeypatch.setattr(file, "host", lambda: other)
    monkeypatch.setattr("compiler.target.registry.host", lambda: other)
    with pytest.raises(ModelError, match=r"for another CPU|for the CPU"):
        compiler.load(tmp_path / "mlp.exe")


def test_kinds_may_be_called_as_runners_are() -> None:
    """And when they are forgotten, the runners are there."""

    def nothing() -> Any:
        raise AssertionError("nobody compiles here")

    for runner in RUNNERS:
        register_target_kind(TargetKind(runner), nothing, nothing)
        remove_target_kind(runner)
    x = images(4, 3)
    exe = compiler.build(network("mnist_mlp", "int8"), target=SIMT)
    np.testing.assert_array_equal(exe(x), compiler.build(network("mnist_mlp", "int8"))(x))


def test_machines_and_chips_do_not_share_code() -> None:
    texts = [SIMT, "cuda -arch=sm_90 -runner=simt", "cuda -arch=sm_80", "cuda -arch=sm_90", "llvm"]
    assert len({Target.anywhere(t).machine for t in texts}) == len(texts)


@pytest.mark.parametrize("target", [SIMT, "cuda"])
def test_what_is_not_made_for_gpus_is_refused(target: str, tmp_path: Path) -> None:
    mod = network("mnist_mlp", "float32")
    with pytest.raises(UnsupportedError, match="is a GPU, and tuning logs cannot be made for it"):
        compiler.tune(mod, target, log=tmp_path / "log.jsonl", trials=1)
    with pytest.raises(UnsupportedError, match="programs of GPUs are not exported: name a CPU"):
        compiler.export(mod, target, tmp_path / "out")
    assert not [*tmp_path.iterdir()]


def test_they_are_listed() -> None:
    from experiments.cli.main import cli

    said = CliRunner().invoke(cli, ["targets"]).output
    (row,) = [line for line in said.splitlines() if line.startswith("cuda -arch=sm_90a ")]
    assert "-runner=simt" in row
