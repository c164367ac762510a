"""Costs of operations: formulas, published tables, and specifications that name them."""

from __future__ import annotations

import json
from math import log2
from pathlib import Path

import pytest

import experiments
from compiler.errors import ConfigError, UnsupportedError
from experiments.cli.main import run_command
from experiments.costs import gate_model, published
from experiments.examples import approximate_multiplier
from experiments.spec.specification import load_spec

Capture = pytest.CaptureFixture[str]


def test_the_gate_model_is_that_of_the_paper() -> None:
    """Table 6 with x, y of each format, by hand."""
    int8 = gate_model.gates("int8")
    assert (int8.multiplier, int8.adder, int8.total) == (64, 16, 80)
    e4m3 = gate_model.gates("float8_e4m3fn")  # n = min(2**5 + 6, 24)
    assert (e4m3.multiplier, e4m3.adder, e4m3.aligner) == (16, 24, 24 * log2(24))
    e2m1 = gate_model.gates("float4_e2m1fn")  # n = 2**3 + 2
    assert (e2m1.adder, e2m1.exponent_adder, e2m1.comparator) == (10, 2, 2)
    assert e2m1.normalizer == pytest.approx(10 * log2(10) / 32)
    # What the paper concludes: integers of 8 and of 4 bits are cheaper than floats.
    assert int8.total < e4m3.total
    assert gate_model.gates("int4").total < e2m1.total
    # Of equal width the float's multiplier is the smaller one, its adder the larger one.
    assert e4m3.multiplier < int8.multiplier
    assert e4m3.total - e4m3.multiplier > int8.adder


def test_the_gate_model_says_nothing_of_posits() -> None:
    with pytest.raises(UnsupportedError, match="no posit8_es0; `dtypelab dtype hardware` counts"):
        gate_model.gates("posit8_es0")


def test_published_tables_have_the_figures_that_were_published() -> None:
    """Horowitz's slide: picojoules of 8 and 32-bit integers, and of floats, rounded as there."""
    h = published.SOURCES["horowitz45"]
    for bits, add, multiply in ((8, 0.03, 0.2), (32, 0.1, 3.1)):
        number = f"int{bits}"
        assert h.add(number).energy_pj == pytest.approx(add, abs=0.006)
        assert h.multiply(number, number).energy_pj == pytest.approx(multiply, abs=0.01)
    assert published.mac(h, "float16", "float16").energy_pj == pytest.approx(1.5)
    table = published.picojoules("horowitz45")
    assert table["float32 x float32"] == pytest.approx(4.6)
    assert table["int4 x int8"] == table["int8 x int4"] < table["int8 x int8"]
    aladdin = published.picojoules("aladdin40")
    assert aladdin["int32 x int32"] == pytest.approx(12.91)
    assert "memory" not in aladdin
    assert published.mac(published.SOURCES["aladdin40"], "float32", "float32").area_um2 == 13330
    # They disagree by as much as four times and more.
    assert aladdin["int32 x int32"] / table["int32 x int32"] > 4


def spec(folder: Path, energy: str) -> Path:
    file = folder / "s.toml"
    file.write_text(
        'models = ["mnist_mlp"]\nschemes = ["float32", "int8", "posit8_es0"]\nn_eval = 8\n'
        f"n_calib = 8\n[latency]\nruns = 0\n[energy]\n{energy}\n"
    )
    return file


@pytest.mark.thorough
def test_rows_name_the_source_of_their_energy(tmp_path: Path) -> None:
    file = spec(tmp_path, 'source = "horowitz45"')
    rows = experiments.sweep(str(file), out=tmp_path / "r.csv").set_index("scheme")
    configs = {name: json.loads(text)["energy"] for name, text in rows["config"].items()}
    assert set(map(json.dumps, configs.values())) == {'{"source": "horowitz45"}'}
    whole = rows["energy_uj"]
    table = published.picojoules("horowitz45")
    network = rows.loc["float32"]
    moved = network["traffic_bytes"] * table["memory"] * 1e-6
    assert network["energy_memory_uj"] == pytest.approx(moved)
    bounds = 128 * 0.9e-6  # the relu's comparisons, at an adder's price
    assert network["energy_other_uj"] == pytest.approx(bounds)
    assert whole["float32"] == pytest.approx(network["macs"] * 4.6e-6 + bounds + moved)
    assert whole[next(n for n in whole.index if n.startswith("int8"))] < whole["float32"] / 3
    assert whole.isna()["posit8_es0"]  # the source has no posits


def test_a_source_is_part_of_what_a_cell_means(tmp_path: Path) -> None:
    plain = load_spec(str(spec(tmp_path, "")))
    named = load_spec(str(spec(tmp_path, 'source = "horowitz45"')))
    assert not {c.config_hash for c in plain.cells} & {c.config_hash for c in named.cells}
    (again,) = load_spec(named.cells[0].specification()).cells
    assert again.config_hash == named.cells[0].config_hash
    assert "energy" not in plain.cells[0].specification()


@pytest.mark.parametrize(
    ("energy", "message"),
    [
        ('source = "horowitz"', "did you mean 'horowitz45'"),
        ('source = "aladdin40"\nint8 = 0.2', "sources are not mixed"),
        ("source = 3", "source must be"),
    ],
)
def test_a_wrong_source_is_refused(tmp_path: Path, energy: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_spec(str(spec(tmp_path, energy)))


def test_the_verb_shows_sources_apart(capsys: Capture) -> None:
    assert run_command(["dtype", "cost", "int32", "--json"]) == 0
    rows = {row["source"]: row for row in json.loads(capsys.readouterr().out)["costs"]}
    assert set(rows) == {"gate_model", "horowitz45", "aladdin40"}
    assert rows["gate_model"]["energy_pj"] is rows["horowitz45"]["gates"] is None
    assert run_command(["dtype", "cost", "float8_e4m3fn"]) == 0
    assert "gate_model" in capsys.readouterr().out
    assert run_command(["dtype", "cost", "mxfp8_e4m3"]) == 0
    assert "(its elements, float8_e4m3fn, without scales)" in capsys.readouterr().out
    approximate_multiplier.define()
    for name, said in (
        ("takum8", "no takum8"),
        ("int0", "unknown format 'int0'"),
        ("int08", "unknown format 'int08'"),
        ("int65", "unknown format 'int65'"),
        ("mitchell0", "mitchell0 has tables"),
    ):
        assert run_command(["dtype", "cost", name]) == 2
        assert said in capsys.readouterr().err
