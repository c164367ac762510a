"""`dtypelab run --place`: the numbers of one device, what was copied, and bad input."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from experiments.cli.main import run_command

Capture = pytest.CaptureFixture[str]
RUN = ["run", "mnist_mlp", "--input", "mnist1k", "--dtype", "posit8_es0"]


def outputs(path: Path) -> np.ndarray:
    with np.load(path) as found:
        return found["logits"]


@pytest.mark.thorough
def test_the_numbers_of_one_device(tmp_path: Path, capsys: Capture) -> None:
    plain, placed = (str(tmp_path / f"{name}.npz") for name in ("plain", "placed"))
    assert run_command([*RUN, "--output", plain]) == 0
    assert "copied" not in capsys.readouterr().out
    target = "llvm -mcpu=x86-64"
    assert run_command([*RUN, "--output", placed, "--place", f"node*={target}"]) == 0
    said = capsys.readouterr().out
    assert "on llvm_mcpu_x86_64: node_view, node_linear, node_relu, node_linear_1" in said
    assert "posit8_es0]8: " in said  # how it is computed, there
    assert "copied: " in said
    np.testing.assert_array_equal(outputs(Path(plain)), outputs(Path(placed)))


def test_json_and_a_registered_device(tmp_path: Path, capsys: Capture) -> None:
    adapter = tmp_path / "device.py"
    adapter.write_text(
        """
import compiler

def compiled(f, name):
    mod = compiler.IRModule({"main": compiler.Function(f.params, f.bindings, f.results)})

    def run(values):
        outs = compiler.evaluate(mod, *values)
        return outs if isinstance(outs, list) else [outs]

    return run

compiler.register_device(compiler.Device("slow", compiled), override=True)
"""
    )
    words = ["--adapter", str(adapter), *RUN, "--json", "--place", "node_relu=slow"]
    from compiler.devices import remove_device

    try:
        assert run_command(words) == 0
    finally:
        remove_device("slow")
    facts = json.loads(capsys.readouterr().out)
    assert [d["device"] for d in facts["devices"]] == ["slow"]
    assert "node_relu" in facts["devices"][0]["nodes"]
    assert facts["copied_bytes"] > 0
    assert facts["copies"] == 2


@pytest.mark.parametrize(
    ("places", "message"),
    [
        (["node_rleu=llvm"], "unknown node 'node_rleu'; did you mean 'node_relu'"),
        (["node_relu=lvm"], "unknown target 'lvm'"),
        (["node_relu"], "--place 'node_relu' is not NODE=DEVICE"),
        (["=llvm"], "--place '=llvm' is not NODE=DEVICE"),
        (["node_relu=llvm", "node_relu=host"], "--place gives node 'node_relu' twice: keep one"),
    ],
)
def test_bad_places(places: list[str], message: str, capsys: Capture) -> None:
    assert run_command([*RUN, *(x for p in places for x in ("--place", p))]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert len(said.strip().splitlines()) == 1
