"""dtypelab dtype hardware."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from datatypes.hardware import synthesis, tools
from datatypes.hardware.generate import design
from experiments.cli.main import run_command

Capture = pytest.CaptureFixture[str]
needs_yosys = pytest.mark.skipif(bool(tools.missing()), reason=tools.missing())


def test_the_verb_writes_verilog_without_tools(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tools, "missing", lambda: "Yosys is missing; install it")
    file = tmp_path / "p.v"
    arguments = ["dtype", "hardware", "posit8_es2", "-o", str(file)]
    assert run_command(arguments) == 2
    told = capsys.readouterr()
    assert told.err.strip().endswith("Yosys is missing; install it; or give --no-synthesis")
    assert "Traceback" not in told.err
    assert not file.exists()
    assert run_command([*arguments, "--no-synthesis", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["accumulator_bits"], facts["modules"]) == (115, [])
    assert file.read_text() == design("posit8_es2").verilog


def test_a_refused_format_is_one_sentence(tmp_path: Path, capsys: Capture) -> None:
    file = tmp_path / "x.v"
    assert run_command(["dtype", "hardware", "lns16_8", "-o", str(file), "--no-synthesis"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert not file.exists()


@needs_yosys
@pytest.mark.thorough
def test_gates_and_depth(tmp_path: Path, capsys: Capture) -> None:
    arguments = ["dtype", "hardware", "float4_e2m1fn", "--accumulate", "sequential"]
    arguments += ["-o", str(tmp_path / "f.v")]
    assert run_command([*arguments, "--json"]) == 0
    modules = {m["module"]: m for m in json.loads(capsys.readouterr().out)["modules"]}
    assert modules["mac"]["cells"] > modules["mul"]["cells"] > modules["decode"]["cells"] > 0
    assert modules["mac"]["depth"] > modules["mul"]["depth"] > 0
    assert run_command(arguments) == 0
    assert "float4_e2m1fn_mac" in capsys.readouterr().out


@needs_yosys
@pytest.mark.thorough
@pytest.mark.parametrize(("name", "simple"), [("posit8_es0", 839), ("posit16_es1", 3956)])
def test_multipliers_are_near_simple_ones(name: str, simple: int) -> None:
    """Cells of behavioural Verilog of the same multipliers, by the same synthesis."""
    (cost,) = synthesis.synthesized(design(name, "sequential"), only=["mul"])
    assert cost.cells <= 1.5 * simple
