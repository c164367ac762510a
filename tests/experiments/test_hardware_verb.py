"""dtypelab dtype hardware."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from compiler.errors import DtypelabError
from datatypes.formats import get
from datatypes.hardware import synthesis, tools
from datatypes.hardware.blocks import Blocks
from datatypes.hardware.generate import design
from datatypes.hardware.liberty import cells_of
from experiments.cli.main import run_command

Capture = pytest.CaptureFixture[str]
needs_yosys = pytest.mark.skipif(bool(tools.missing()), reason=tools.missing())


LIBERTY = """/* two cells */ library(tiny) {
  delay_model : table_lookup; time_unit : "1ns"; capacitive_load_unit(1, ff);
  lu_table_template(t) { variable_1 : input_net_transition; index_1("1, 10"); }
  %s
}
"""
ARC = """timing() { related_pin : "%s"; timing_sense : negative_unate;
  cell_rise(t) { values("0.01, 0.02", \\
    "0.012, 0.03"); } cell_fall(t) { values("0.01, 0.02", "0.012, 0.022"); } }
"""
INVERTER = ("INV", 2.0, "A", "!A")
NAND = ("NAND2", 4.0, "AB", "!(A B)")


def library(file: Path, *cells: tuple[str, float, str, str], more: str = "") -> Path:
    texts = []
    for name, area, inputs, function in cells:
        pins = "".join(f"pin({p}) {{ direction : input; capacitance : 1; }} " for p in inputs)
        arcs = "".join(ARC % p for p in inputs)
        out = f'pin(Y) {{ direction : output; function : "{function}"; {arcs} }}'
        texts.append(f"cell({name}) {{ area : {area}; {pins} {out} }}")
    file.write_text(LIBERTY % "\n".join([*texts, more]))
    return file


def test_cells_are_read_from_a_liberty_file(tmp_path: Path) -> None:
    flop = 'cell(DFF) { area : 9; ff(IQ, IQN) { clocked_on : "CK"; next_state : "D"; } }'
    cells = cells_of(library(tmp_path / "t.lib", INVERTER, NAND, more=flop), True)
    nand = cells.gates["NAND2"]
    assert (nand.function, nand.inputs, nand.output) == ("!(A*B)", ("A", "B"), "Y")
    assert (nand.area, nand.delay_ps, cells.register_area) == (4, 30, 9)
    assert "GATE INV 2 Y=!A; PIN * UNKNOWN 1 999 30 0 30 0" in cells.genlib


@pytest.mark.parametrize(
    ("cells", "registers", "message"),
    [
        ([NAND], False, r"t\.lib has no inverter$"),
        ([INVERTER], False, "has no NAND or NOR of two inputs$"),
        ([INVERTER, NAND], True, "has no flip-flop$"),
        ([], False, "has no inverter and no NAND or NOR of two inputs$"),
    ],
)
def test_a_liberty_without_needed_cells_is_refused(
    cells: list[tuple[str, float, str, str]], registers: bool, message: str, tmp_path: Path
) -> None:
    with pytest.raises(DtypelabError, match=message):
        cells_of(library(tmp_path / "t.lib", *cells), registers)


def test_what_is_no_liberty_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "t.lib"
    for text in ("", "cells", "library(a) { cell(b) { area : c; ff(x) { } } }", "{ } { }"):
        file.write_text(text)
        with pytest.raises(DtypelabError, match="is no liberty file"):
            cells_of(file, False)
    for nested in ("library(a) {" * 5000, "library(a) {" + "b() {" * 5000):
        file.write_text(nested)
        with pytest.raises(DtypelabError, match="is no liberty file"):
            cells_of(file, False)
    for none in (tmp_path / "none.lib", tmp_path, Path("/dev/zero")):
        with pytest.raises(DtypelabError, match="cannot read the liberty file"):
            cells_of(none, False)


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


def test_a_block_format_is_added_a_block_at_once(tmp_path: Path, capsys: Capture) -> None:
    arguments = ["dtype", "hardware", "nvfp4", "-o", str(tmp_path / "b.v"), "--no-synthesis"]
    assert run_command([*arguments, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["accumulate"], facts["accumulator_bits"], facts["terms"]) == ("float32", 32, 16)
    assert "input wire [63:0] a" in (tmp_path / "b.v").read_text()
    assert run_command([*arguments, "--accumulate", "exact"]) == 2
    assert "the nearest is accumulate='float32'" in capsys.readouterr().err


def test_a_refused_format_is_one_sentence(tmp_path: Path, capsys: Capture) -> None:
    file = tmp_path / "x.v"
    assert run_command(["dtype", "hardware", "lns16_8", "-o", str(file), "--no-synthesis"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert not file.exists()


def test_options_that_contradict_each_other_and_files_that_would_be_lost(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tools, "missing", lambda: "")
    lib = library(tmp_path / "t.lib", INVERTER, NAND)
    held, given = lib.read_text(), ["dtype", "hardware", "posit8_es2", "--liberty", str(lib)]
    for more, said in (
        (["--no-synthesis"], "--liberty is for synthesis"),
        (["-o", str(lib)], "it would be lost"),
        (["-o", ""], "it is a folder"),
    ):
        assert run_command([*given, *more]) == 2
        assert said in capsys.readouterr().err
    for more, said in (
        (["--no-synthesis"], "--time-limit is for synthesis"),
        ([], "time_limit is 0: it is seconds, and more than 0"),
    ):
        out = ["-o", str(tmp_path / "p.v"), "--time-limit", "0", *more]
        assert run_command(["dtype", "hardware", "posit8_es2", *out]) == 2
        assert said in capsys.readouterr().err
    assert lib.read_text() == held
    assert [*tmp_path.iterdir()] == [lib]


@needs_yosys
@pytest.mark.thorough
def test_gates_and_depth(tmp_path: Path, capsys: Capture) -> None:
    arguments = ["dtype", "hardware", "float4_e2m1fn", "--accumulate", "sequential"]
    file = library(tmp_path / "t.lib", INVERTER, NAND)
    arguments += ["-o", str(tmp_path / "f.v"), "--liberty", str(file)]
    assert run_command([*arguments, "--json"]) == 0
    modules = {m["module"]: m for m in json.loads(capsys.readouterr().out)["modules"]}
    assert modules["mac"]["cells"] > modules["mul"]["cells"] > modules["decode"]["cells"] > 0
    assert modules["mac"]["depth"] > modules["mul"]["depth"] > 0
    mul = modules["mul"]
    assert 2 * mul["cells"] < mul["area_um2"] < 8 * mul["cells"]
    assert mul["delay_ps"] % 30 == 0
    assert 0.5 * mul["depth"] < mul["delay_ps"] / 30 < 2 * mul["depth"]
    assert run_command(arguments) == 0
    assert "float4_e2m1fn_mac" in capsys.readouterr().out


@needs_yosys
@pytest.mark.thorough
def test_registers_and_parts_of_blocks_have_areas(tmp_path: Path) -> None:
    flop = 'cell(DFF) { area : 1000; ff(IQ, IQN) { clocked_on : "CK"; next_state : "D"; } }'
    file = library(tmp_path / "t.lib", INVERTER, NAND, more=flop)
    made = design("float4_e2m1fn", "sequential", pipeline=1)
    (late,) = synthesis.synthesized(made, ["mul"], file)
    assert late.area_um2 is not None
    assert late.delay_ps is not None
    registers, gates = divmod(late.area_um2, 1000)
    assert 4 <= registers <= 24
    assert gates > 0
    block = Blocks("pair", get("float4_e2m1fn"), get("float8_e8m0fnu"), 2)
    product, total, mac = synthesis.synthesized(design(block, "float16"), None, file)
    assert None not in (product.area_um2, total.area_um2, mac.delay_ps)
    assert mac.area_um2 == 2 * (product.area_um2 or 0) + (total.area_um2 or 0)
    assert mac.delay_ps == (product.delay_ps or 0) + (total.delay_ps or 0)


@needs_yosys
@pytest.mark.thorough
@pytest.mark.parametrize(("name", "simple"), [("posit8_es0", 839), ("posit16_es1", 3956)])
def test_multipliers_are_near_simple_ones(name: str, simple: int) -> None:
    """Cells of behavioural Verilog of the same multipliers, by the same synthesis."""
    (cost,) = synthesis.synthesized(design(name, "sequential"), only=["mul"])
    assert cost.cells <= 1.5 * simple
